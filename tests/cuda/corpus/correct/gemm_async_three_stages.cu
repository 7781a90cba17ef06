// what: a ring of three stages filled by asynchronous copies
// array a: normal(16, 80)
// array b: normal(80, 16)
// array c: zeros(16, 16)
// launch: gemm<<<1, 64>>>(a, b, c, 80)
// gives c ~ 1e-4: a @ b
#include <nanoeuler.cuh>
extern "C" __global__ void gemm(const float* a, const float* b, float* c, int k) {
  __shared__ __align__(16) float as[3][16][16], bs[3][16][16];
  int t = threadIdx.x, steps = k / 16;
  auto fetch = [&](int step) {
    if (step < steps) {
      int r = t / 4, f = t % 4 * 4;
      copy_async<16>(&as[step % 3][r][f], a + r * k + step * 16 + f);
      copy_async<16>(&bs[step % 3][r][f], b + (step * 16 + r) * 16 + f);
    }
    copy_async_commit();
  };
  float sum[4] = {};
  fetch(0);
  fetch(1);
  for (int step = 0; step < steps; step++) {
    copy_async_wait<1>();
    __syncthreads();
    fetch(step + 2);
    for (int i = 0; i < 16; i++)
      for (int j = 0; j < 4; j++) sum[j] += as[step % 3][t / 4][i] * bs[step % 3][i][t % 4 * 4 + j];
  }
  for (int j = 0; j < 4; j++) c[t / 4 * 16 + t % 4 * 4 + j] = sum[j];
}
