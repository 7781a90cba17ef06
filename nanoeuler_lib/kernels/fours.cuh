// fours.cuh: read and write four numbers (or 16 bytes) as floats: float, bfloat16 or float16. Addresses must be so
// aligned.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Two 16-bit numbers in a register. The first argument only gives their type.
__device__ __forceinline__ unsigned pack(__nv_bfloat16, float low, float high) {
  __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *(unsigned*)&both;
}
__device__ __forceinline__ unsigned pack(__half, float low, float high) {
  __half2 both = __floats2half2_rn(low, high);
  return *(unsigned*)&both;
}
__device__ __forceinline__ float2 unpack(__nv_bfloat16, unsigned v) {  // a bfloat16 is the upper half of a float
  return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}
__device__ __forceinline__ float2 unpack(__half, unsigned v) { return __half22float2(*(__half2*)&v); }
template <class Number> __device__ __forceinline__ float4 unpack(Number type, unsigned a, unsigned b) {
  float2 low = unpack(type, a), high = unpack(type, b);
  return make_float4(low.x, low.y, high.x, high.y);
}

__device__ __forceinline__ float4 read_four(const float* p) { return *(const float4*)p; }
template <class Number> __device__ __forceinline__ float4 read_four(const Number* p) {
  uint2 v = *(const uint2*)p;
  return unpack(Number(), v.x, v.y);
}
__device__ __forceinline__ void write_four(float* p, float4 v) { *(float4*)p = v; }
template <class Number> __device__ __forceinline__ void write_four(Number* p, float4 v) {
  *(uint2*)p = make_uint2(pack(Number(), v.x, v.y), pack(Number(), v.z, v.w));
}

// 16 bytes of numbers, the most that a thread reads or writes at once, converted to floats.
template <class Number> struct Sixteen {
  static constexpr int FOURS = 4 / (int)sizeof(Number);
  float4 four[FOURS];
};
__device__ __forceinline__ Sixteen<float> read_sixteen(const float* p) { return {{read_four(p)}}; }
template <class Number> __device__ __forceinline__ Sixteen<Number> read_sixteen(const Number* p) {
  uint4 v = *(const uint4*)p;
  return {{unpack(Number(), v.x, v.y), unpack(Number(), v.z, v.w)}};
}
__device__ __forceinline__ void write_sixteen(float* p, Sixteen<float> v) { write_four(p, v.four[0]); }
template <class Number> __device__ __forceinline__ void write_sixteen(Number* p, Sixteen<Number> v) {
  float4 a = v.four[0], b = v.four[1];
  *(uint4*)p = make_uint4(pack(Number(), a.x, a.y), pack(Number(), a.z, a.w), pack(Number(), b.x, b.y),
                          pack(Number(), b.z, b.w));
}
