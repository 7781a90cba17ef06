// thread.h: which CUDA thread is running. Kernels see it through device.h; the runtime includes it too.
//
// Every CUDA thread of a block is a fiber: a stack of its own, and the record below. Stacks are aligned to their
// size and the record sits near the low end, so "who am I" costs one AND on the stack pointer.
#pragma once

#define RUNTIME_API extern "C" __attribute__((__visibility__("hidden")))

#include "raw.h"  // device.h ends it

// No header of the C library: a kernel's text has none.
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

// How memory is accessed. Bit 0: it is written; bit 1: it may meet another of that bit, as atomics do. STRONG_READ is a
// volatile read; UPDATE an atomic whose result depends on what it finds, as atomicAdd's does and atomicExch's does not.
enum { READ = 0, WRITE = 1, STRONG_READ = 2, ATOMIC = 3, ASYNC = 5, UPDATE = 7 };

// Of a shuffle: the lane `by`, or the one as far below, above or off by these bits.
enum { FROM, UP, DOWN, XOR };

typedef __UINTPTR_TYPE__ uintptr_t;

constexpr uintptr_t STACK_BYTES = 65536;

// Runs once for all lanes of a warp that meet at a warp function: argument[lane] for each lane set in `lanes`.
typedef void (*WarpFunction)(void** argument, unsigned lanes);

// A variable that lives as long as the library: __device__ or __constant__.
struct Variable {
  const char* name;
  const void* start;
  size_t bytes, element;
  int columns;
  bool constant;
  const char* zone[2];  // of 512 bytes each, one of which lies behind it
  Variable* next;
};

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
  unsigned fence_epoch;  // its warp's epoch after its last fence; 0: it has called none
  unsigned waits_mask;  // of a warp function, with its function and argument
  WarpFunction waits_function;
  void* waits_argument;
  void* path_frame;  // of the runtime's function that asked last which calls led to it
  uintptr_t top;  // of its stack: the frame of the runtime's function that called the kernel
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
