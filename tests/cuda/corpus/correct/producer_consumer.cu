// what: one warp fills two buffers, one empties them, four named barriers
// array x: normal(256)
// array y: zeros(256)
// launch: pipe<<<1, 64>>>(x, y, 8)
// gives y: x.reshape(8, 32)[:, ::-1].ravel()
#include <named_barrier.cuh>
extern "C" __global__ void pipe(const float* x, float* y, int steps) {
  __shared__ float s[2][32];
  int lane = threadIdx.x % 32;
  if (threadIdx.x / 32 == 0) {
    for (int i = 0; i < steps; i++) {
      if (i >= 2) named_barrier_sync(3 + i % 2, 64);
      s[i % 2][lane] = x[32 * i + lane];
      named_barrier_arrive(1 + i % 2, 64);
    }
  } else {
    for (int i = 0; i < steps; i++) {
      named_barrier_sync(1 + i % 2, 64);
      y[32 * i + lane] = s[i % 2][31 - lane];
      if (i + 2 < steps) named_barrier_arrive(3 + i % 2, 64);
    }
  }
}
