// nanoeuler.cuh: device functions that CUDA C++ offers only as PTX, each with a body for the GPU and one for the CPU.
#pragma once

// Asynchronous copies from global to shared memory, 4, 8 or 16 bytes a thread, without a register on the way
// (compute capability 8.0 and later; before that, plain copies). A copy belongs to the next commit; what it brought
// can be read after the thread that asked for it has waited, and by other threads after a barrier that follows.
#ifdef __CUDACC__

template <int BYTES> __device__ __forceinline__ void copy_async(void* shared, const void* global) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "an asynchronous copy moves 4, 8 or 16 bytes");
#if __CUDA_ARCH__ >= 800
  unsigned address = (unsigned)__cvta_generic_to_shared(shared);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(global), "n"(BYTES) : "memory");
#else
  for (int i = 0; i < BYTES / 4; i++) ((int*)shared)[i] = ((const int*)global)[i];
#endif
}

__device__ __forceinline__ void copy_async_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Wait until at most GROUPS of this thread's commits are still under way.
template <int GROUPS> __device__ __forceinline__ void copy_async_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
#endif
}

#else

template <int BYTES> RAW static inline void copy_async(void* shared, const void* global, int line = __builtin_LINE()) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "an asynchronous copy moves 4, 8 or 16 bytes");
  async_copy(shared, global, BYTES, line);
}
RAW static inline void copy_async_commit() { async_commit(); }
template <int GROUPS> RAW static inline void copy_async_wait() { async_wait(GROUPS); }

#endif

#include "matrix.cuh"
