// wide.cuh: helpers for kernels that read and write 16 bytes at a time where the arrays' alignment allows it.
#pragma once

// The number of whole float4 in the first n floats of each array, or 0 if an array is not aligned to 16 bytes, as a
// view need not be. A kernel handles so many float4, then the remaining floats one by one; in the second case these are
// all n floats, in the first at most three.
__device__ __forceinline__ int whole_fours(int n, const void* a, const void* b = 0, const void* c = 0,
                                           const void* d = 0, const void* e = 0) {
  if (n > 1 << 30) __trap();  // n must be at most 2^30, because the kernels count in int
  size_t addresses = (size_t)a | (size_t)b | (size_t)c | (size_t)d | (size_t)e;
  return addresses % 16 == 0 ? n / 4 : 0;
}

__device__ __forceinline__ void add_to(float& sum, float v) { sum += v; }
__device__ __forceinline__ void add_to(float4& sum, float4 v) {
  sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
}
