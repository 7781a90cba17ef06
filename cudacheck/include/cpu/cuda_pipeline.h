// cuda_pipeline.h: CUDA's own names for asynchronous copies, which nanoeuler.cuh calls copy_async.
#pragma once
#include "raw.h"

RAW static inline void __pipeline_memcpy_async(void* shared, const void* global, size_t bytes, size_t zeros = 0,
                                               int line = __builtin_LINE()) {
  if (bytes != 4 && bytes != 8 && bytes != 16) runtime::fail("an asynchronous copy must move 4, 8 or 16 bytes", line);
  if (zeros > bytes) runtime::fail("an asynchronous copy cannot fill more bytes with zeros than it writes", line);
  runtime::async_copy(shared, global, (int)bytes, (int)(bytes - zeros), line);
}
RAW static inline void __pipeline_commit() { runtime::async_commit(); }
RAW static inline void __pipeline_wait_prior(size_t commits_left) { runtime::async_wait((int)commits_left); }
#include "end_raw.h"
