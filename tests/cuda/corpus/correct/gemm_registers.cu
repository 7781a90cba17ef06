// what: 4 x 4 results a thread, tiles read as float4
// array a: normal(32, 16)
// array b: normal(16, 32)
// array c: zeros(32, 32)
// launch: gemm<<<1, (8, 8)>>>(a, b, c, 16)
// gives c ~ 1e-4: a @ b
extern "C" __global__ void gemm(const float* a, const float* b, float* c, int k) {
  __shared__ __align__(16) float as[8][32], bs[8][32];
  int t = threadIdx.y * 8 + threadIdx.x;
  float sum[4][4] = {};
  for (int k0 = 0; k0 < k; k0 += 8) {
    float4 v = *(const float4*)&a[t / 2 * k + k0 + t % 2 * 4];
    as[t % 2 * 4][t / 2] = v.x, as[t % 2 * 4 + 1][t / 2] = v.y;
    as[t % 2 * 4 + 2][t / 2] = v.z, as[t % 2 * 4 + 3][t / 2] = v.w;
    *(float4*)&bs[t / 8][t % 8 * 4] = *(const float4*)&b[(k0 + t / 8) * 32 + t % 8 * 4];
    __syncthreads();
    for (int i = 0; i < 8; i++) {
      float4 x = *(float4*)&as[i][4 * threadIdx.y], y = *(float4*)&bs[i][4 * threadIdx.x];
      float xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
      for (int r = 0; r < 4; r++)
        for (int s = 0; s < 4; s++) sum[r][s] += xs[r] * ys[s];
    }
    __syncthreads();
  }
  for (int r = 0; r < 4; r++)
    *(float4*)&c[(4 * threadIdx.y + r) * 32 + 4 * threadIdx.x] = make_float4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
}
