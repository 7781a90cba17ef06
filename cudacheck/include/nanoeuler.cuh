// nanoeuler.cuh: device functions that CUDA C++ offers only as PTX, each with a body for the GPU and one for the CPU.
#pragma once

// Asynchronous copies from global to shared memory, without a register on the way (compute capability 8.0 and later; before
// that, plain copies). A copy belongs to the next commit; what it brought can be read after the thread that asked for it
// has waited, and by other threads after a barrier that follows.
//
//   copy_async<BYTES>(shared, global)         4, 8 or 16 bytes a thread, both addresses multiples of BYTES
//   copy_async<BYTES>(shared, global, given)  the first `given` of the bytes, 0 to BYTES; the others become zeros, and with
//                                             0 `global` is not looked at: for the ragged last tile of a matrix
//   copy_async_cg<BYTES>(...)                 the same for 16 bytes, past the L1 cache: for what no other block will read
//   copy_async_commit(), copy_async_wait<N>() end a group; wait until at most N of this thread's groups are under way
//
//   prefetch_to_L2(global)                    begin to bring the line of the L2 cache that an address lies in, and wait for
//                                             nothing; on the CPU it does nothing
//
//   grid_dependency_wait()                    of a launch bound with overlap=True: from here on what the launch before it
//                                             wrote can be read (programmatic dependent launch, from 9.0 on)
//   launch_dependents()                       when all blocks have come here, the launch behind this one may begin. Both
//                                             do nothing on the CPU, where one launch ends before the next begins.
#ifdef __CUDACC__

#define NE_COPY(NAME, CACHE, SIZES, WORDS)                                                                            \
  template <int BYTES> __device__ __forceinline__ void NAME(void* shared, const void* global, int given = BYTES) { \
    static_assert(SIZES, WORDS);                                                                                   \
    NE_ASYNC_OR_PLAIN(CACHE)                                                                                          \
  }
#if __CUDA_ARCH__ >= 800
#define NE_ASYNC_OR_PLAIN(CACHE)                                                                                      \
  unsigned address = (unsigned)__cvta_generic_to_shared(shared);                                                   \
  asm volatile("cp.async." CACHE ".shared.global [%0], [%1], %2, %3;"                                              \
               ::"r"(address), "l"(global), "n"(BYTES), "r"(given) : "memory");
#else
#define NE_ASYNC_OR_PLAIN(CACHE)                                                                                      \
  for (int i = 0; i < BYTES; i++) ((char*)shared)[i] = i < given ? ((const char*)global)[i] : 0;
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
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int GROUPS> __device__ __forceinline__ void copy_async_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
#endif
}

#else

#include "raw.h"
#define NE_COPY(NAME, CACHE, SIZES, WORDS)                                                                            \
  template <int BYTES> RAW static inline void NAME(void* shared, const void* global, int given = BYTES,            \
                                                   int line = __builtin_LINE()) {                                  \
    static_assert(SIZES, WORDS);                                                                                   \
    if (given < 0 || given > BYTES) runtime::fail("an asynchronous copy is given 0 bytes to all that it writes", line);     \
    runtime::async_copy(shared, global, BYTES, given, line);                                                                \
  }
RAW static inline void prefetch_to_L2(const void*) {}
RAW static inline void grid_dependency_wait() {}
RAW static inline void launch_dependents() {}
RAW static inline void copy_async_commit() { runtime::async_commit(); }
template <int GROUPS> RAW static inline void copy_async_wait() { runtime::async_wait(GROUPS); }

#endif

NE_COPY(copy_async, "ca", BYTES == 4 || BYTES == 8 || BYTES == 16, "an asynchronous copy moves 4, 8 or 16 bytes")
NE_COPY(copy_async_cg, "cg", BYTES == 16, "an asynchronous copy past the L1 cache moves 16 bytes")
#undef NE_COPY
#ifdef __CUDACC__
#undef NE_ASYNC_OR_PLAIN
#else
#include "end_raw.h"
#endif

#include "matrix.cuh"
