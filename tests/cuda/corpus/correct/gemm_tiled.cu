// what: the tiled product with ragged edges
// array a: normal(19, 21)
// array b: normal(21, 30)
// array c: zeros(19, 30)
// launch: gemm<16><<<(2, 2), (16, 16)>>>(a, b, c, 19, 30, 21)
// gives c ~ 1e-4: a @ b
template <int T> __global__ void gemm(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float as[T][T], bs[T][T];
  int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * T + y, col = blockIdx.x * T + x;
  float sum = 0;
  for (int k0 = 0; k0 < k; k0 += T) {
    as[y][x] = row < m && k0 + x < k ? a[row * k + k0 + x] : 0.0f;
    bs[y][x] = col < n && k0 + y < k ? b[(k0 + y) * n + col] : 0.0f;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < T; i++) sum = fmaf(as[y][i], bs[i][x], sum);
    __syncthreads();
  }
  if (row < m && col < n) c[row * n + col] = sum;
}
