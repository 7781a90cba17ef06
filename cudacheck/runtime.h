// runtime.h: the runtime's structs, among them those that Python fills in and reads (cpu.py mirrors them).
#pragma once
#include <stdint.h>

#include "include/cpu/thread.h"

namespace runtime {

enum { MAX_THREADS = 1024, MAX_SHARED_ARRAYS = 64, MAX_ARRAYS = 64, MAX_WORKERS = 64, TRACED_SHARED = 16 };
enum { MAX_STATIC_SHARED = 48 * 1024 };  // bytes of __shared__ declarations that ptxas accepts
enum { GUARD_BYTES = 1 << 20 };  // on either side of a block's stacks
enum { NAMED_BARRIERS = 16, TRAIL = 8 };

enum { ENTERED = 8, FLOPS = 9 };  // other kinds of trace record: a basic block begins; `bytes` operations were computed

// A place in the kernel's text: a line number, marked by the top bit, or an address relative to the library's start,
// which Python maps to a line.
typedef unsigned Site;
static inline Site site_of_line(int line) { return 0x80000000u | (unsigned)line; }

// An array that a kernel may use: an argument, a shared array, a __device__ or __constant__ variable.
struct Array {
  uintptr_t start, end;
  const char* name;
  int element, columns;  // bytes of an element; row length of a two-dimensional shared array, else 0
  int grain;             // one cell of the shadow covers 2^grain bytes, at most 4 and at most one element
  unsigned serial;       // shared arrays: the block for which they were last cleared
  bool read_only;        // a const argument that no writable one overlaps, or __constant__
  const char* space;     // "shared", "__device__" or "__constant__"; null for an argument
  struct Cell* shadow;   // the last accesses (checker.cpp)
};

static inline int grain_of(int64_t element) { return element == 1 ? 0 : element == 2 ? 1 : 2; }

// ---- shared with Python: the same fields in the same order in cpu.py --------------------------------------

struct Finding {
  char kind[32], message[480];
  unsigned block[3], thread[3];
  int has_thread;
  Site site, other_site;
  int other_thread;  // -1: none, -2: in another block, -3: one of several
  int array;         // number of the argument, -1: none, -2: the array described by the next fields
  char name[64], space[16];
  int element, columns;  // for checks inserted by the compiler, `columns` is the column in the text
  int64_t offset;  // in bytes, from the array's start
  uint64_t bytes;  // of the array
  int update;      // in a race: the writer had read the place by the same instruction that reads it now
  int atomics;     // in a race: 1 for an atomic or flag against a plain access, 2 in a block that calls atomics
  Site trail[TRAIL];  // after a fault: probable calls; at a barrier: calls of a waiting thread, then of another
};

struct Access {  // one record of a trace
  int64_t offset;
  Site site;
  int array;  // number of the argument; -1, -2, ... for shared arrays
  int thread, bytes, kind;
};

struct Argument {  // an array argument
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
  char shared_name[TRACED_SHARED][32];  // names of a trace's shared arrays
  char* output;  // text that the kernel prints
  int output_capacity, output_length, output_cut;  // cut: whether text was lost
  double seconds;  // time limit of checked launches
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
  uintptr_t kernel_returns_to;  // the kernel's return address, once known
  pthread_t thread;  // the thread that launched
  int output_lock;
};

struct Warp {
  unsigned alive, runnable;  // one bit per lane
  int first;                 // number of its first thread
  int last_line[32];         // for exited lanes: line and mask of their last warp function
  unsigned last_mask[32];
  unsigned epoch;            // number of times that lanes met or called a fence, since the process began
  unsigned all_met;          // the last epoch at which all lanes met
  unsigned met[32][32];      // [a][b]: the last epoch of b that a knows of, by a chain of meetings
};

// A barrier of PTX's bar.sync with a number, at which some warps of a block wait for each other.
struct NamedBarrier {
  int arrived, threads, line;
  unsigned came[MAX_THREADS / 32], waiting[MAX_THREADS / 32];
  uint64_t path[MAX_THREADS / 32];  // each warp's call path; 0: it has not arrived
  unsigned* told;                   // joined clocks of the threads that have arrived (checker.cpp)
};

struct AsyncCopy {
  void* to;
  const void* from;
  int bytes, given, group, line;  // given: bytes that are copied; the remaining ones become zeros
};
struct AsyncCopies {  // of one thread
  AsyncCopy* copy;
  int length, capacity, group;  // group: number of commits so far
  int waited, left;             // at the last wait: number of commits, and of groups left unfinished
};

// The state in which a worker runs one block after another. It is kept between launches, with its stacks.
struct Block {
  Block *next_free, *next;  // lists of free and of all blocks
  pthread_t worker;
  bool busy;  // inside a function of the C library, which must not be left by a stack switch
  char* stacks;
  unsigned stacks_used, free_stacks;
  Fiber* free_stack[MAX_THREADS];
  void* worker_stack_pointer;
  Launch* launch;
  uint3 index;
  bool traced;
  unsigned serial;  // unique among all blocks of this process
  unsigned warps_used, alive;
  unsigned arrived, epoch;  // threads at the barrier; number of barriers passed
  uint64_t barrier_path;
  int barrier_line, left_thread;
  int unwaited, unwaited_line;  // the first thread that returned with unfinished copies, -1: none
  NamedBarrier named[NAMED_BARRIERS];
  bool named_used;
  int votes, voters;  // for __syncthreads_count(), _and() and _or()
  bool failed;
  bool meeting;  // a warp function runs for its lanes, and no other thread may run before it ends
  Warp warp[MAX_THREADS / 32];
  Fiber* fiber[MAX_THREADS];
  bool started[MAX_THREADS];
  AsyncCopies copies[MAX_THREADS];
  Array shared[MAX_SHARED_ARRAYS];
  int shared_arrays;
  char* dynamic;
  size_t dynamic_capacity;
  bool unwritten;  // unwritten shared memory was read; reported at the next barrier unless it is a race
  Finding unwritten_finding;
  bool atomics;  // this block has called an atomic
  struct Publication* fences;  // what this block's fences cover
  struct Clocks* clocks;       // order between threads through flags, locks and named barriers
};

}  // namespace runtime
