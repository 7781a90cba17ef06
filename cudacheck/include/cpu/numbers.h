// numbers.h: CUDA's mathematical functions as NVRTC declares them, for float and for double, so that a call with one of
// each is ambiguous here too. They call the C library, but include no header of it, because kernels have none.

// ---- functions of the C library ---------------------------------------------------------------------------

#define ONE(NAME)                                             \
  extern "C" double NAME(double);                             \
  extern "C" float NAME##f(float);                            \
  RAW static inline float NAME(float x) { return NAME##f(x); }
#define TWO(NAME)                                                            \
  extern "C" double NAME(double, double);                                    \
  extern "C" float NAME##f(float, float);                                    \
  RAW static inline float NAME(float x, float y) { return NAME##f(x, y); }
#define TO(T, NAME)                                           \
  extern "C" T NAME(double);                                  \
  extern "C" T NAME##f(float);                                \
  RAW static inline T NAME(float x) { return NAME##f(x); }
#define WITH(T, NAME)                                                      \
  extern "C" double NAME(double, T);                                       \
  extern "C" float NAME##f(float, T);                                      \
  RAW static inline float NAME(float x, T n) { return NAME##f(x, n); }

ONE(acos) ONE(acosh) ONE(asin) ONE(asinh) ONE(atan) ONE(atanh) ONE(cbrt) ONE(ceil) ONE(cos) ONE(cosh) ONE(erf) ONE(erfc)
ONE(exp) ONE(exp2) ONE(exp10) ONE(expm1) ONE(fabs) ONE(floor) ONE(lgamma) ONE(log) ONE(log10) ONE(log1p) ONE(log2)
ONE(logb) ONE(nearbyint) ONE(rint) ONE(round) ONE(sin) ONE(sinh) ONE(sqrt) ONE(tan) ONE(tanh) ONE(tgamma) ONE(trunc)
TWO(atan2) TWO(copysign) TWO(fdim) TWO(fmax) TWO(fmin) TWO(fmod) TWO(hypot) TWO(nextafter) TWO(pow) TWO(remainder)
TO(int, ilogb) TO(long, lrint) TO(long, lround) TO(long long, llrint) TO(long long, llround)
WITH(int, ldexp) WITH(int, scalbn) WITH(long, scalbln)
extern "C" double fma(double, double, double);
extern "C" float fmaf(float, float, float);
RAW static inline float fma(float x, float y, float z) { return fmaf(x, y, z); }
RAW static inline float pow(float x, int y) { return powf(x, (float)y); }
RAW static inline double pow(double x, int y) { return pow(x, (double)y); }
extern "C" double j0(double), j1(double), y0(double), y1(double), jn(int, double), yn(int, double);
extern "C" float j0f(float), j1f(float), y0f(float), y1f(float), jnf(int, float), ynf(int, float);
extern "C" int abs(int);
extern "C" long labs(long);
extern "C" long long llabs(long long);
RAW static inline long abs(long x) { return labs(x); }
RAW static inline long long abs(long long x) { return llabs(x); }
RAW static inline float abs(float x) { return fabsf(x); }
RAW static inline double abs(double x) { return fabs(x); }

// Functions that write through a pointer report the access.
#define FREXP(T, NAME, BUILTIN)                                  \
  RAW static inline T NAME(T x, int* exponent, LINE) {           \
    runtime::check_access(exponent, sizeof *exponent, runtime::WRITE, line); \
    return BUILTIN(x, exponent);                                 \
  }
FREXP(double, frexp, __builtin_frexp) FREXP(float, frexp, __builtin_frexpf) FREXP(float, frexpf, __builtin_frexpf)
#define MODF(T, NAME, BUILTIN)                                   \
  RAW static inline T NAME(T x, T* whole, LINE) {                \
    runtime::check_access(whole, sizeof *whole, runtime::WRITE, line);    \
    return BUILTIN(x, whole);                                    \
  }
MODF(double, modf, __builtin_modf) MODF(float, modf, __builtin_modff) MODF(float, modff, __builtin_modff)
#define REMQUO(T, NAME, BUILTIN)                                 \
  RAW static inline T NAME(T x, T y, int* quotient, LINE) {      \
    runtime::check_access(quotient, sizeof *quotient, runtime::WRITE, line); \
    return BUILTIN(x, y, quotient);                              \
  }
REMQUO(double, remquo, __builtin_remquo) REMQUO(float, remquo, __builtin_remquof)
REMQUO(float, remquof, __builtin_remquof)
RAW static inline void* memcpy(void* to, const void* from, size_t bytes, LINE) {
  runtime::check_range(from, bytes, runtime::READ, line);
  runtime::check_range(to, bytes, runtime::WRITE, line);
  return __builtin_memcpy(to, from, bytes);
}
RAW static inline void* memset(void* to, int value, size_t bytes, LINE) {
  runtime::check_range(to, bytes, runtime::WRITE, line);
  return __builtin_memset(to, value, bytes);
}

#define CLASS(T)                                                                    \
  RAW static inline bool isnan(T x) { return __builtin_isnan(x); }                  \
  RAW static inline bool isinf(T x) { return __builtin_isinf(x); }                  \
  RAW static inline bool isfinite(T x) { return __builtin_isfinite(x); }            \
  RAW static inline bool signbit(T x) { return __builtin_signbit(x); }
CLASS(float) CLASS(double)
RAW static inline float nanf(const char*) { return __builtin_nanf(""); }
RAW static inline double nan(const char*) { return __builtin_nan(""); }

// ---- functions of CUDA only -------------------------------------------------------------------------------

#define MIN_MAX(T, MIN, MAX)                                  \
  RAW static inline T MIN(T a, T b) { return b < a ? b : a; } \
  RAW static inline T MAX(T a, T b) { return a < b ? b : a; }
MIN_MAX(int, min, max) MIN_MAX(unsigned, min, max) MIN_MAX(long, min, max) MIN_MAX(unsigned long, min, max)
MIN_MAX(long long, min, max) MIN_MAX(unsigned long long, min, max)
MIN_MAX(unsigned, umin, umax) MIN_MAX(long long, llmin, llmax) MIN_MAX(unsigned long long, ullmin, ullmax)
#define MIXED_MIN_MAX(T, A, B)                                               \
  RAW static inline T min(A a, B b) { return (T)b < (T)a ? (T)b : (T)a; }    \
  RAW static inline T max(A a, B b) { return (T)a < (T)b ? (T)b : (T)a; }
MIXED_MIN_MAX(unsigned, int, unsigned) MIXED_MIN_MAX(unsigned, unsigned, int)
MIXED_MIN_MAX(unsigned long, long, unsigned long) MIXED_MIN_MAX(unsigned long, unsigned long, long)
MIXED_MIN_MAX(unsigned long long, long long, unsigned long long)
MIXED_MIN_MAX(unsigned long long, unsigned long long, long long)
// Of a number and a NaN these return the number.
#define FLOAT_MIN_MAX(T, A, B)                                       \
  RAW static inline T min(A a, B b) { return fmin((T)a, (T)b); }     \
  RAW static inline T max(A a, B b) { return fmax((T)a, (T)b); }
FLOAT_MIN_MAX(float, float, float) FLOAT_MIN_MAX(double, double, double)
FLOAT_MIN_MAX(double, float, double) FLOAT_MIN_MAX(double, double, float)

namespace runtime {
template <class To, class From> RAW static inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same bytes as another type");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}
RAW static inline float reciprocal_root(float x) { return 1.0f / sqrtf(x); }
RAW static inline double reciprocal_root(double x) { return 1.0 / sqrt(x); }
RAW static inline double sine_pi(double x) { return sin(3.14159265358979323846 * fmod(x, 2.0)); }
RAW static inline double cosine_pi(double x) { return cos(3.14159265358979323846 * fmod(x, 2.0)); }
RAW static inline float sine_pi(float x) { return (float)sine_pi((double)x); }
RAW static inline float cosine_pi(float x) { return (float)cosine_pi((double)x); }
}  // namespace runtime

#define SINE_COSINE(T, NAME, SINE, COSINE)                              \
  RAW static inline void NAME(T x, T* s, T* c, LINE) {                  \
    runtime::check_access(s, sizeof *s, runtime::WRITE, line);                   \
    runtime::check_access(c, sizeof *c, runtime::WRITE, line);                   \
    *s = SINE(x);                                                       \
    *c = COSINE(x);                                                     \
  }
SINE_COSINE(float, sincosf, sinf, cosf) SINE_COSINE(float, sincos, sinf, cosf) SINE_COSINE(double, sincos, sin, cos)
SINE_COSINE(float, __sincosf, sinf, cosf)
SINE_COSINE(float, sincospif, runtime::sine_pi, runtime::cosine_pi)
SINE_COSINE(float, sincospi, runtime::sine_pi, runtime::cosine_pi)
SINE_COSINE(double, sincospi, runtime::sine_pi, runtime::cosine_pi)

#define SAME(NAME, OF)                                              \
  RAW static inline double NAME(double x) { return OF(x); }         \
  RAW static inline float NAME(float x) { return OF(x); }           \
  RAW static inline float NAME##f(float x) { return OF(x); }
SAME(rsqrt, runtime::reciprocal_root) SAME(rcbrt, 1 / cbrt)
SAME(sinpi, runtime::sine_pi) SAME(cospi, runtime::cosine_pi)
RAW static inline double normcdf(double x) { return 0.5 * erfc(-0.70710678118654752440 * x); }
RAW static inline float normcdff(float x) { return (float)normcdf((double)x); }
RAW static inline float normcdf(float x) { return normcdff(x); }
#define NORM(T, S)                                                                                       \
  RAW static inline T rhypot##S(T a, T b) { return 1 / hypot(a, b); }                                          \
  RAW static inline T norm3d##S(T a, T b, T c) { return (T)sqrt((double)a * a + (double)b * b + (double)c * c); } \
  RAW static inline T norm4d##S(T a, T b, T c, T d) {                                                          \
    return (T)sqrt((double)a * a + (double)b * b + (double)c * c + (double)d * d);                             \
  }                                                                                                            \
  RAW static inline T rnorm3d##S(T a, T b, T c) { return 1 / norm3d##S(a, b, c); }                             \
  RAW static inline T rnorm4d##S(T a, T b, T c, T d) { return 1 / norm4d##S(a, b, c, d); }
NORM(double, ) NORM(float, f)
RAW static inline double fdivide(double x, double y) { return x / y; }
RAW static inline float fdivide(float x, float y) { return x / y; }
RAW static inline float fdividef(float x, float y) { return x / y; }
RAW static inline float __fdividef(float x, float y) { return x / y; }
RAW static inline float __expf(float x) { return expf(x); }
RAW static inline float __exp10f(float x) { return exp10f(x); }
RAW static inline float __logf(float x) { return logf(x); }
RAW static inline float __log2f(float x) { return log2f(x); }
RAW static inline float __log10f(float x) { return log10f(x); }
RAW static inline float __powf(float x, float y) { return powf(x, y); }
RAW static inline float __sinf(float x) { return sinf(x); }
RAW static inline float __cosf(float x) { return cosf(x); }
RAW static inline float __tanf(float x) { return tanf(x); }
RAW static inline float __tanhf(float x) { return tanhf(x); }
RAW static inline float __saturatef(float x) { return x > 0 ? x > 1 ? 1.0f : x : 0.0f; }  // NaN gives 0

// Each is rounded separately: the compiler must not fuse two of them into one operation.
namespace runtime {
template <class T> RAW static inline T alone(T x) {
#if defined(__x86_64__)
  __asm__("" : "+x"(x));
#elif defined(__aarch64__)
  __asm__("" : "+w"(x));
#endif
  return x;
}
}  // namespace runtime
#define ROUNDED(T, P, SQRT)                                                                  \
  RAW static inline T __##P##add_rn(T x, T y) { return runtime::alone(x + y); }                   \
  RAW static inline T __##P##sub_rn(T x, T y) { return runtime::alone(x - y); }                   \
  RAW static inline T __##P##mul_rn(T x, T y) { return runtime::alone(x * y); }                   \
  RAW static inline T __##P##div_rn(T x, T y) { return runtime::alone(x / y); }                   \
  RAW static inline T __##P##rcp_rn(T x) { return runtime::alone(1 / x); }                        \
  RAW static inline T __##P##sqrt_rn(T x) { return runtime::alone(SQRT(x)); }
ROUNDED(float, f, sqrtf) ROUNDED(double, d, sqrt)
RAW static inline float __frsqrt_rn(float x) { return (float)(1 / sqrt((double)x)); }
RAW static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
RAW static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }

// Reinterpret the same bytes as another type.
RAW static inline int __float_as_int(float x) { return runtime::bits<int>(x); }
RAW static inline unsigned __float_as_uint(float x) { return runtime::bits<unsigned>(x); }
RAW static inline float __int_as_float(int x) { return runtime::bits<float>(x); }
RAW static inline float __uint_as_float(unsigned x) { return runtime::bits<float>(x); }
RAW static inline long long __double_as_longlong(double x) { return runtime::bits<long long>(x); }
RAW static inline double __longlong_as_double(long long x) { return runtime::bits<double>(x); }
RAW static inline int __double2hiint(double x) { return (int)(runtime::bits<long long>(x) >> 32); }
RAW static inline int __double2loint(double x) { return (int)runtime::bits<long long>(x); }
RAW static inline double __hiloint2double(int high, int low) {
  return runtime::bits<double>((unsigned long long)(unsigned)high << 32 | (unsigned)low);
}

// Convert to integers: values out of range saturate, and NaN becomes 0, or the smallest integer for 64 bits.
namespace runtime {
template <class T> RAW static inline T whole(double x) {
  constexpr bool is_signed = (T)-1 < 0;
  constexpr T least = is_signed ? (T)((T)1 << (sizeof(T) * 8 - 1)) : 0, most = (T)~least;
  if (x != x) return sizeof(T) == 8 ? (T)(1ull << 63) : 0;
  return x <= (double)least ? least : x >= (double)most ? most : (T)x;
}
}  // namespace runtime
#define TO_WHOLE(FROM, NAME, T)                                                            \
  RAW static inline T __##FROM##2##NAME##_rn(FROM x) { return runtime::whole<T>(rint(x)); }  \
  RAW static inline T __##FROM##2##NAME##_rz(FROM x) { return runtime::whole<T>(trunc(x)); } \
  RAW static inline T __##FROM##2##NAME##_rd(FROM x) { return runtime::whole<T>(floor(x)); } \
  RAW static inline T __##FROM##2##NAME##_ru(FROM x) { return runtime::whole<T>(ceil(x)); }
#define TO_WHOLES(FROM) \
  TO_WHOLE(FROM, int, int) TO_WHOLE(FROM, uint, unsigned) TO_WHOLE(FROM, ll, long long) TO_WHOLE(FROM, ull, unsigned long long)
TO_WHOLES(float) TO_WHOLES(double)
RAW static inline float __int2float_rn(int x) { return (float)x; }
RAW static inline float __uint2float_rn(unsigned x) { return (float)x; }
RAW static inline float __ll2float_rn(long long x) { return (float)x; }
RAW static inline float __ull2float_rn(unsigned long long x) { return (float)x; }
RAW static inline double __int2double_rn(int x) { return x; }
RAW static inline double __uint2double_rn(unsigned x) { return x; }
RAW static inline double __ll2double_rn(long long x) { return (double)x; }
RAW static inline double __ull2double_rn(unsigned long long x) { return (double)x; }
RAW static inline float __double2float_rn(double x) { return (float)x; }
#define TOWARDS(NAME, CONDITION, TO)                                              \
  RAW static inline float NAME(double x) {                                        \
    float near = (float)x;                                                        \
    return (CONDITION) ? __builtin_nextafterf(near, TO) : near;                   \
  }
TOWARDS(__double2float_rd, near > x, -__builtin_inff()) TOWARDS(__double2float_ru, near < x, __builtin_inff())
TOWARDS(__double2float_rz, x > 0 ? near > x : near < x, 0.0f)

// Functions of integers.
RAW static inline int __popc(unsigned x) { return __builtin_popcount(x); }
RAW static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
RAW static inline int __ffs(int x) { return __builtin_ffs(x); }
RAW static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
RAW static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
RAW static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
RAW static inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
RAW static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
RAW static inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
RAW static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
RAW static inline int __mul24(int a, int b) {  // product of the last 24 bits of each
  return (int)((unsigned)((int)((unsigned)a << 8) >> 8) * (unsigned)((int)((unsigned)b << 8) >> 8));
}
RAW static inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffff) * (b & 0xffffff); }
RAW static inline unsigned __sad(int a, int b, unsigned sum) { return sum + (a < b ? (unsigned)b - a : (unsigned)a - b); }
RAW static inline unsigned __usad(unsigned a, unsigned b, unsigned sum) { return sum + (a < b ? b - a : a - b); }
RAW static inline int __hadd(int a, int b) { return (int)(((long long)a + b) >> 1); }  // the mean, rounded down
RAW static inline int __rhadd(int a, int b) { return (int)(((long long)a + b + 1) >> 1); }
RAW static inline unsigned __uhadd(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a + b) >> 1); }
RAW static inline unsigned __urhadd(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a + b + 1) >> 1); }
RAW static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return (unsigned)(((unsigned long long)high << 32 | low) << (by & 31) >> 32);
}
RAW static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return (unsigned)(((unsigned long long)high << 32 | low) >> (by & 31));
}
RAW static inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned by) {
  return by < 32 ? __funnelshift_l(low, high, by) : low;
}
RAW static inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned by) {
  return by < 32 ? __funnelshift_r(low, high, by) : high;
}
RAW static inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int i = 0; i < 32; i++) reversed |= (x >> i & 1) << (31 - i);
  return reversed;
}
RAW static inline unsigned long long __brevll(unsigned long long x) {
  return (unsigned long long)__brev((unsigned)x) << 32 | __brev((unsigned)(x >> 32));
}
RAW static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  unsigned long long bytes = (unsigned long long)high << 32 | low;
  unsigned picked = 0;
  for (int i = 0; i < 32; i += 8, selector >>= 4) picked |= (unsigned)(bytes >> 8 * (selector & 7) & 0xff) << i;
  return picked;
}
#define DP4A(T, BYTE)                                                              \
  RAW static inline T __dp4a(T a, T b, T sum) {                                    \
    for (int i = 0; i < 32; i += 8) sum += (T)(BYTE)(a >> i) * (T)(BYTE)(b >> i);  \
    return sum;                                                                    \
  }
DP4A(int, signed char) DP4A(unsigned, unsigned char)

#undef ONE
#undef TWO
#undef TO
#undef WITH
#undef FREXP
#undef MODF
#undef REMQUO
#undef CLASS
#undef MIN_MAX
#undef MIXED_MIN_MAX
#undef FLOAT_MIN_MAX
#undef SINE_COSINE
#undef SAME
#undef NORM
#undef ROUNDED
#undef TO_WHOLE
#undef TO_WHOLES
#undef TOWARDS
#undef DP4A
