// what: the consumer waits for 96 threads where 64 come
// array x: normal(32)
// array y: zeros(32)
// launch: pass<<<1, 64>>>(x, y)
// finds: barrier
#include <nanoeuler.cuh>
#include <named_barrier.cuh>
extern "C" __global__ void pass(const float* x, float* y) {
  __shared__ float s[32];
  int lane = threadIdx.x % 32;
  if (threadIdx.x < 32) {
    s[lane] = x[31 - lane];
    named_barrier_arrive(1, 64);  // HERE
  } else {
    named_barrier_sync(1, 96);  // HERE
    y[lane] = s[lane];
  }
}
