// what: the depth 20 is not a multiple of the tile, and rows of b beyond the depth are read
// array a: normal(16, 20)
// array b: normal(20, 16)
// array c: zeros(16, 16)
// launch: gemm<<<1, (16, 16)>>>(a, b, c, 16, 20)
// finds: out of bounds
extern "C" __global__ void gemm(const float* __restrict__ a, const float* __restrict__ b, float* c, int n, int k) {
  __shared__ float as[16][16], bs[16][16];
  int x = threadIdx.x, y = threadIdx.y;
  float sum = 0;
  for (int k0 = 0; k0 < k; k0 += 16) {
    as[y][x] = a[y * k + k0 + x];  // HERE
    bs[y][x] = b[(k0 + y) * n + x];  // HERE
    __syncthreads();
    for (int i = 0; i < 16 && k0 + i < k; i++) sum += as[y][i] * bs[i][x];
    __syncthreads();
  }
  c[y * n + x] = sum;
}
