// half.h: the 16-bit number types __half and __nv_bfloat16, and their pairs. Arithmetic is done in float, or in double
// if float is too short, and rounded once, as the GPU does for a single operation. Results may differ in the last bit
// where the GPU contracts operations into a fused one, and for functions such as exp, log and sine.
#pragma once
#include "raw.h"

#include "bits16.h"

// The checker cannot assign accesses in this file to a line of the kernel, and g++ does not report arguments passed by
// value. So every function here that accesses memory reports it itself, with the address of its caller.
#ifdef CHECKED
#define NE_SEEN(object, kind) runtime::check_from(object, sizeof *(object), runtime::kind, __builtin_return_address(0))
#define NE_COPIED(T) RAW T(const T& other) { NE_SEEN(&other, READ); __builtin_memcpy((void*)this, &other, sizeof *this); }
#else
#define NE_SEEN(object, kind) (void)0
#define NE_COPIED(T) T(const T&) = default;
#endif

// T: the type; TO, FROM: its conversion from float and to float (bits16.h).
#define NE_CHANGE(T, OP)                                  \
  RAW static inline T& operator OP##=(T& a, T b) {     \
    NE_SEEN(&a, READ), NE_SEEN(&a, WRITE);                   \
    T result = a OP b;                                 \
    __builtin_memcpy((void*)&a, &result, sizeof a);    \
    return a;                                          \
  }
#define NE_CHANGES(T)                                                                     \
  NE_CHANGE(T, +) NE_CHANGE(T, -) NE_CHANGE(T, *) NE_CHANGE(T, /)                                  \
  RAW static inline T& operator++(T& a) { return a += T(1.0f); }                       \
  RAW static inline T& operator--(T& a) { return a -= T(1.0f); }                       \
  RAW static inline T operator++(T& a, int) { T old = a; a += T(1.0f); return old; }   \
  RAW static inline T operator--(T& a, int) { T old = a; a -= T(1.0f); return old; }

#define NE_OPERATION(T, OP, NAME, PAIR, EXPRESSION)                                                      \
  RAW static inline T operator OP(T a, T b) { return T(EXPRESSION); }                                 \
  RAW static inline T NAME(T a, T b) { return T(EXPRESSION); }                                        \
  RAW static inline T##2 operator OP(T##2 a, T##2 b) { return {a.x OP b.x, a.y OP b.y}; }             \
  RAW static inline T##2 PAIR(T##2 a, T##2 b) { return {a.x OP b.x, a.y OP b.y}; }
#define NE_SATURATED(T, OP, NAME)                                                                                  \
  RAW static inline T NAME##_rn(T a, T b) { return a OP b; }                                                    \
  RAW static inline T NAME##_sat(T a, T b) { return T(__saturatef((a OP b).value())); }                         \
  RAW static inline T##2 NAME##2_rn(T##2 a, T##2 b) { return {a.x OP b.x, a.y OP b.y}; }                        \
  RAW static inline T##2 NAME##2_sat(T##2 a, T##2 b) { return {NAME##_sat(a.x, b.x), NAME##_sat(a.y, b.y)}; }
// NAME: an ordered comparison, false for NaN; NAME##u: an unordered one, true for NaN.
#define NE_COMPARISON(T, NAME, EXPRESSION)                                                                          \
  RAW static inline bool __h##NAME(T s, T t) { float a = s.value(), b = t.value(); return EXPRESSION; }          \
  RAW static inline bool __hb##NAME##2(T##2 a, T##2 b) { return __h##NAME(a.x, b.x) && __h##NAME(a.y, b.y); }    \
  RAW static inline T##2 __h##NAME##2(T##2 a, T##2 b) {                                                          \
    return {T((float)__h##NAME(a.x, b.x)), T((float)__h##NAME(a.y, b.y))};                                       \
  }
#define NE_COMPARISON_OPERATOR(T, OP, NAME)                                                            \
  RAW static inline bool operator OP(T a, T b) { return __h##NAME(a, b); }                          \
  RAW static inline bool operator OP(T##2 a, T##2 b) { return __hb##NAME##2(a, b); }
// Of a number and a NaN these return the number, and with _nan the NaN; of two NaNs a NaN. -0 is less than 0.
#define NE_EXTREME(T, NAME, OP)                                                                                \
  RAW static inline T NAME##_nan(T a, T b) {                                                                \
    float x = a.value(), y = b.value();                                                                     \
    return x != x || y != y ? T::of(0x7fff) : x OP y || (x == y && (short)a.raw_bits OP (short)b.raw_bits) ? a : b; \
  }                                                                                                         \
  RAW static inline T NAME(T a, T b) {                                                                      \
    return b.value() != b.value() ? NAME##_nan(a, a) : a.value() != a.value() ? b : NAME##_nan(a, b);       \
  }                                                                                                         \
  RAW static inline T##2 NAME##2(T##2 a, T##2 b) { return {NAME(a.x, b.x), NAME(a.y, b.y)}; }               \
  RAW static inline T##2 NAME##2_nan(T##2 a, T##2 b) { return {NAME##_nan(a.x, b.x), NAME##_nan(a.y, b.y)}; }
#define NE_FUNCTION(T, NAME, EXPRESSION)                                                          \
  RAW static inline T h##NAME(T a) { float x = a.value(); return T(EXPRESSION); }              \
  RAW static inline T##2 h2##NAME(T##2 a) { return {h##NAME(a.x), h##NAME(a.y)}; }

#define NE_SIXTEEN_BITS(T, TO, FROM)                                                              \
  struct __align__(2) T {                                                                      \
    unsigned short raw_bits;                                                                   \
    T() = default;                                                                             \
    NE_COPIED(T)                                                                                  \
    T& operator=(const T&) = default;                                                          \
    RAW T(float x) : raw_bits(runtime::TO(x)) {}                                               \
    RAW T(double x) : raw_bits(runtime::TO(runtime::double_to_half_way(x))) {}                 \
    RAW T(int x) : T((double)x) {}                                                             \
    RAW T(unsigned x) : T((double)x) {}                                                        \
    RAW T(long x) : T(runtime::long_to_half_way(x)) {}                                         \
    RAW T(long long x) : T(runtime::long_to_half_way(x)) {}                                    \
    RAW T(unsigned long x) : T(runtime::long_to_half_way(x)) {}                                \
    RAW T(unsigned long long x) : T(runtime::long_to_half_way(x)) {}                           \
    RAW operator float() const { return NE_SEEN(this, READ), runtime::FROM(raw_bits); }           \
    RAW float value() const { return runtime::FROM(raw_bits); }                                \
    RAW static T of(unsigned bits) { T h; h.raw_bits = (unsigned short)bits; return h; }       \
  };                                                                                           \
  struct __align__(4) T##2 {                                                                   \
    T x, y;                                                                                    \
    T##2() = default;                                                                          \
    RAW T##2(T a, T b) { x.raw_bits = a.raw_bits, y.raw_bits = b.raw_bits; }                   \
    NE_COPIED(T##2)                                                                               \
    T##2& operator=(const T##2&) = default;                                                    \
    RAW explicit T##2(float both) : T##2(T(both), T(both)) {}                                  \
  };                                                                                           \
  NE_OPERATION(T, +, __hadd, __hadd2, a.value() + b.value())                                      \
  NE_OPERATION(T, -, __hsub, __hsub2, a.value() - b.value())                                      \
  NE_OPERATION(T, *, __hmul, __hmul2, a.value() * b.value())                                      \
  NE_OPERATION(T, /, __hdiv, __h2div, a.value() / b.value())                                      \
  NE_CHANGES(T) NE_CHANGES(T##2)                                                                     \
  NE_SATURATED(T, +, __hadd) NE_SATURATED(T, -, __hsub) NE_SATURATED(T, *, __hmul)                      \
  RAW static inline T __hneg(T a) { return T::of(a.raw_bits ^ 0x8000); }                       \
  RAW static inline T __habs(T a) { return T::of(a.raw_bits & 0x7fff); }                       \
  RAW static inline T##2 __hneg2(T##2 a) { return {__hneg(a.x), __hneg(a.y)}; }                \
  RAW static inline T##2 __habs2(T##2 a) { return {__habs(a.x), __habs(a.y)}; }                \
  RAW static inline T operator+(T a) { return a; }                                             \
  RAW static inline T operator-(T a) { return __hneg(a); }                                     \
  RAW static inline T##2 operator+(T##2 a) { return a; }                                       \
  RAW static inline T##2 operator-(T##2 a) { return __hneg2(a); }                              \
  NE_COMPARISON(T, eq, a == b) NE_COMPARISON(T, ne, a < b || a > b)                                  \
  NE_COMPARISON(T, lt, a < b) NE_COMPARISON(T, le, a <= b)                                           \
  NE_COMPARISON(T, gt, a > b) NE_COMPARISON(T, ge, a >= b)                                           \
  NE_COMPARISON(T, equ, !(a < b || a > b)) NE_COMPARISON(T, neu, !(a == b))                          \
  NE_COMPARISON(T, ltu, !(a >= b)) NE_COMPARISON(T, leu, !(a > b))                                   \
  NE_COMPARISON(T, gtu, !(a <= b)) NE_COMPARISON(T, geu, !(a < b))                                   \
  NE_COMPARISON_OPERATOR(T, ==, eq) NE_COMPARISON_OPERATOR(T, !=, neu)                               \
  NE_COMPARISON_OPERATOR(T, <, lt) NE_COMPARISON_OPERATOR(T, <=, le)                                 \
  NE_COMPARISON_OPERATOR(T, >, gt) NE_COMPARISON_OPERATOR(T, >=, ge)                                 \
  RAW static inline bool __hisnan(T a) { return a.value() != a.value(); }                      \
  RAW static inline int __hisinf(T a) { return isinf(a.value()) ? a.value() < 0 ? -1 : 1 : 0; } \
  RAW static inline T##2 __hisnan2(T##2 a) { return {T((float)__hisnan(a.x)), T((float)__hisnan(a.y))}; } \
  NE_EXTREME(T, __hmax, >) NE_EXTREME(T, __hmin, <)                                                  \
  RAW static inline T __hfma(T a, T b, T c) {                                                  \
    return T(runtime::fused_to_half_way(a.value(), b.value(), c.value()));                     \
  }                                                                                            \
  RAW static inline T __hfma_sat(T a, T b, T c) { return T(__saturatef(__hfma(a, b, c).value())); } \
  RAW static inline T __hfma_relu(T a, T b, T c) { return __hmax_nan(__hfma(a, b, c), T(0.0f)); } \
  RAW static inline T##2 __hfma2(T##2 a, T##2 b, T##2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; } \
  RAW static inline T##2 __hfma2_sat(T##2 a, T##2 b, T##2 c) {                                 \
    return {__hfma_sat(a.x, b.x, c.x), __hfma_sat(a.y, b.y, c.y)};                             \
  }                                                                                            \
  RAW static inline T##2 __hfma2_relu(T##2 a, T##2 b, T##2 c) {                                \
    return {__hfma_relu(a.x, b.x, c.x), __hfma_relu(a.y, b.y, c.y)};                           \
  }                                                                                            \
  NE_FUNCTION(T, exp, expf(x)) NE_FUNCTION(T, exp2, exp2f(x)) NE_FUNCTION(T, exp10, exp10f(x))          \
  NE_FUNCTION(T, log, logf(x)) NE_FUNCTION(T, log2, log2f(x)) NE_FUNCTION(T, log10, log10f(x))          \
  NE_FUNCTION(T, sin, sinf(x)) NE_FUNCTION(T, cos, cosf(x)) NE_FUNCTION(T, tanh, tanhf(x))              \
  NE_FUNCTION(T, tanh_approx, tanhf(x)) NE_FUNCTION(T, sqrt, sqrtf(x)) NE_FUNCTION(T, rcp, 1 / x)       \
  NE_FUNCTION(T, rsqrt, runtime::reciprocal_root((double)x)) NE_FUNCTION(T, ceil, ceilf(x))          \
  NE_FUNCTION(T, floor, floorf(x)) NE_FUNCTION(T, trunc, truncf(x)) NE_FUNCTION(T, rint, rintf(x))      \
  RAW static inline float __low2float(T##2 a) { return a.x.value(); }                          \
  RAW static inline float __high2float(T##2 a) { return a.y.value(); }                         \
  RAW static inline T##2 __lowhigh2highlow(T##2 a) { return {a.y, a.x}; }                      \
  /* A pair's two numbers are added separately, since the GPU guarantees no more. */           \
  RAW static inline T atomicAdd(T* address, T value, int line = __builtin_LINE()) {            \
    float more = value.value();                                                                \
    auto change = [more](runtime::Bits16 old) RAW { return runtime::TO(runtime::FROM(old) + more); }; \
    return T::of(runtime::atomic(&address->raw_bits, change, line));                           \
  }                                                                                            \
  RAW static inline T##2 atomicAdd(T##2* address, T##2 value, int line = __builtin_LINE()) {   \
    float low = value.x.value(), high = value.y.value();                                       \
    auto change = [low, high](unsigned old) RAW {                                              \
      unsigned a = runtime::TO(runtime::FROM((runtime::Bits16)old) + low);                     \
      return a | (unsigned)runtime::TO(runtime::FROM((runtime::Bits16)(old >> 16)) + high) << 16; \
    };                                                                                         \
    unsigned old = runtime::atomic((unsigned*)address, change, line);                          \
    return {T::of(old & 0xffff), T::of(old >> 16)};                                            \
  }
NE_SIXTEEN_BITS(__half, to_half, from_half)
NE_SIXTEEN_BITS(__nv_bfloat16, to_bfloat16, from_bfloat16)
namespace runtime {
template <> constexpr bool shuffled<__half> = true;
template <> constexpr bool shuffled<__half2> = true;
template <> constexpr bool shuffled<__nv_bfloat16> = true;
template <> constexpr bool shuffled<__nv_bfloat162> = true;
}  // namespace runtime
typedef __half half;
typedef __half2 half2;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

// Conversions, under CUDA's names for each of the two types.
#define NE_FROM_AND_TO(T, NAME, WHOLE, C)                                                                   \
  RAW static inline T __##WHOLE##2##NAME##_rn(C x) { return T(x); }                                      \
  RAW static inline C __##NAME##2##WHOLE##_rn(T h) { return runtime::whole<C>(rintf(h.value())); }       \
  RAW static inline C __##NAME##2##WHOLE##_rz(T h) { return runtime::whole<C>(truncf(h.value())); }      \
  RAW static inline C __##NAME##2##WHOLE##_rd(T h) { return runtime::whole<C>(floorf(h.value())); }      \
  RAW static inline C __##NAME##2##WHOLE##_ru(T h) { return runtime::whole<C>(ceilf(h.value())); }
#define NE_CONVERSIONS(T, NAME, MAKE)                                                                       \
  RAW static inline T __float2##NAME(float x) { return T(x); }                                           \
  RAW static inline T __float2##NAME##_rn(float x) { return T(x); }                                      \
  RAW static inline T __double2##NAME(double x) { return T(x); }                                         \
  RAW static inline float __##NAME##2float(T h) { return h.value(); }                                    \
  RAW static inline T##2 __float2##NAME##2_rn(float x) { return {T(x), T(x)}; }                          \
  RAW static inline T##2 __floats2##NAME##2_rn(float a, float b) { return {T(a), T(b)}; }                \
  RAW static inline T##2 __float22##NAME##2_rn(float2 a) { return {T(a.x), T(a.y)}; }                    \
  RAW static inline float2 __##NAME##22float2(T##2 a) { return {a.x.value(), a.y.value()}; }             \
  RAW static inline T##2 __##NAME##2##NAME##2(T a) { return {a, a}; }                                    \
  RAW static inline T##2 __halves2##NAME##2(T a, T b) { return {a, b}; }                                 \
  RAW static inline T##2 MAKE(T a, T b) { return {a, b}; }                                               \
  RAW static inline T __low2##NAME(T##2 a) { return a.x; }                                               \
  RAW static inline T __high2##NAME(T##2 a) { return a.y; }                                              \
  RAW static inline T##2 __low2##NAME##2(T##2 a) { return {a.x, a.x}; }                                  \
  RAW static inline T##2 __high2##NAME##2(T##2 a) { return {a.y, a.y}; }                                 \
  RAW static inline T##2 __lows2##NAME##2(T##2 a, T##2 b) { return {a.x, b.x}; }                         \
  RAW static inline T##2 __highs2##NAME##2(T##2 a, T##2 b) { return {a.y, b.y}; }                        \
  RAW static inline unsigned short __##NAME##_as_ushort(T h) { return h.raw_bits; }                      \
  RAW static inline short __##NAME##_as_short(T h) { return (short)h.raw_bits; }                         \
  RAW static inline T __ushort_as_##NAME(unsigned short u) { return T::of(u); }                          \
  RAW static inline T __short_as_##NAME(short u) { return T::of((unsigned short)u); }                    \
  NE_FROM_AND_TO(T, NAME, int, int) NE_FROM_AND_TO(T, NAME, uint, unsigned)                                    \
  NE_FROM_AND_TO(T, NAME, short, short) NE_FROM_AND_TO(T, NAME, ushort, unsigned short)                        \
  NE_FROM_AND_TO(T, NAME, ll, long long) NE_FROM_AND_TO(T, NAME, ull, unsigned long long)
NE_CONVERSIONS(__half, half, make_half2)
NE_CONVERSIONS(__nv_bfloat16, bfloat16, make_bfloat162)

#undef NE_SEEN
#undef NE_COPIED
#undef NE_CHANGE
#undef NE_CHANGES
#undef NE_OPERATION
#undef NE_SATURATED
#undef NE_COMPARISON
#undef NE_COMPARISON_OPERATOR
#undef NE_EXTREME
#undef NE_FUNCTION
#undef NE_SIXTEEN_BITS
#undef NE_FROM_AND_TO
#undef NE_CONVERSIONS
#include "end_raw.h"
