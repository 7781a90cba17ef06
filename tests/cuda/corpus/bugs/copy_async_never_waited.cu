// what: an asynchronous copy is committed, and a barrier stands for the wait
// array x: normal(256)
// array y: zeros(256)
// launch: copy<<<1, 64>>>(x, y)
// finds: s[ | copy
#include <nanoeuler.cuh>
extern "C" __global__ void copy(const float* x, float* y) {
  __shared__ __align__(16) float s[256];
  int t = threadIdx.x;
  copy_async<16>(&s[4 * t], &x[4 * t]);
  copy_async_commit();
  __syncthreads();
  for (int i = t; i < 256; i += 64) y[i] = s[255 - i];  // HERE
}
