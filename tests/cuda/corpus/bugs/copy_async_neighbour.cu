// what: each thread waits for its own copies and reads a neighbour's
// array x: normal(64)
// array y: zeros(64)
// launch: shift<<<1, 64>>>(x, y)
// finds: race | s[
#include <nanoeuler.cuh>
extern "C" __global__ void shift(const float* x, float* y) {
  __shared__ float s[64];
  int t = threadIdx.x;
  copy_async<4>(s + t, x + t);
  copy_async_commit();
  copy_async_wait<0>();
  y[t] = s[(t + 32) % 64];  // HERE
}
