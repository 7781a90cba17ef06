// device.h: lets the text of a CUDA C++ kernel compile with a host C++ compiler. It stands before every kernel.
//
// A warp function, a barrier and an atomic take one hidden last argument: the line they are called from, by which
// the checker names them. A function here that touches memory for the kernel is RAW and says so to `check_access`.
#pragma once
#include <math.h>
#include <string.h>

#include "thread.h"

// ---- keywords ---------------------------------------------------------------------------------------------

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ thread_local  // one operating system thread runs one block at a time
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

#define LINE int line = __builtin_LINE()  // as a default argument: the line of the call

// ---- what the runtime offers ------------------------------------------------------------------------------

RUNTIME_API void barrier(int line);
RUNTIME_API int barrier_reduce(int predicate, int operation, int line);  // operation: 0 count, 1 and, 2 or
RUNTIME_API void warp_function(unsigned mask, runtime::WarpFunction, void* argument, const char* name, int line);
RUNTIME_API unsigned warp_alive();
RUNTIME_API void shared_array(void* start, size_t bytes, size_t element, int columns, const char* name);
RUNTIME_API void* dynamic_shared(size_t element, const char* name);
RUNTIME_API void fence(int line);
RUNTIME_API void let_others_run();
RUNTIME_API void check_access(const void* address, int bytes, int kind, int line);  // kind: see thread.h
RUNTIME_API void check_from(const void* address, int bytes, int kind, void* caller);
RUNTIME_API void check_range(const void* start, size_t bytes, int kind, int line);
RUNTIME_API void check_space(const void* address, bool shared, int line);
RUNTIME_API void check_visit(const void* address, int bytes, int kind, int line);
RUNTIME_API void count_flops(int flops, int line);
RUNTIME_API void async_copy(void* shared, const void* global, int bytes, int line);
RUNTIME_API void async_commit();
RUNTIME_API void async_wait(int groups_left);
RUNTIME_API void fail(const char* message, int line);
RUNTIME_API int print(const char* format, ...) __attribute__((format(printf, 1, 2)));
RUNTIME_API long long nanoseconds();
RUNTIME_API void launch(void (*call)(void (*)(), void**), void (*kernel)(), void** arguments, void* config);

// ---- vector types -----------------------------------------------------------------------------------------

#define VECTORS(T, NAME, ALIGN2, ALIGN4)                                      \
  struct NAME##1 { T x; };                                                    \
  struct __align__(ALIGN2) NAME##2 { T x, y; };                               \
  struct __align__(ALIGN4) NAME##4 { T x, y, z, w; };                         \
  static inline NAME##1 make_##NAME##1(T x) { return {x}; }                   \
  static inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }           \
  static inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }   \
  static inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define OF_3(T, NAME) struct NAME##3 { T x, y, z; };  // uint3 stands in thread.h
OF_3(float, float) OF_3(double, double) OF_3(int, int) OF_3(short, short) OF_3(unsigned short, ushort)
OF_3(signed char, char) OF_3(unsigned char, uchar) OF_3(long long, longlong) OF_3(unsigned long long, ulonglong)
VECTORS(float, float, 8, 16) VECTORS(double, double, 16, 16) VECTORS(int, int, 8, 16) VECTORS(unsigned, uint, 8, 16)
VECTORS(short, short, 4, 8) VECTORS(unsigned short, ushort, 4, 8)
VECTORS(signed char, char, 2, 4) VECTORS(unsigned char, uchar, 2, 4)
VECTORS(long long, longlong, 16, 16) VECTORS(unsigned long long, ulonglong, 16, 16)

// ---- threads and barriers ---------------------------------------------------------------------------------

#define threadIdx (runtime::self()->threadIdx)
#define blockIdx (runtime::self()->blockIdx)
#define blockDim (runtime::self()->blockDim)
#define gridDim (runtime::self()->gridDim)
static constexpr int warpSize = 32;

RAW static inline void __syncthreads(LINE) { barrier(line); }
RAW static inline int __syncthreads_count(int predicate, LINE) { return barrier_reduce(predicate, 0, line); }
RAW static inline int __syncthreads_and(int predicate, LINE) { return barrier_reduce(predicate, 1, line); }
RAW static inline int __syncthreads_or(int predicate, LINE) { return barrier_reduce(predicate, 2, line); }
RAW static inline void __threadfence(LINE) { fence(line); }
RAW static inline void __threadfence_block() {}
RAW static inline void __threadfence_system(LINE) { fence(line); }
RAW static inline void __trap(LINE) { fail("__trap()", line); }
RAW static inline void __nanosleep(unsigned) { let_others_run(); }
RAW static inline long long clock64() { return nanoseconds(); }
#define clock clock64  // a macro, because the C library may declare one
#define printf print
#define assert(condition) ((condition) ? (void)0 : fail("assertion failed: " #condition, __LINE__))

// ---- warp functions: each lane leaves a pointer to its arguments and waits; the last one to arrive runs the
// function for all of them.

namespace runtime {

template <class T> struct ShuffleArgument { T in, out; int source; };

template <class T> RAW void shuffle_lanes(void** argument, unsigned lanes) {
  for (unsigned rest = lanes; rest; rest &= rest - 1) {
    auto* mine = (ShuffleArgument<T>*)argument[__builtin_ctz(rest)];
    bool there = lanes >> mine->source & 1;
    mine->out = there ? ((ShuffleArgument<T>*)argument[mine->source])->in : T();
    if (!there) mine->source = -1;
  }
}

template <class T> RAW T shuffle(unsigned mask, T value, int source, const char* name, int line) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  ShuffleArgument<T> argument{value, value, source & 31};
  warp_function(mask, shuffle_lanes<T>, &argument, name, line);
  if (argument.source < 0) fail("a shuffle reads from a lane that takes no part in it", line);
  return argument.out;
}

struct Vote { unsigned predicate, ballot, lanes; };

RAW static inline void vote_lanes(void** argument, unsigned lanes) {
  unsigned ballot = 0;
  for (unsigned rest = lanes; rest; rest &= rest - 1) {
    int lane = __builtin_ctz(rest);
    if (((Vote*)argument[lane])->predicate) ballot |= 1u << lane;
  }
  for (unsigned rest = lanes; rest; rest &= rest - 1) {
    auto* mine = (Vote*)argument[__builtin_ctz(rest)];
    mine->ballot = ballot;
    mine->lanes = lanes;
  }
}

RAW static inline Vote vote(unsigned mask, int predicate, const char* name, int line) {
  Vote mine{predicate != 0, 0, 0};
  warp_function(mask, vote_lanes, &mine, name, line);
  return mine;
}

template <class T> struct Match { T value; unsigned lanes; };

template <class T> RAW void match_lanes(void** argument, unsigned lanes) {
  for (unsigned rest = lanes; rest; rest &= rest - 1) {
    auto* mine = (Match<T>*)argument[__builtin_ctz(rest)];
    for (unsigned others = lanes; others; others &= others - 1) {
      int lane = __builtin_ctz(others);
      if (memcmp(&mine->value, &((Match<T>*)argument[lane])->value, sizeof(T)) == 0) mine->lanes |= 1u << lane;
    }
  }
}

template <class T, class Operation> RAW void reduce_lanes(void** argument, unsigned lanes) {
  T result = *(T*)argument[__builtin_ctz(lanes)];
  for (unsigned rest = lanes & (lanes - 1); rest; rest &= rest - 1)
    result = Operation::of(result, *(T*)argument[__builtin_ctz(rest)]);
  for (unsigned rest = lanes; rest; rest &= rest - 1) *(T*)argument[__builtin_ctz(rest)] = result;
}

template <class Operation, class T> RAW T reduce(unsigned mask, T value, const char* name, int line) {
  warp_function(mask, reduce_lanes<T, Operation>, &value, name, line);
  return value;
}

RAW static inline void no_lanes(void**, unsigned) {}

#define OPERATION(NAME, EXPRESSION) \
  struct NAME { template <class T> RAW static T of(T a, T b) { return EXPRESSION; } };
OPERATION(Add, a + b) OPERATION(Min, a < b ? a : b) OPERATION(Max, a > b ? a : b)
OPERATION(And, a & b) OPERATION(Or, a | b) OPERATION(Xor, a ^ b)

}  // namespace runtime

RAW static inline void __syncwarp(unsigned mask = 0xffffffffu, LINE) {
  warp_function(mask, runtime::no_lanes, nullptr, "__syncwarp", line);
}
RAW static inline unsigned __activemask() { return warp_alive(); }

// `first`: the first lane of the segment of `width` lanes that this lane belongs to.
#define SHUFFLE(NAME, SOURCE)                                                                       \
  template <class T> RAW T NAME(unsigned mask, T value, int by, int width = 32, LINE) {             \
    int lane = runtime::self()->lane, first = lane & ~(width - 1);                                  \
    return runtime::shuffle(mask, value, SOURCE, #NAME, line);                                      \
  }
SHUFFLE(__shfl_sync, first + (by & (width - 1)))
SHUFFLE(__shfl_up_sync, lane - by < first ? lane : lane - by)
SHUFFLE(__shfl_down_sync, lane + by >= first + width ? lane : lane + by)
SHUFFLE(__shfl_xor_sync, (lane ^ by) >= first + width ? lane : (lane ^ by))

RAW static inline unsigned __ballot_sync(unsigned mask, int predicate, LINE) {
  return runtime::vote(mask, predicate, "__ballot_sync", line).ballot;
}
RAW static inline int __any_sync(unsigned mask, int predicate, LINE) {
  return runtime::vote(mask, predicate, "__any_sync", line).ballot != 0;
}
RAW static inline int __all_sync(unsigned mask, int predicate, LINE) {
  runtime::Vote vote = runtime::vote(mask, predicate, "__all_sync", line);
  return vote.ballot == vote.lanes;
}

template <class T> RAW unsigned __match_any_sync(unsigned mask, T value, LINE) {
  runtime::Match<T> mine{value, 0};
  warp_function(mask, runtime::match_lanes<T>, &mine, "__match_any_sync", line);
  return mine.lanes;
}

#define REDUCE(NAME, OPERATION, T)                                          \
  RAW static inline T NAME(unsigned mask, T value, LINE) {                  \
    return runtime::reduce<runtime::OPERATION>(mask, value, #NAME, line);   \
  }
REDUCE(__reduce_add_sync, Add, int) REDUCE(__reduce_add_sync, Add, unsigned)
REDUCE(__reduce_min_sync, Min, int) REDUCE(__reduce_min_sync, Min, unsigned)
REDUCE(__reduce_max_sync, Max, int) REDUCE(__reduce_max_sync, Max, unsigned)
REDUCE(__reduce_and_sync, And, unsigned) REDUCE(__reduce_or_sync, Or, unsigned)
REDUCE(__reduce_xor_sync, Xor, unsigned)

// ---- atomics: real ones, because blocks run in parallel; the checker takes them as one access -------------

namespace runtime {

template <class T, class Change> RAW T atomic(T* address, Change change, int line) {
  check_access(address, sizeof(T), ATOMIC, line);
  T old;
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  for (;;) {
    T changed = change(old);
    if (__atomic_compare_exchange(address, &old, &changed, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return old;
  }
}

struct Shared {  // what `shared_array` wants to know of a declaration
  template <class T> struct Of { enum { element = sizeof(T), columns = 0 }; };
  template <class T, size_t N> struct Of<T[N]> { enum { element = Of<T>::element, columns = 0 }; };
  template <class T, size_t N, size_t M> struct Of<T[N][M]> {
    enum { element = Of<T>::element, columns = sizeof(T[M]) / Of<T>::element };
  };
};

}  // namespace runtime

#define SHARED_ARRAY(a)                                                              \
  shared_array((void*)&(a), sizeof(a), runtime::Shared::Of<decltype(a)>::element,    \
               runtime::Shared::Of<decltype(a)>::columns, #a)

#define ATOMIC_FUNCTION(NAME, T, EXPRESSION)                                                     \
  RAW static inline T NAME(T* address, T value, LINE) {                                          \
    auto change = [value](T old) RAW -> T { return EXPRESSION; };                                \
    return runtime::atomic(address, change, line);                                               \
  }
#define ATOMIC_FUNCTIONS(T)                                                                      \
  ATOMIC_FUNCTION(atomicAdd, T, old + value) ATOMIC_FUNCTION(atomicSub, T, old - value)          \
  ATOMIC_FUNCTION(atomicMin, T, value < old ? value : old)                                       \
  ATOMIC_FUNCTION(atomicMax, T, old < value ? value : old)                                       \
  ATOMIC_FUNCTION(atomicAnd, T, old & value) ATOMIC_FUNCTION(atomicOr, T, old | value)           \
  ATOMIC_FUNCTION(atomicXor, T, old ^ value) ATOMIC_FUNCTION(atomicExch, T, ((void)old, value))  \
  RAW static inline T atomicCAS(T* address, T expected, T value, LINE) {                         \
    auto change = [expected, value](T old) RAW -> T { return old == expected ? value : old; };   \
    T old = runtime::atomic(address, change, line);                                              \
    if (old != expected) let_others_run(); /* a spinning thread must not keep the others out */  \
    return old;                                                                                  \
  }
ATOMIC_FUNCTIONS(int) ATOMIC_FUNCTIONS(unsigned) ATOMIC_FUNCTIONS(unsigned long long)
ATOMIC_FUNCTION(atomicAdd, float, old + value) ATOMIC_FUNCTION(atomicAdd, double, old + value)
ATOMIC_FUNCTION(atomicExch, float, ((void)old, value))
ATOMIC_FUNCTION(atomicMin, long long, value < old ? value : old)
ATOMIC_FUNCTION(atomicMax, long long, old < value ? value : old)
ATOMIC_FUNCTION(atomicInc, unsigned, old >= value ? 0 : old + 1)
ATOMIC_FUNCTION(atomicDec, unsigned, old == 0 || old > value ? value : old - 1)

// Loads and stores that say which cache they are for: here there is none to choose.
#define LOAD(NAME)                                                       \
  template <class T> RAW static inline T NAME(const T* address, LINE) {  \
    check_access(address, sizeof(T), runtime::READ, line);               \
    return *address;                                                     \
  }
LOAD(__ldg) LOAD(__ldca) LOAD(__ldcg) LOAD(__ldcs) LOAD(__ldcv) LOAD(__ldlu)
#define STORE(NAME)                                                             \
  template <class T> RAW static inline void NAME(T* address, T value, LINE) {   \
    check_access(address, sizeof(T), runtime::WRITE, line);                     \
    *address = value;                                                           \
  }
STORE(__stwb) STORE(__stcg) STORE(__stcs) STORE(__stwt)

// The compiler does not tell the checker of these two.
RAW static inline void* checked_memcpy(void* to, const void* from, size_t bytes, LINE) {
  check_range(from, bytes, runtime::READ, line);
  check_range(to, bytes, runtime::WRITE, line);
  return memcpy(to, from, bytes);
}
RAW static inline void* checked_memset(void* to, int value, size_t bytes, LINE) {
  check_range(to, bytes, runtime::WRITE, line);
  return memset(to, value, bytes);
}

// ---- numbers ----------------------------------------------------------------------------------------------

#define MIN_MAX(T)                                          \
  RAW static inline T min(T a, T b) { return b < a ? b : a; } \
  RAW static inline T max(T a, T b) { return a < b ? b : a; }
MIN_MAX(int) MIN_MAX(unsigned) MIN_MAX(long) MIN_MAX(unsigned long) MIN_MAX(long long)
MIN_MAX(unsigned long long) MIN_MAX(float) MIN_MAX(double)
RAW static inline unsigned min(int a, unsigned b) { return min((unsigned)a, b); }
RAW static inline unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
RAW static inline unsigned max(int a, unsigned b) { return max((unsigned)a, b); }
RAW static inline unsigned max(unsigned a, int b) { return max(a, (unsigned)b); }

namespace runtime {
template <class To, class From> RAW static inline To bits(From from) {
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
RAW static inline float reciprocal_root(float x) { return 1.0f / sqrtf(x); }
RAW static inline double reciprocal_root(double x) { return 1.0 / sqrt(x); }
RAW static inline float sine_pi(float x) { return (float)sin(3.14159265358979323846 * fmod(x, 2)); }
RAW static inline float cosine_pi(float x) { return (float)cos(3.14159265358979323846 * fmod(x, 2)); }
#define BOTH(NAME, SINE, COSINE)                                        \
  RAW static inline void NAME(float x, float* s, float* c, LINE) {      \
    check_access(s, sizeof *s, WRITE, line);                            \
    check_access(c, sizeof *c, WRITE, line);                            \
    *s = SINE(x);                                                       \
    *c = COSINE(x);                                                     \
  }
BOTH(sine_and_cosine, sinf, cosf) BOTH(sine_and_cosine_pi, sine_pi, cosine_pi)
}  // namespace runtime

// Macros, because newer C libraries declare some of these.
#define rsqrt runtime::reciprocal_root
#define rsqrtf runtime::reciprocal_root
#define sinpif runtime::sine_pi
#define cospif runtime::cosine_pi
#define sincosf runtime::sine_and_cosine
#define __sincosf runtime::sine_and_cosine
#define sincospif runtime::sine_and_cosine_pi
#define __expf expf
#define __exp10f exp10f
#define __logf logf
#define __log2f log2f
#define __log10f log10f
#define __powf powf
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
#define __tanhf tanhf
RAW static inline float fdividef(float x, float y) { return x / y; }
RAW static inline float __fdividef(float x, float y) { return x / y; }
RAW static inline float __frcp_rn(float x) { return 1.0f / x; }
RAW static inline float __fsqrt_rn(float x) { return sqrtf(x); }
RAW static inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
RAW static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
RAW static inline float __fadd_rn(float a, float b) { return a + b; }
RAW static inline float __fsub_rn(float a, float b) { return a - b; }
RAW static inline float __fdiv_rn(float a, float b) { return a / b; }
RAW static inline float __fmul_rn(float a, float b) { return a * b; }
RAW static inline float __saturatef(float x) { return x < 0 ? 0.0f : x > 1 ? 1.0f : x; }
RAW static inline int __float_as_int(float x) { return runtime::bits<int>(x); }
RAW static inline unsigned __float_as_uint(float x) { return runtime::bits<unsigned>(x); }
RAW static inline float __int_as_float(int x) { return runtime::bits<float>(x); }
RAW static inline float __uint_as_float(unsigned x) { return runtime::bits<float>(x); }
RAW static inline int __float2int_rn(float x) { return (int)rintf(x); }
RAW static inline int __float2int_rz(float x) { return (int)x; }
RAW static inline int __float2int_rd(float x) { return (int)floorf(x); }
RAW static inline int __float2int_ru(float x) { return (int)ceilf(x); }
RAW static inline unsigned __float2uint_rn(float x) { return (unsigned)rintf(x); }
RAW static inline float __int2float_rn(int x) { return (float)x; }
RAW static inline float __uint2float_rn(unsigned x) { return (float)x; }
RAW static inline int __popc(unsigned x) { return __builtin_popcount(x); }
RAW static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
RAW static inline int __ffs(int x) { return __builtin_ffs(x); }
RAW static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
RAW static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
RAW static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
RAW static inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
RAW static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
RAW static inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int i = 0; i < 32; i++) reversed |= (x >> i & 1) << (31 - i);
  return reversed;
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

// ---- handing a kernel to the launcher ---------------------------------------------------------------------

namespace runtime {

template <int... I> struct Sequence {};
template <int N, int... I> struct Count : Count<N - 1, N - 1, I...> {};
template <int... I> struct Count<0, I...> { typedef Sequence<I...> type; };

template <class F> struct Signature;
template <class... A> struct Signature<void (*)(A...)> {
  template <class T> RAW static T load(const void* argument) {  // by bytes: a copy of a __half would be checked
    T value;
    __builtin_memcpy((void*)&value, argument, sizeof value);
    return value;
  }
  template <int... I> RAW static void unpack(void (*kernel)(A...), void** arguments, Sequence<I...>) {
    kernel(load<A>(arguments[I])...);
  }
  RAW static void call(void (*kernel)(), void** arguments) {
    unpack((void (*)(A...))kernel, arguments, typename Count<sizeof...(A)>::type());
  }
};

}  // namespace runtime

#define EXPORT_KERNEL(NUMBER, ...)                                                               \
  extern "C" __attribute__((visibility("default"))) RAW void run_kernel_##NUMBER(void** arguments, void* config) { \
    launch(runtime::Signature<decltype(&__VA_ARGS__)>::call, (void (*)())&__VA_ARGS__, arguments, config);         \
  }

#if defined(CHECKED) && defined(__clang_major__) && __clang_major__ < 15 && defined(__ELF__)
// An older Clang copies and clears structs with the C library's functions: the checker has to see those, too.
asm(".set memcpy, __tsan_memcpy\n.set memmove, __tsan_memmove\n.set memset, __tsan_memset");
#endif

// NVRTC has no C or C++ library. This side is as strict, so that what compiles here compiles there.
#define memcpy checked_memcpy
#define memset checked_memset
#undef INFINITY
#undef NAN
#undef HUGE_VALF
#undef M_PI
#undef LINE
#pragma GCC poison __exp2f __sqrtf __fabsf __floorf __fmaf  // glibc's own
#pragma GCC poison INFINITY NAN HUGE_VALF M_PI FLT_MAX FLT_EPSILON INT_MAX std
#pragma GCC poison uint8_t uint16_t uint32_t uint64_t int8_t int16_t int32_t int64_t
#define CUDART_INF_F __int_as_float(0x7f800000)
#define CUDART_NAN_F __int_as_float(0x7fffffff)
