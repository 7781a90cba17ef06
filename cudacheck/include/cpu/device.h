// device.h: lets a CUDA C++ kernel compile with a host C++ compiler. It is included before every kernel.
//
// Warp functions, barriers and atomics take a hidden last argument, the line of the call, which the checker reports.
// Functions here that access memory for the kernel are RAW and report the access with `check_access`. No header of the
// C library is included: NVRTC has none, and a text that compiles here should also compile there.
#pragma once
#include "thread.h"

typedef long clock_t;
#define NULL __null

// ---- keywords ---------------------------------------------------------------------------------------------

#define __global__
#define __device__
#define __host__
#define __static__ static __attribute__((__used__))  // inserted by variables.py; `used` keeps unused variables
#define __constant__ __static__
#define __shared__ thread_local  // one operating system thread runs one block at a time
#define __forceinline__ inline
#define __noinline__ __attribute__((__noinline__))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((__aligned__(n)))

#define LINE int line = __builtin_LINE()  // as a default argument: the line of the call

// ---- functions of the runtime -----------------------------------------------------------------------------

// Their symbols begin with nanoeuler_ (in runtime.cpp through macros of compiler.py), so that they differ from the
// symbols of the text's variables.
#define SYMBOL_(PREFIX, NAME) __asm__(PREFIX "nanoeuler_" #NAME)
#define PREFIXED(PREFIX, NAME) SYMBOL_(PREFIX, NAME)
#define STRING(x) #x
#define STRING_OF(x) STRING(x)
#define SYMBOL(NAME) PREFIXED(STRING_OF(__USER_LABEL_PREFIX__), NAME)

namespace runtime {

RUNTIME_API void barrier(int line) SYMBOL(barrier);
RUNTIME_API int barrier_reduce(int predicate, int operation, int line) SYMBOL(barrier_reduce);  // operation: 0 count, 1 and, 2 or
RUNTIME_API void warp_function(unsigned mask, runtime::WarpFunction, void* argument, const char* name, int line) SYMBOL(warp_function);
RUNTIME_API unsigned long long shuffle(unsigned mask, unsigned long long bits, int how, int by, int width, const char* name, int line) SYMBOL(shuffle);
RUNTIME_API void shared_array(void* start, size_t bytes, size_t element, int columns, const char* name) SYMBOL(shared_array);
RUNTIME_API void* dynamic_shared(size_t element, const char* name) SYMBOL(dynamic_shared);
RUNTIME_API void device_variable(runtime::Variable*) SYMBOL(device_variable);
RUNTIME_API void named_barrier(int number, int threads, bool waits, int line) SYMBOL(named_barrier);
RUNTIME_API void fence(bool of_block) SYMBOL(fence);
RUNTIME_API unsigned long long call_path() SYMBOL(call_path);  // a hash of the calls that led the thread here
RUNTIME_API void let_others_run() SYMBOL(let_others_run);
RUNTIME_API void check_access(const void* address, int bytes, int kind, int line) SYMBOL(check_access);  // kind: see thread.h
RUNTIME_API void check_from(const void* address, int bytes, int kind, void* caller) SYMBOL(check_from);
RUNTIME_API void check_range(const void* start, size_t bytes, int kind, int line) SYMBOL(check_range);
RUNTIME_API void check_space(const void* address, bool shared, int line) SYMBOL(check_space);
RUNTIME_API void check_visit(const void* address, int bytes, int kind, int line) SYMBOL(check_visit);
RUNTIME_API void count_flops(int flops, int line) SYMBOL(count_flops);
RUNTIME_API void async_copy(void* shared, const void* global, int bytes, int given, int line) SYMBOL(async_copy);
RUNTIME_API void async_commit() SYMBOL(async_commit);
RUNTIME_API void async_wait(int groups_left) SYMBOL(async_wait);
RUNTIME_API double dot(double sum, const double* a, const double* b, int length) SYMBOL(dot);  // + a0 b0 + a1 b1 ...
RUNTIME_API void fail(const char* message, int line) SYMBOL(fail);
RUNTIME_API int print(const char* format, ...) SYMBOL(print) __attribute__((__format__(__printf__, 1, 2)));
RUNTIME_API long long nanoseconds() SYMBOL(nanoseconds);
RUNTIME_API int launch(void (*call)(void (*)(), void**), void (*kernel)(), void** arguments, void* config) SYMBOL(launch);

}  // namespace runtime

// ---- vector types -----------------------------------------------------------------------------------------

#define VECTORS(T, NAME, ALIGN2, ALIGN4)                                      \
  struct NAME##1 { T x; };                                                    \
  struct __align__(ALIGN2) NAME##2 { T x, y; };                               \
  struct __align__(ALIGN4) NAME##4 { T x, y, z, w; };                         \
  static inline NAME##1 make_##NAME##1(T x) { return {x}; }                   \
  static inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }           \
  static inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }   \
  static inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define OF_3(T, NAME) struct NAME##3 { T x, y, z; };  // uint3 is in thread.h
OF_3(float, float) OF_3(double, double) OF_3(int, int) OF_3(short, short) OF_3(unsigned short, ushort)
OF_3(signed char, char) OF_3(unsigned char, uchar) OF_3(long long, longlong) OF_3(unsigned long long, ulonglong)
VECTORS(float, float, 8, 16) VECTORS(double, double, 16, 16) VECTORS(int, int, 8, 16) VECTORS(unsigned, uint, 8, 16)
VECTORS(short, short, 4, 8) VECTORS(unsigned short, ushort, 4, 8)
VECTORS(signed char, char, 2, 4) VECTORS(unsigned char, uchar, 2, 4)
VECTORS(long long, longlong, 16, 16) VECTORS(unsigned long long, ulonglong, 16, 16)

// ---- threads and barriers ---------------------------------------------------------------------------------

RAW static inline runtime::Fiber* nanoeuler_self() { return runtime::self(); }
#define threadIdx (nanoeuler_self()->threadIdx)
#define blockIdx (nanoeuler_self()->blockIdx)
#define blockDim (nanoeuler_self()->blockDim)
#define gridDim (nanoeuler_self()->gridDim)
static constexpr int warpSize = 32;

RAW static inline void __syncthreads(LINE) { runtime::barrier(line); }
RAW static inline int __syncthreads_count(int predicate, LINE) { return runtime::barrier_reduce(predicate, 0, line); }
RAW static inline int __syncthreads_and(int predicate, LINE) { return runtime::barrier_reduce(predicate, 1, line); }
RAW static inline int __syncthreads_or(int predicate, LINE) { return runtime::barrier_reduce(predicate, 2, line); }
RAW static inline void __threadfence() { runtime::fence(false); }
RAW static inline void __threadfence_block() { runtime::fence(true); }
RAW static inline void __threadfence_system() { runtime::fence(false); }
RAW static inline void __trap(LINE) { runtime::fail("__trap()", line); }
RAW static inline void __nanosleep(unsigned) { runtime::let_others_run(); }
RAW static inline long long clock64() { return runtime::nanoseconds(); }
RAW static inline clock_t clock() { return (clock_t)runtime::nanoseconds(); }
#define printf nanoeuler_runtime::print
// On the GPU a promise to the compiler; the CPU checks it.
#define __builtin_assume(condition) ((condition) ? (void)0 : nanoeuler_runtime::fail("__builtin_assume: not so: " #condition, __LINE__))
RAW static inline size_t __cvta_generic_to_shared(const void* p) { return (size_t)p; }  // an address for inline PTX
RAW static inline size_t __cvta_generic_to_global(const void* p) { return (size_t)p; }
#define assert(condition) ((condition) ? (void)0 : nanoeuler_runtime::fail("assertion failed: " #condition, __LINE__))

// ---- warp functions: each lane leaves a pointer to its arguments and waits; the last one to arrive runs the
// function for all of them.

namespace runtime {

// Types that a GPU can shuffle: numbers and the 16-bit types of half.h, but no other structs and no pointers.
template <class T> constexpr bool shuffled = !__is_class(T) && !__is_union(T);
template <class T> constexpr bool shuffled<T*> = false;

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
  runtime::warp_function(mask, vote_lanes, &mine, name, line);
  return mine;
}

template <class T> struct Match { T value; unsigned lanes; };

template <class T> RAW void match_lanes(void** argument, unsigned lanes) {
  for (unsigned rest = lanes; rest; rest &= rest - 1) {
    auto* mine = (Match<T>*)argument[__builtin_ctz(rest)];
    for (unsigned others = lanes; others; others &= others - 1) {
      int lane = __builtin_ctz(others);
      if (__builtin_memcmp(&mine->value, &((Match<T>*)argument[lane])->value, sizeof(T)) == 0) mine->lanes |= 1u << lane;
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
  runtime::warp_function(mask, reduce_lanes<T, Operation>, &value, name, line);
  return value;
}

RAW static inline void no_lanes(void**, unsigned) {}

#define OPERATION(NAME, EXPRESSION) \
  struct NAME { template <class T> RAW static T of(T a, T b) { return EXPRESSION; } };
OPERATION(Add, a + b) OPERATION(Min, a < b ? a : b) OPERATION(Max, a > b ? a : b)
OPERATION(And, a & b) OPERATION(Or, a | b) OPERATION(Xor, a ^ b)

}  // namespace runtime

RAW static inline void __syncwarp(unsigned mask = 0xffffffffu, LINE) {
  runtime::warp_function(mask, runtime::no_lanes, nullptr, "__syncwarp", line);
}

// Values are passed as bits, because copying a __half would report that one thread reads another's local variable.
#define SHUFFLE(NAME, HOW)                                                                                         \
  template <class T> RAW T NAME(unsigned mask, T value, int by, int width = 32, LINE) {                            \
    static_assert(runtime::shuffled<T>, "a shuffle moves one number, an int, a float, a double, a __half or a __half2"); \
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");                                              \
    unsigned long long bits;                                                                                       \
    __builtin_memcpy(&bits, &value, sizeof(T));                                                                    \
    bits = runtime::shuffle(mask, bits, runtime::HOW, by, width, #NAME, line);                                     \
    __builtin_memcpy((void*)&value, &bits, sizeof(T));                                                             \
    return value;                                                                                                  \
  }
SHUFFLE(__shfl_sync, FROM) SHUFFLE(__shfl_up_sync, UP) SHUFFLE(__shfl_down_sync, DOWN) SHUFFLE(__shfl_xor_sync, XOR)

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
  runtime::warp_function(mask, runtime::match_lanes<T>, &mine, "__match_any_sync", line);
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

// ---- atomics: real ones, because blocks run in parallel; the checker counts each as one access ------------

namespace runtime {

template <class T, class Change> RAW T atomic(T* address, Change change, int line, int kind = UPDATE) {
  runtime::check_access(address, sizeof(T), kind, line);
  T old;
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  for (;;) {
    T changed = change(old);
    if (__atomic_compare_exchange(address, &old, &changed, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return old;
  }
}

struct Shared {  // a declaration's data for `shared_array`
  template <class T> struct Of { enum { element = sizeof(T), columns = 0 }; };
  template <class T, size_t N> struct Of<T[N]> { enum { element = Of<T>::element, columns = 0 }; };
  template <class T, size_t N, size_t M> struct Of<T[N][M]> {
    enum { element = Of<T>::element, columns = sizeof(T[M]) / Of<T>::element };
  };
};

}  // namespace runtime

template <class T> RAW static inline void nanoeuler_shared_array(T& array, const char* name) {
  runtime::shared_array((void*)&array, sizeof array, runtime::Shared::Of<T>::element, runtime::Shared::Of<T>::columns, name);
}
#define NANOEULER_SHARED_ARRAY(a) nanoeuler_shared_array(a, #a)
RAW static inline void* nanoeuler_dynamic_shared(size_t element, const char* name) {
  return runtime::dynamic_shared(element, name);
}
// Registers a __device__ or __constant__ variable when the library is loaded. The bytes after it are unused.
#ifdef CHECKED
#define NANOEULER_DEVICE_VARIABLE(a, CONSTANT)                                                                         \
  __static__ char nanoeuler_zone_of_##a[2][512] = {{}}, nanoeuler_data_zone_of_##a[512] = {1};                         \
  static nanoeuler_runtime::Variable nanoeuler_variable_##a = {#a, (const void*)&(a), sizeof(a),                       \
      nanoeuler_runtime::Shared::Of<decltype(a)>::element, nanoeuler_runtime::Shared::Of<decltype(a)>::columns,        \
      CONSTANT, {nanoeuler_zone_of_##a[0], nanoeuler_data_zone_of_##a}, nullptr};                                      \
  static struct nanoeuler_announce_##a {                                                                               \
    NANOEULER_RAW nanoeuler_announce_##a() { nanoeuler_runtime::device_variable(&nanoeuler_variable_##a); }            \
  } nanoeuler_announced_##a;
#else
#define NANOEULER_DEVICE_VARIABLE(a, CONSTANT)
#endif

// _block and _system give the scope of an atomic; here every atomic has the widest scope.
#define ATOMIC_FUNCTION(NAME, T, EXPRESSION)                                                     \
  ATOMIC_NAME(NAME, T, EXPRESSION) ATOMIC_NAME(NAME##_block, T, EXPRESSION)                      \
  ATOMIC_NAME(NAME##_system, T, EXPRESSION)
#define ATOMIC_NAME(NAME, T, EXPRESSION)                                                         \
  RAW static inline T NAME(T* address, T value, LINE) {                                          \
    auto change = [value](T old) RAW -> T { return EXPRESSION; };                                \
    return runtime::atomic(address, change, line);                                               \
  }
#define ATOMIC_EXCHANGE(NAME, T)                                                                 \
  RAW static inline T NAME(T* address, T value, LINE) {                                          \
    return runtime::atomic(address, [value](T) RAW -> T { return value; }, line, runtime::ATOMIC); \
  }
#define ATOMIC_EXCHANGES(T) \
  ATOMIC_EXCHANGE(atomicExch, T) ATOMIC_EXCHANGE(atomicExch_block, T) ATOMIC_EXCHANGE(atomicExch_system, T)
#define ATOMIC_CAS(NAME, T)                                                                      \
  RAW static inline T NAME(T* address, T expected, T value, LINE) {                              \
    auto change = [expected, value](T old) RAW -> T { return old == expected ? value : old; };   \
    T old = runtime::atomic(address, change, line);                                              \
    if (old != expected) runtime::let_others_run(); /* a spinning thread must not keep the others out */  \
    return old;                                                                                  \
  }
#define ATOMIC_CASES(T) ATOMIC_CAS(atomicCAS, T) ATOMIC_CAS(atomicCAS_block, T) ATOMIC_CAS(atomicCAS_system, T)
#define ATOMIC_FUNCTIONS(T)                                                                      \
  ATOMIC_FUNCTION(atomicMin, T, value < old ? value : old)                                       \
  ATOMIC_FUNCTION(atomicMax, T, old < value ? value : old)                                       \
  ATOMIC_FUNCTION(atomicAnd, T, old & value) ATOMIC_FUNCTION(atomicOr, T, old | value)           \
  ATOMIC_FUNCTION(atomicXor, T, old ^ value)                                                     \
  ATOMIC_EXCHANGES(T) ATOMIC_CASES(T)
ATOMIC_FUNCTIONS(int) ATOMIC_FUNCTIONS(unsigned) ATOMIC_FUNCTIONS(unsigned long long)
ATOMIC_FUNCTION(atomicAdd, int, (int)((unsigned)old + (unsigned)value)) ATOMIC_FUNCTION(atomicAdd, unsigned, old + value)
ATOMIC_FUNCTION(atomicSub, int, (int)((unsigned)old - (unsigned)value)) ATOMIC_FUNCTION(atomicSub, unsigned, old - value)
ATOMIC_FUNCTION(atomicAdd, unsigned long long, old + value)
ATOMIC_FUNCTION(atomicAdd, float, old + value) ATOMIC_FUNCTION(atomicAdd, double, old + value)
ATOMIC_EXCHANGES(float)
ATOMIC_FUNCTION(atomicMin, long long, value < old ? value : old)
ATOMIC_FUNCTION(atomicMax, long long, old < value ? value : old)
ATOMIC_FUNCTION(atomicInc, unsigned, old >= value ? 0 : old + 1)
ATOMIC_FUNCTION(atomicDec, unsigned, old == 0 || old > value ? value : old - 1)
ATOMIC_CAS(atomicCAS, unsigned short)
// From compute capability 9.0 on, for arrays in global memory; the numbers are added separately.
RAW static inline float2 atomicAdd(float2* a, float2 more, LINE) {
  runtime::check_space(a, false, line);
  return {atomicAdd(&a->x, more.x, line), atomicAdd(&a->y, more.y, line)};
}
RAW static inline float4 atomicAdd(float4* a, float4 more, LINE) {
  runtime::check_space(a, false, line);
  return {atomicAdd(&a->x, more.x, line), atomicAdd(&a->y, more.y, line),
          atomicAdd(&a->z, more.z, line), atomicAdd(&a->w, more.w, line)};
}

// Loads and stores with cache hints, which have no effect here.
#define LOAD(NAME)                                                       \
  template <class T> RAW static inline T NAME(const T* address, LINE) {  \
    runtime::check_access(address, sizeof(T), runtime::READ, line);               \
    return *address;                                                     \
  }
LOAD(__ldg) LOAD(__ldca) LOAD(__ldcg) LOAD(__ldcs) LOAD(__ldcv) LOAD(__ldlu)
#define STORE(NAME)                                                             \
  template <class T> RAW static inline void NAME(T* address, T value, LINE) {   \
    runtime::check_access(address, sizeof(T), runtime::WRITE, line);                     \
    *address = value;                                                           \
  }
STORE(__stwb) STORE(__stcg) STORE(__stcs) STORE(__stwt)

#include "numbers.h"

// ---- exporting a kernel to the launcher -------------------------------------------------------------------

namespace runtime {

template <int... I> struct Sequence {};
template <int N, int... I> struct Count : Count<N - 1, N - 1, I...> {};
template <int... I> struct Count<0, I...> { typedef Sequence<I...> type; };

template <class F> struct Signature;
template <class... A> struct Signature<void (*)(A...)> {
  template <class T> RAW static T load(const void* argument) {  // copies bytes, because copying a __half would be checked
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

template <class Kernel> RAW static inline int nanoeuler_launch(Kernel kernel, void** arguments, void* config) {
  return runtime::launch(runtime::Signature<Kernel>::call, (void (*)())kernel, arguments, config);
}
#define NANOEULER_EXPORT_KERNEL(NUMBER, ...)                                                                   \
  extern "C" __attribute__((__visibility__("default"))) NANOEULER_RAW int run_kernel_##NUMBER(void** nanoeuler_a, void* nanoeuler_c) { \
    return nanoeuler_launch(&__VA_ARGS__, nanoeuler_a, nanoeuler_c);                                           \
  }

#if defined(CHECKED) && defined(__clang_major__) && __clang_major__ < 15 && defined(__ELF__)
// Older versions of Clang copy and clear structs with the C library's functions, which the checker must see too.
asm(".set memcpy, __tsan_memcpy\n.set memmove, __tsan_memmove\n.set memset, __tsan_memset");
#endif

#undef LINE
#undef RUNTIME_API
#undef SYMBOL
#undef SYMBOL_
#undef PREFIXED
#undef STRING
#undef STRING_OF
#undef OF_3
#undef VECTORS
#undef OPERATION
#undef SHUFFLE
#undef REDUCE
#undef ATOMIC_FUNCTION
#undef ATOMIC_FUNCTIONS
#undef ATOMIC_NAME
#undef ATOMIC_EXCHANGE
#undef ATOMIC_EXCHANGES
#undef ATOMIC_CAS
#undef ATOMIC_CASES
#undef LOAD
#undef STORE
#include "end_raw.h"
