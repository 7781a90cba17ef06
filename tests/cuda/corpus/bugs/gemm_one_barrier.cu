// what: the tiled product lacks the barrier at the end of a step
// array a: normal(32, 48)
// array b: normal(48, 32)
// array c: zeros(32, 32)
// launch: gemm<16><<<(2, 2), (16, 16)>>>(a, b, c, 32, 32, 48)
// finds: race
template <int T> __global__ void gemm(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float as[T][T], bs[T][T];
  int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * T + y, col = blockIdx.x * T + x;
  float sum = 0;
  for (int k0 = 0; k0 < k; k0 += T) {
    as[y][x] = a[row * k + k0 + x];
    bs[y][x] = b[(k0 + y) * n + col];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < T; i++) sum += as[y][i] * bs[i][x];
  }
  c[row * n + col] = sum;
}
