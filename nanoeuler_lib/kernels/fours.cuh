// fours.cuh: read and write four numbers (or 16 bytes), float or bfloat16, as floats. Addresses must be so aligned.
#pragma once
#include <cuda_bf16.h>

__device__ __forceinline__ float4 read_four(const float* p) { return *(const float4*)p; }
__device__ __forceinline__ float4 read_four(const __nv_bfloat16* p) {
  uint2 v = *(const uint2*)p;  // a bfloat16 is the upper half of a float
  return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u), __uint_as_float(v.y << 16),
                     __uint_as_float(v.y & 0xffff0000u));
}
__device__ __forceinline__ void write_four(float* p, float4 v) { *(float4*)p = v; }
__device__ __forceinline__ void write_four(__nv_bfloat16* p, float4 v) {
  __nv_bfloat162 low = __floats2bfloat162_rn(v.x, v.y), high = __floats2bfloat162_rn(v.z, v.w);
  *(uint2*)p = make_uint2(*(unsigned*)&low, *(unsigned*)&high);
}

// 16 bytes of numbers, the most that a thread reads or writes at once, converted to floats.
template <class Number> struct Sixteen {
  static constexpr int FOURS = 4 / (int)sizeof(Number);
  float4 four[FOURS];
};
__device__ __forceinline__ Sixteen<float> read_sixteen(const float* p) { return {{read_four(p)}}; }
__device__ __forceinline__ Sixteen<__nv_bfloat16> read_sixteen(const __nv_bfloat16* p) {
  uint4 v = *(const uint4*)p;
  return {{make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u), __uint_as_float(v.y << 16),
                       __uint_as_float(v.y & 0xffff0000u)),
           make_float4(__uint_as_float(v.z << 16), __uint_as_float(v.z & 0xffff0000u), __uint_as_float(v.w << 16),
                       __uint_as_float(v.w & 0xffff0000u))}};
}
__device__ __forceinline__ void write_sixteen(float* p, Sixteen<float> v) { write_four(p, v.four[0]); }
__device__ __forceinline__ void write_sixteen(__nv_bfloat16* p, Sixteen<__nv_bfloat16> v) {
  __nv_bfloat162 a = __floats2bfloat162_rn(v.four[0].x, v.four[0].y), b = __floats2bfloat162_rn(v.four[0].z, v.four[0].w);
  __nv_bfloat162 c = __floats2bfloat162_rn(v.four[1].x, v.four[1].y), d = __floats2bfloat162_rn(v.four[1].z, v.four[1].w);
  *(uint4*)p = make_uint4(*(unsigned*)&a, *(unsigned*)&b, *(unsigned*)&c, *(unsigned*)&d);
}
