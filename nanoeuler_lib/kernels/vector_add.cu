// c = a + b. a, b, c: [n]. The gradients of a and b equal that of c, so there is no backward kernel. Chapter 23.
#include <wide.cuh>

// One element per thread. Launch at least n threads.
extern "C" __global__ void vector_add(const float* __restrict__ a, const float* __restrict__ b,
                                      float* __restrict__ c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];  // the last block may extend beyond the end
}

// The same, for speed with four elements at a time. Launch any number of threads.
extern "C" __global__ void vector_add_wide(const float* __restrict__ a, const float* __restrict__ b,
                                           float* __restrict__ c, int n) {
  int me = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  int fours = whole_fours(n, a, b, c);
  for (int i = me; i < fours; i += threads) {
    float4 u = ((const float4*)a)[i], v = ((const float4*)b)[i];
    ((float4*)c)[i] = make_float4(u.x + v.x, u.y + v.y, u.z + v.z, u.w + v.w);
  }
  for (int i = 4 * fours + me; i < n; i += threads) c[i] = a[i] + b[i];
}
