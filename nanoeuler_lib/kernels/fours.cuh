// fours.cuh: four numbers of either type, as floats. Addresses are multiples of four numbers.
#pragma once
#include <cuda_bf16.h>

__device__ __forceinline__ float4 read_four(const float* p) { return *(const float4*)p; }
__device__ __forceinline__ float4 read_four(const __nv_bfloat16* p) {
  uint2 v = *(const uint2*)p;  // a bfloat16 is the first half of a float
  return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u), __uint_as_float(v.y << 16),
                     __uint_as_float(v.y & 0xffff0000u));
}
__device__ __forceinline__ void write_four(float* p, float4 v) { *(float4*)p = v; }
__device__ __forceinline__ void write_four(__nv_bfloat16* p, float4 v) {
  __nv_bfloat162 low = __floats2bfloat162_rn(v.x, v.y), high = __floats2bfloat162_rn(v.z, v.w);
  *(uint2*)p = make_uint2(*(unsigned*)&low, *(unsigned*)&high);
}
