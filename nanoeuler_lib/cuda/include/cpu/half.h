// half.h: the 16-bit number types __half and __nv_bfloat16. Arithmetic is done in float and rounded once, as the
// GPU does for a single operation; what the GPU contracts to one fused operation may differ in the last bit.
#pragma once

#include "bits16.h"

// The checker does not see what happens in here at a line of the kernel, and of an argument passed by value g++ tells it
// nothing. So whatever touches a number in memory says so itself, with the place that it is called from.
#ifdef CHECKED
#define SEEN(object, kind) check_from(object, sizeof *(object), runtime::kind, __builtin_return_address(0))
#define COPIED(T) RAW T(const T& other) { SEEN(&other, READ); __builtin_memcpy((void*)this, &other, sizeof *this); }
#else
#define SEEN(object, kind) (void)0
#define COPIED(T) T(const T&) = default;
#endif

#define SIXTEEN_BITS(T, TO, FROM)                                                              \
  struct __align__(2) T {                                                                      \
    unsigned short raw_bits;                                                                   \
    T() = default;                                                                             \
    COPIED(T)                                                                                  \
    T& operator=(const T&) = default;                                                          \
    T(float x) : raw_bits(runtime::TO(x)) {}                                                   \
    T(double x) : raw_bits(runtime::TO((float)x)) {}                                           \
    T(int x) : raw_bits(runtime::TO((float)x)) {}                                              \
    T(unsigned x) : raw_bits(runtime::TO((float)x)) {}                                         \
    RAW operator float() const { return SEEN(this, READ), runtime::FROM(raw_bits); }           \
    RAW T& operator+=(T b) {                                                                   \
      SEEN(this, READ), SEEN(this, WRITE);                                                     \
      raw_bits = runtime::TO(runtime::FROM(raw_bits) + runtime::FROM(b.raw_bits));             \
      return *this;                                                                            \
    }                                                                                          \
    RAW T& operator*=(T b) {                                                                   \
      SEEN(this, READ), SEEN(this, WRITE);                                                     \
      raw_bits = runtime::TO(runtime::FROM(raw_bits) * runtime::FROM(b.raw_bits));             \
      return *this;                                                                            \
    }                                                                                          \
  };                                                                                           \
  static inline T operator+(T a, T b) { return T((float)a + (float)b); }                       \
  static inline T operator-(T a, T b) { return T((float)a - (float)b); }                       \
  static inline T operator*(T a, T b) { return T((float)a * (float)b); }                       \
  static inline T operator/(T a, T b) { return T((float)a / (float)b); }                       \
  static inline T operator-(T a) { return T(-(float)a); }                                      \
  static inline bool operator<(T a, T b) { return (float)a < (float)b; }                       \
  static inline bool operator>(T a, T b) { return (float)a > (float)b; }                       \
  static inline bool operator==(T a, T b) { return (float)a == (float)b; }                     \
  struct __align__(4) T##2 {                                                                   \
    T x, y;                                                                                    \
    T##2() = default;                                                                          \
    T##2(T x, T y) : x(x), y(y) {}                                                             \
    COPIED(T##2)                                                                               \
    T##2& operator=(const T##2&) = default;                                                    \
  };                                                                                           \
  RAW static inline T atomicAdd(T* address, T value, int line = __builtin_LINE()) {            \
    float more = runtime::FROM(value.raw_bits);                                                \
    auto change = [more](runtime::Bits16 old) RAW { return runtime::TO(runtime::FROM(old) + more); }; \
    return runtime::bits<T>(runtime::atomic(&address->raw_bits, change, line));                \
  }                                                                                            \
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
