// named_barrier.cuh: barriers for some warps of a block, which CUDA C++ offers only as PTX. They let warps with different
// roles wait for each other, for example those that fill a buffer and those that empty it.
//
//   named_barrier_sync(number, threads)    wait until `threads` threads have reached barrier `number`, 1 to 15; all of
//       their accesses before it happen before all of their accesses after it
//   named_barrier_arrive(number, threads)  be counted at the barrier without waiting
//
// Only whole warps can take part: `threads` is a multiple of 32 and the same in every call, and the 32 lanes of a warp
// arrive together, by the same call in the text. Different warps may use different calls. Barrier 0 is __syncthreads().
#pragma once

#ifdef __CUDACC__

__device__ __forceinline__ void named_barrier_sync(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

#else

#include "raw.h"
RAW static inline void named_barrier_sync(int number, int threads, int line = __builtin_LINE()) {
  runtime::named_barrier(number, threads, true, line);
}
RAW static inline void named_barrier_arrive(int number, int threads, int line = __builtin_LINE()) {
  runtime::named_barrier(number, threads, false, line);
}
#include "end_raw.h"

#endif
