// what: the producer warp waits for nobody before it fills the buffer again
// array x: normal(128)
// array y: zeros(128)
// launch: pipe<<<1, 64>>>(x, y)
// finds: barrier
#include <named_barrier.cuh>
extern "C" __global__ void pipe(const float* x, float* y) {
  __shared__ float s[32];
  int lane = threadIdx.x % 32;
  if (threadIdx.x < 32)
    for (int i = 0; i < 4; i++) {
      s[lane] = x[32 * i + lane];  // HERE
      named_barrier_arrive(1, 64);  // HERE
    }
  else
    for (int i = 0; i < 4; i++) {
      named_barrier_sync(1, 64);  // HERE
      y[32 * i + lane] = s[31 - lane];  // HERE
    }
}
