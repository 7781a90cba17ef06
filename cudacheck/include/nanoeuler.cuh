// nanoeuler.cuh: device functions that CUDA C++ offers only as PTX, each with a body for the GPU and one for the CPU.
#pragma once

// Asynchronous copies from global to shared memory, without going through a register (compute capability 8.0 and later;
// ordinary copies before that). A copy belongs to the next commit. Its data can be read by the thread that started it
// once that thread has waited, and by other threads after a barrier that follows the wait.
//
//   copy_async<BYTES>(shared, global)         copy 4, 8 or 16 bytes per thread; both addresses are multiples of BYTES
//   copy_async<BYTES>(shared, global, given)  copy only the first `given` bytes, 0 to BYTES, and fill the rest with
//                                             zeros, for a matrix's ragged last tile; with 0, `global` is not read
//   copy_async_cg<BYTES>(...)                 the same for 16 bytes, bypassing L1: for data that no other block reads
//   copy_async_commit(), copy_async_wait<N>() end a group; wait until at most N of this thread's groups are unfinished
//
//   prefetch_to_L2(global)                    start loading an address's cache line into the L2 cache, without waiting;
//                                             does nothing on the CPU
//
//   grid_dependency_wait()                    in a launch bound with overlap=True, wait until the data of the launch
//                                             before it can be read (programmatic dependent launch, from 9.0 on)
//   launch_dependents()                       let the next launch begin once all blocks have called this. Both do
//                                             nothing on the CPU, where a launch ends before the next one begins.
#ifdef NANOEULER_ARCH  // 75: use no instruction that compute capability 7.5 lacks, on any GPU and in the checker
#define NE_ARCH (10 * NANOEULER_ARCH)
#elif defined(__CUDA_ARCH__)
#define NE_ARCH __CUDA_ARCH__
#else
#define NE_ARCH 1000
#endif

#ifdef __CUDACC__

#define NE_COPY(NAME, CACHE, SIZES, WORDS)                                                                            \
  template <int BYTES> __device__ __forceinline__ void NAME(void* shared, const void* global, int given = BYTES) { \
    static_assert(SIZES, WORDS);                                                                                   \
    NE_ASYNC_OR_PLAIN(CACHE)                                                                                          \
  }
#if NE_ARCH >= 800
#define NE_ASYNC_OR_PLAIN(CACHE)                                                                                      \
  unsigned address = (unsigned)__cvta_generic_to_shared(shared);                                                   \
  asm volatile("cp.async." CACHE ".shared.global [%0], [%1], %2, %3;"                                              \
               ::"r"(address), "l"(global), "n"(BYTES), "r"(given) : "memory");
#else
#define NE_ASYNC_OR_PLAIN(CACHE)                                                                                      \
  struct alignas(BYTES) Whole { char bytes[BYTES]; } v = {}; /* so that loads need not wait for earlier stores */      \
  if (given == BYTES) v = *(const Whole*)global;                                                                      \
  else                                                                                                                \
    for (int i = 0; i < given; i++) v.bytes[i] = ((const char*)global)[i];                                            \
  *(Whole*)shared = v;
#endif

__device__ __forceinline__ void prefetch_to_L2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(address)));
}

__device__ __forceinline__ void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ void copy_async_commit() {
#if NE_ARCH >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int GROUPS> __device__ __forceinline__ void copy_async_wait() {
#if NE_ARCH >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
#endif
}

#else

#include "raw.h"
#define NE_COPY(NAME, CACHE, SIZES, WORDS)                                                                            \
  template <int BYTES> RAW static inline void NAME(void* shared, const void* global, int given = BYTES,            \
                                                   int line = __builtin_LINE()) {                                  \
    static_assert(SIZES, WORDS);                                                                                   \
    if (given < 0 || given > BYTES) runtime::fail("copy_async: given must be 0 to BYTES", line);     \
    runtime::async_copy(shared, global, BYTES, given, line);                                                                \
    if (NE_ARCH < 800) runtime::async_commit(), runtime::async_wait(0);                                               \
  }
RAW static inline void prefetch_to_L2(const void*) {}
RAW static inline void grid_dependency_wait() {}
RAW static inline void launch_dependents() {}
RAW static inline void copy_async_commit() { runtime::async_commit(); }
template <int GROUPS> RAW static inline void copy_async_wait() { runtime::async_wait(GROUPS); }

#endif

NE_COPY(copy_async, "ca", BYTES == 4 || BYTES == 8 || BYTES == 16, "an asynchronous copy must move 4, 8 or 16 bytes")
NE_COPY(copy_async_cg, "cg", BYTES == 16, "an asynchronous copy past the L1 cache must move 16 bytes")
#undef NE_COPY
#ifdef __CUDACC__
#undef NE_ASYNC_OR_PLAIN
#else
#include "end_raw.h"
#endif

#include "matrix.cuh"
