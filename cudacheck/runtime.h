// runtime.h: the records that the runtime keeps, and the ones that Python fills in and reads (cpu.py mirrors those).
#pragma once
#include <stdint.h>

#include "include/cpu/thread.h"

namespace runtime {

enum { MAX_THREADS = 1024, MAX_SHARED_ARRAYS = 64, MAX_ARRAYS = 64, MAX_WORKERS = 64, TRACED_SHARED = 16 };
enum { MAX_STATIC_SHARED = 48 * 1024 };  // bytes of __shared__ declarations that ptxas accepts
enum { GUARD_BYTES = 1 << 20 };  // on either side of a block's stacks
enum { NAMED_BARRIERS = 16, TRAIL = 8 };

enum { ENTERED = 8, FLOPS = 9 };  // other lines of a trace: a basic block begins; an instruction computed, `bytes` times

// Where in the kernel's text: a line, marked by the top bit, or an address relative to the library's start, which
// Python turns into a line.
typedef unsigned Site;
static inline Site site_of_line(int line) { return 0x80000000u | (unsigned)line; }

// An array that a kernel may use: an argument, a shared array, a __device__ or __constant__ variable.
struct Array {
  uintptr_t start, end;
  const char* name;
  int element, columns;  // bytes of an element; of a two-dimensional shared array the row length, else 0
  int grain;             // one cell of the shadow stands for 2^grain bytes: at most an element, and 4
  unsigned serial;       // shared arrays: the block that they were last cleared for
  bool read_only;        // a const argument that no other overlaps, or __constant__
  const char* space;     // "shared", "__device__", "__constant__"; an argument has none
  struct Cell* shadow;   // who accessed it last (checker.cpp)
};

static inline int grain_of(int64_t element) { return element == 1 ? 0 : element == 2 ? 1 : 2; }

// ---- shared with Python: the same fields in the same order in cpu.py --------------------------------------

struct Finding {
  char kind[32], message[480];
  unsigned block[3], thread[3];
  int has_thread;
  Site site, other_site;
  int other_thread;  // -1: none, -2: of another block, -3: one of several
  int array;         // number of the argument, -1: none, -2: an array that the next lines tell
  char name[64], space[16];
  int element, columns;  // what the compiler judged itself has its column of the text in `columns`
  int64_t offset;  // in bytes, from the array's start
  uint64_t bytes;  // of the array
  int update;      // a race: the one who wrote had read the place as the other does now
  int atomics;     // a race: 1 of an atomic or a flag with a plain access, 2 in a block that calls atomics
  Site trail[TRAIL];  // a fault: calls that led there, perhaps; a barrier: calls of a thread that waits, then of another
};

struct Access {  // one line of a trace
  int64_t offset;
  Site site;
  int array;  // number of the argument; of a shared array -1, -2, ...
  int thread, bytes, kind;
};

struct Argument {  // an array that is passed
  uint64_t start, bytes;
  const char* name;
  int64_t element;
  int read_only;
};

struct Config {
  unsigned grid[3], block[3];
  unsigned shared_bytes, shared_limit;
  int workers;
  int arguments;
  int traced_block;  // -1: none
  const Argument* argument;
  Access* trace;
  uint64_t trace_capacity, trace_length;
  char shared_name[TRACED_SHARED][32];  // of the shared arrays of a trace
  char* output;  // what the kernel prints
  int output_capacity, output_length, output_cut;  // cut: there was more
  double seconds;  // checked launches end after this time
  Finding finding;
};

// ---- private ----------------------------------------------------------------------------------------------

struct Launch {
  Config* config;
  void (*call)(void (*)(), void**);
  void (*kernel)();
  void** arguments;
  unsigned threads;
  uint64_t blocks, next;
  int stop;  // set by the first finding
  uintptr_t kernel_returns_to;  // the address, once it is known
  pthread_t thread;  // that launched
  int output_lock;
};

struct Warp {
  unsigned alive, runnable;  // a bit for each lane
  int first;                 // its first thread
  int last_line[32];         // of the lanes that have left: where they met others last, and with which mask
  unsigned last_mask[32];
  unsigned epoch;            // how often some of its lanes met or called a fence, since the process began
  unsigned all_met;          // the epoch at which all of them did, last
  unsigned met[32][32];      // [a][b]: the epoch that was the last to bring a what b had done, by a chain of meetings
};

// Of bar.sync with a number: some warps of a block wait for one another.
struct NamedBarrier {
  int arrived, threads, line;
  unsigned came[MAX_THREADS / 32], waiting[MAX_THREADS / 32];
  uint64_t path[MAX_THREADS / 32];  // by which each warp came; 0: it has not
  unsigned* told;                   // what those who came have heard of each thread, and done (checker.cpp)
};

struct AsyncCopy {
  void* to;
  const void* from;
  int bytes, given, group, line;  // given: so many come from there, the others are zeros
};
struct AsyncCopies {  // of one thread
  AsyncCopy* copy;
  int length, capacity, group;  // group: how many commits the thread has made
  int waited, left;             // how many it had made at its last wait, and how many groups that left under way
};

// What a worker needs to run one block after another. It is kept between launches, with its stacks.
struct Block {
  Block *next_free, *next;  // of all
  pthread_t worker;
  bool busy;  // in a function of the C library that cannot be left halfway
  char* stacks;
  unsigned stacks_used, free_stacks;
  Fiber* free_stack[MAX_THREADS];
  void* worker_stack_pointer;
  Launch* launch;
  uint3 index;
  bool traced;
  unsigned serial;  // no other block of this process has the same
  unsigned warps_used, alive;
  unsigned arrived, epoch;  // at the barrier; how many barriers have been passed
  uint64_t barrier_path;
  int barrier_line, left_thread;
  int unwaited, unwaited_line;  // the first thread that returned with copies under way, -1: none
  NamedBarrier named[NAMED_BARRIERS];
  bool named_used;
  int votes, voters;  // of __syncthreads_count() and its kin
  bool failed;
  bool meeting;  // a warp function runs for its lanes: no other thread may go on before it ends
  Warp warp[MAX_THREADS / 32];
  Fiber* fiber[MAX_THREADS];
  bool started[MAX_THREADS];
  AsyncCopies copies[MAX_THREADS];
  Array shared[MAX_SHARED_ARRAYS];
  int shared_arrays;
  char* dynamic;
  size_t dynamic_capacity;
  bool unwritten;  // shared memory was read that nobody has written: told at the next barrier, if it is no race
  Finding unwritten_finding;
  bool atomics;  // this block has called an atomic
  struct Publication* fences;  // what the block's fences cover, and the blocks' before it
  struct Clocks* clocks;       // what threads have heard of one another through flags, locks and named barriers
};

}  // namespace runtime
