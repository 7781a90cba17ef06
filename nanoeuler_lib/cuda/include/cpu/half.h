// half.h: the 16-bit number types __half and __nv_bfloat16. Arithmetic is done in float and rounded once, as the
// GPU does for a single operation; what the GPU contracts to one fused operation may differ in the last bit.
#pragma once

namespace runtime {

typedef unsigned short Bits16;

#ifdef __FLT16_MANT_DIG__
RAW static inline Bits16 to_half(float x) { return bits<Bits16>((_Float16)x); }
RAW static inline float from_half(Bits16 h) { return (float)bits<_Float16>(h); }
#else  // round to nearest even, in integers
RAW static inline Bits16 to_half(float x) {
  unsigned u = bits<unsigned>(x), sign = u >> 16 & 0x8000, size = u & 0x7fffffff;
  if (size > 0x7f800000) return (Bits16)(sign | 0x7fff);   // not a number
  if (size >= 0x477ff000) return (Bits16)(sign | 0x7c00);  // rounds to infinity
  if (size < 0x38800000) return (Bits16)(sign | (bits<unsigned>(bits<float>(size) + 0.5f) - 0x3f000000));
  return (Bits16)(sign | ((size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13));
}
RAW static inline float from_half(Bits16 h) {
  unsigned sign = (unsigned)(h & 0x8000) << 16, size = h & 0x7fff;
  if (size >= 0x7c00) return bits<float>(sign | 0x7f800000 | (size & 0x3ff) << 13);
  if (size < 0x400) return bits<float>(sign | bits<unsigned>((float)size * 5.9604644775390625e-8f));
  return bits<float>(sign | ((size << 13) + 0x38000000));
}
#endif

RAW static inline Bits16 to_bfloat16(float x) {
  unsigned u = bits<unsigned>(x);
  return (u & 0x7fffffff) > 0x7f800000 ? 0x7fff : (Bits16)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
RAW static inline float from_bfloat16(Bits16 h) { return bits<float>((unsigned)h << 16); }

}  // namespace runtime

#define SIXTEEN_BITS(T, TO, FROM)                                                              \
  struct __align__(2) T {                                                                      \
    unsigned short raw_bits;                                                                   \
    T() = default;                                                                             \
    T(float x) : raw_bits(runtime::TO(x)) {}                                                   \
    T(double x) : raw_bits(runtime::TO((float)x)) {}                                           \
    T(int x) : raw_bits(runtime::TO((float)x)) {}                                              \
    T(unsigned x) : raw_bits(runtime::TO((float)x)) {}                                         \
    operator float() const { return runtime::FROM(raw_bits); }                                 \
    T& operator+=(T b) { return *this = T((float)*this + (float)b); }                          \
    T& operator*=(T b) { return *this = T((float)*this * (float)b); }                          \
  };                                                                                           \
  static inline T operator+(T a, T b) { return T((float)a + (float)b); }                       \
  static inline T operator-(T a, T b) { return T((float)a - (float)b); }                       \
  static inline T operator*(T a, T b) { return T((float)a * (float)b); }                       \
  static inline T operator/(T a, T b) { return T((float)a / (float)b); }                       \
  static inline T operator-(T a) { return T(-(float)a); }                                      \
  static inline bool operator<(T a, T b) { return (float)a < (float)b; }                       \
  static inline bool operator>(T a, T b) { return (float)a > (float)b; }                       \
  static inline bool operator==(T a, T b) { return (float)a == (float)b; }                     \
  struct __align__(4) T##2 { T x, y; };                                                        \
  static inline T __hadd(T a, T b) { return a + b; }                                           \
  static inline T __hsub(T a, T b) { return a - b; }                                           \
  static inline T __hmul(T a, T b) { return a * b; }                                           \
  static inline T __hdiv(T a, T b) { return a / b; }                                           \
  static inline T __hfma(T a, T b, T c) { return T((double)(float)a * (float)b + (float)c); }  \
  static inline T __hmax(T a, T b) { return a > b ? a : b; }                                   \
  static inline T __hmin(T a, T b) { return a < b ? a : b; }                                   \
  static inline bool __hlt(T a, T b) { return a < b; }                                         \
  static inline bool __hgt(T a, T b) { return a > b; }                                         \
  static inline T##2 __hadd2(T##2 a, T##2 b) { return {a.x + b.x, a.y + b.y}; }                \
  static inline T##2 __hmul2(T##2 a, T##2 b) { return {a.x * b.x, a.y * b.y}; }                \
  static inline T##2 __hfma2(T##2 a, T##2 b, T##2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
SIXTEEN_BITS(__half, to_half, from_half)
SIXTEEN_BITS(__nv_bfloat16, to_bfloat16, from_bfloat16)
typedef __half half;
typedef __half2 half2;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

static inline __half __float2half(float x) { return x; }
static inline __half __float2half_rn(float x) { return x; }
static inline float __half2float(__half h) { return h; }
static inline __half2 __floats2half2_rn(float a, float b) { return {__half(a), __half(b)}; }
static inline __half2 __float22half2_rn(float2 a) { return {__half(a.x), __half(a.y)}; }
static inline float2 __half22float2(__half2 a) { return {a.x, a.y}; }
static inline __half2 __halves2half2(__half a, __half b) { return {a, b}; }
static inline __half2 __half2half2(__half a) { return {a, a}; }
static inline __half __low2half(__half2 a) { return a.x; }
static inline __half __high2half(__half2 a) { return a.y; }
static inline float __low2float(__half2 a) { return a.x; }
static inline float __high2float(__half2 a) { return a.y; }
static inline __nv_bfloat16 __float2bfloat16(float x) { return x; }
static inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
static inline float __bfloat162float(__nv_bfloat16 h) { return h; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {__nv_bfloat16(a), __nv_bfloat16(b)}; }
static inline float2 __bfloat1622float2(__nv_bfloat162 a) { return {a.x, a.y}; }
