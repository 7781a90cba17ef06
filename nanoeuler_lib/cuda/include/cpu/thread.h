// thread.h: which CUDA thread is running. Kernels see it through device.h; the runtime includes it too.
//
// Every CUDA thread of a block is a fiber: a stack of its own, and the record below. Stacks are aligned to their
// size and the record sits near the low end, so "who am I" costs one AND on the stack pointer.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define RUNTIME_API extern "C" __attribute__((visibility("hidden")))

// RAW: the checker does not watch this function (it belongs to the runtime, or reports its accesses itself).
#if defined(__clang__)
#define RAW __attribute__((disable_sanitizer_instrumentation, no_sanitize("undefined", "thread", "coverage")))
#elif defined(CHECKED)
#define RAW __attribute__((no_sanitize("thread"), no_sanitize("undefined"), no_sanitize_coverage))
#else
#define RAW
#endif

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

namespace runtime {

enum { READ = 0, WRITE = 1, ATOMIC = 3, ASYNC = 5 };  // how memory is accessed; bit 0: it is written

constexpr uintptr_t STACK_BYTES = 65536;

// Runs once for all lanes of a warp that meet at a warp function: argument[lane] for each lane set in `lanes`.
typedef void (*WarpFunction)(void** argument, unsigned lanes);

struct Warp;
struct Block;

struct Fiber {
  uint3 threadIdx, blockIdx;
  dim3 blockDim, gridDim;
  int thread, lane;  // the thread's number in its block, in its warp
  Warp* warp;
  Block* block;
  void* stack_pointer;  // while it does not run
  const char* waits_at;  // a barrier or a warp function; null: it can run
  int waits_at_line;
  unsigned waits_mask;  // of a warp function, with its function and argument
  WarpFunction waits_function;
  void* waits_argument;
};

// Not all records at the same offset: they would share one set of the processor's cache.
constexpr uintptr_t RECORD_BYTES = 192;
static_assert(sizeof(Fiber) <= RECORD_BYTES, "the records would overlap");

RAW static inline Fiber* record_of(uintptr_t stack_base) {
  return (Fiber*)(stack_base + stack_base / STACK_BYTES % 32 * RECORD_BYTES);
}
RAW static inline Fiber* self() {
  return record_of((uintptr_t)__builtin_frame_address(0) & ~(STACK_BYTES - 1));
}

}  // namespace runtime
