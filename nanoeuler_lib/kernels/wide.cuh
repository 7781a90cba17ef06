// wide.cuh: 16 bytes at a time, where the arrays allow it.
#pragma once

// How many float4 there are in the first n floats of each array; 0 if one of the arrays does not start at a multiple of
// 16 bytes, as a view of another need not. A kernel takes these by fours and what is left, n in the second case, one by
// one.
__device__ __forceinline__ int whole_fours(int n, const void* a, const void* b = 0, const void* c = 0,
                                           const void* d = 0, const void* e = 0) {
  if (n > 1 << 30) __trap();  // more than 2^30 floats: the kernels count in int
  size_t addresses = (size_t)a | (size_t)b | (size_t)c | (size_t)d | (size_t)e;
  return addresses % 16 == 0 ? n / 4 : 0;
}

__device__ __forceinline__ void add_to(float& sum, float v) { sum += v; }
__device__ __forceinline__ void add_to(float4& sum, float4 v) {
  sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
}
