// thread.h: the record of the running CUDA thread, used by kernels through device.h and by the runtime.
//
// Every CUDA thread of a block is a fiber with its own stack and the record below. Stacks are aligned to their size and
// the record is near the low end, so a thread finds its record with one AND on the stack pointer.
#pragma once

#define RUNTIME_API extern "C" __attribute__((__visibility__("hidden")))

#include "raw.h"  // device.h includes end_raw.h

// Without headers of the C library, because kernels have none.
typedef decltype(sizeof 0) size_t;
typedef decltype((char*)0 - (char*)0) ptrdiff_t;

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

namespace runtime {

// Kinds of access. Bit 0: it writes; bit 1: it does not race with another access with that bit, as atomics. STRONG_READ
// is a volatile read; UPDATE is an atomic whose result depends on the old value, such as atomicAdd but not atomicExch.
enum { READ = 0, WRITE = 1, STRONG_READ = 2, ATOMIC = 3, ASYNC = 5, UPDATE = 7 };

// Shuffles from lane `by`, from `by` lanes below or above, or from the lane's number XOR `by`.
enum { FROM, UP, DOWN, XOR };

typedef __UINTPTR_TYPE__ uintptr_t;

constexpr uintptr_t STACK_BYTES = 65536;

// Runs once for all lanes of a warp that meet at a warp function, with argument[lane] for each lane set in `lanes`.
typedef void (*WarpFunction)(void** argument, unsigned lanes);

// A variable that lives as long as the library: __device__ or __constant__.
struct Variable {
  const char* name;
  const void* start;
  size_t bytes, element;
  int columns;
  bool constant;
  const char* zone[2];  // two unused zones of 512 bytes, at least one of them directly after the variable
  Variable* next;
};

struct Warp;
struct Block;

struct Fiber {
  uint3 threadIdx, blockIdx;
  dim3 blockDim, gridDim;
  int thread, lane;  // the thread's number in its block and in its warp
  Warp* warp;
  Block* block;
  void* stack_pointer;  // while it does not run
  const char* waits_at;  // a barrier or a warp function; null: it can run
  int waits_at_line;
  unsigned fence_epoch;  // its warp's epoch after its last fence; 0: no fence yet
  unsigned waits_mask;  // mask, function and argument of the warp function at which it waits
  WarpFunction waits_function;
  void* waits_argument;
  void* path_frame;  // frame of the runtime function that last computed this thread's call path
  uintptr_t top;  // top of its stack: the frame of the runtime function that called the kernel
};

// Records have different offsets in their stacks; with equal offsets they would share one set of the processor's cache.
constexpr uintptr_t RECORD_BYTES = 192;
static_assert(sizeof(Fiber) <= RECORD_BYTES, "the records would overlap");

RAW static inline Fiber* record_of(uintptr_t stack_base) {
  return (Fiber*)(stack_base + stack_base / STACK_BYTES % 32 * RECORD_BYTES);
}
RAW static inline Fiber* self() {
  return record_of((uintptr_t)__builtin_frame_address(0) & ~(STACK_BYTES - 1));
}

}  // namespace runtime
