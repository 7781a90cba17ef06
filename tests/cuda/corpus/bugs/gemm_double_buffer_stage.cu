// what: the next tile is stored to the stage that is being multiplied
// array a: normal(16, 64)
// array b: normal(64, 16)
// array c: zeros(16, 16)
// launch: gemm<<<1, (16, 16)>>>(a, b, c, 64)
// finds: race
extern "C" __global__ void gemm(const float* a, const float* b, float* c, int k) {
  __shared__ float as[2][16][16], bs[2][16][16];
  int x = threadIdx.x, y = threadIdx.y;
  float sum = 0;
  as[0][y][x] = a[y * k + x];
  bs[0][y][x] = b[y * 16 + x];
  __syncthreads();
  for (int step = 0; step < k / 16; step++) {
    int now = step & 1, next = now;
    if (step + 1 < k / 16) {
      as[next][y][x] = a[y * k + (step + 1) * 16 + x];  // HERE
      bs[next][y][x] = b[((step + 1) * 16 + y) * 16 + x];  // HERE
    }
    for (int i = 0; i < 16; i++) sum += as[now][y][i] * bs[now][i][x];  // HERE
    __syncthreads();
  }
  c[y * 16 + x] = sum;
}
