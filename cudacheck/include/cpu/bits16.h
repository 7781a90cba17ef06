// bits16.h: convert between float and 16 bits, as __half (10 fraction bits) or bfloat16 (the upper half of a float).
#pragma once
#include "raw.h"

namespace runtime {

typedef unsigned short Bits16;

// g++ 12 has the macro on arm64, but not the type.
#if defined(__FLT16_MANT_DIG__) && (defined(__clang__) || defined(__x86_64__) || __GNUC__ > 12)
RAW static inline Bits16 to_half(float x) { return bits<Bits16>((_Float16)x); }
RAW static inline float from_half(Bits16 h) { return (float)bits<_Float16>(h); }
#else  // rounding to nearest even in integer arithmetic
RAW static inline Bits16 to_half(float x) {
  unsigned u = bits<unsigned>(x), sign = u >> 16 & 0x8000, size = u & 0x7fffffff;
  if (size > 0x7f800000) return (Bits16)(sign | 0x7fff);   // NaN
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

// Convert a longer number to a float or double that rounds to the same 16 bits. If bits are cut off, the last bit is
// set, so that a number near a tie does not become a tie (rounding to odd).
RAW static inline float double_to_half_way(double x) {
  float near = (float)x;
  unsigned u = bits<unsigned>(near);
  if (near == x || x != x || u & 1) return near;
  return bits<float>(__builtin_fabs(near) > __builtin_fabs(x) ? u - 1 : u + 1);
}
template <class Long> RAW static inline double long_to_half_way(Long x) {
  constexpr Long most = (Long)1 << 52;
  return x < most && (x > (Long)0 || x > -most) ? (double)x : (double)((x >> 11) | ((x & 2047) != 0)) * 2048;
}
RAW static inline double fused_to_half_way(float a, float b, float c) {
  double product = (double)a * b, sum = product + c, part = sum - product;
  double lost = (product - (sum - part)) + (c - part);
  unsigned long long u = bits<unsigned long long>(sum);
  if (lost == 0 || lost != lost || u & 1) return sum;
  return bits<double>((lost > 0) == (sum > 0) ? u + 1 : u - 1);
}

}  // namespace runtime
#include "end_raw.h"
