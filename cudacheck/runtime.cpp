// runtime.cpp: runs a CUDA kernel on the CPU. It is linked into the shared library of every compiled kernel.
//
// A grid is a list of blocks, which are distributed over a few operating system threads (workers). A worker runs one
// block at a time, and each CUDA thread of that block as a fiber: a function with its own stack. A fiber runs until it
// reaches a barrier or a warp function. There it yields to the next runnable fiber by swapping the stack pointer. So a
// block needs no locks, and the order of its threads is the same in every run.
//
// With -DCHECKED it includes checker.cpp, which sees every load and store of the kernel. It uses the C library but not
// the C++ library, so that any compiler links it quickly.
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "runtime.h"

using namespace runtime;

#define INLINE inline __attribute__((always_inline))  // for functions in which a checked kernel spends its time

static void report(Block*, Fiber*, const char* kind, const char* format, ...) __attribute__((format(printf, 4, 5)));
static void report_at(int line, Fiber*, const char* kind, const char* format, ...) __attribute__((format(printf, 4, 5)));
static void begin_finding(Finding*, Fiber*, const char* kind, const char* message);
[[noreturn]] static void leave(Block*);
static void check_begin(Launch*);
static void check_end(Launch*);
static void check_turn();
static void check_block(Block*);
static void check_barrier(Block*);
static void note_calls(Fiber*, Site* trail);
static void check_syncwarp(Block*, Warp*, unsigned lanes);
static void check_fence(Fiber*, bool of_block);
static void check_named_barrier(Fiber*, NamedBarrier*, bool complete);
static void check_exit(Fiber*);
static void check_exits(Fiber*);
static void guard();
static void unguard();
static void offer_signal_stack();

// ---- launching --------------------------------------------------------------------------------------------

static void* work(void* launch);

// Returns whether the kernel has printed anything or a bug was found.
RUNTIME_API int launch(void (*call)(void (*)(), void**), void (*kernel)(), void** arguments, void* config) {
  Config* c = (Config*)config;
  c->output_length = c->output_cut = 0;
  c->trace_length = 0;
  c->finding.kind[0] = 0;
  Launch launch = {};
  launch.config = c;
  launch.call = call;
  launch.kernel = kernel;
  launch.arguments = arguments;
  launch.threads = c->block[0] * c->block[1] * c->block[2];
  launch.blocks = (uint64_t)c->grid[0] * c->grid[1] * c->grid[2];
  int workers = c->workers < MAX_WORKERS ? c->workers : MAX_WORKERS;
  if ((uint64_t)workers > launch.blocks) workers = (int)launch.blocks;
  if (launch.blocks * launch.threads < 2048) workers = 1;  // starting a worker takes longer than this launch
  launch.thread = pthread_self();
  check_begin(&launch);
  guard();
  pthread_t thread[MAX_WORKERS];
  int started = 0;
  while (started < workers - 1 && !pthread_create(&thread[started], nullptr, work, &launch)) started++;
  work(&launch);
  for (int i = 0; i < started; i++) pthread_join(thread[i], nullptr);
  unguard();
  check_end(&launch);
  return c->output_length || c->output_cut || c->finding.kind[0];
}

static Block* take_block();
static void give_back_block(Block*);
static void run_block(Block*, uint64_t linear_index);
static Block* checked_block;  // the block of the only worker that a checked launch has

static void* work(void* argument) {
  Launch* launch = (Launch*)argument;
  Block* block = take_block();
  offer_signal_stack();
  block->worker = pthread_self();
  __atomic_store_n(&block->launch, launch, __ATOMIC_RELEASE);  // a signal handler that sees it also sees the worker
  checked_block = block;
  size_t dynamic = launch->config->shared_bytes + 128;
  if (block->dynamic_capacity < dynamic) {
    free(block->dynamic);
    block->dynamic = (char*)malloc(dynamic);
    block->dynamic_capacity = dynamic;
  }
  while (!__atomic_load_n(&launch->stop, __ATOMIC_RELAXED)) {
    uint64_t index = __atomic_fetch_add(&launch->next, 1, __ATOMIC_RELAXED);
    if (index >= launch->blocks) break;
    run_block(block, index);
  }
  checked_block = nullptr;
  block->launch = nullptr;
  give_back_block(block);
  return nullptr;
}

static Block *free_blocks, *all_blocks;
static int free_blocks_lock;
static void lock(int* l) {
  while (__atomic_exchange_n(l, 1, __ATOMIC_ACQUIRE)) {}
}
static void unlock(int* l) { __atomic_store_n(l, 0, __ATOMIC_RELEASE); }

static Block* take_block() {
  lock(&free_blocks_lock);
  Block* block = free_blocks;
  if (block) free_blocks = block->next_free;
  unlock(&free_blocks_lock);
  if (block) return block;
  block = (Block*)calloc(1, sizeof(Block));
  // Pages are allocated on first access. The guard bytes on either side are inaccessible, so an overflow faults there.
  size_t bytes = MAX_THREADS * STACK_BYTES + 2 * GUARD_BYTES;
  char* memory = (char*)mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) __builtin_trap();
  block->stacks = (char*)(((uintptr_t)memory + GUARD_BYTES - 1) & ~(STACK_BYTES - 1));
  if (mprotect(block->stacks, MAX_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE)) __builtin_trap();
  lock(&free_blocks_lock);
  block->next = all_blocks;
  __atomic_store_n(&all_blocks, block, __ATOMIC_RELEASE);
  unlock(&free_blocks_lock);
  return block;
}

static void forget(AsyncCopies& copies) { copies.length = copies.group = copies.waited = copies.left = 0; }

static void give_back_block(Block* block) {
  for (int i = 0; i < block->shared_arrays; i++) free(block->shared[i].shadow);
  block->shared_arrays = 0;
  block->busy = block->meeting = false;
  if (block->failed) {  // its fibers did not finish: discard their stacks
    block->stacks_used = block->free_stacks = 0;
    for (AsyncCopies& copies : block->copies) forget(copies);
  }
  block->failed = false;
  lock(&free_blocks_lock);
  block->next_free = free_blocks;
  free_blocks = block;
  unlock(&free_blocks_lock);
}

static INLINE void switch_to(Block*, void** save, int thread);
static unsigned serials;

static unsigned all_lanes(Block* block, int warp) {
  unsigned rest = block->launch->threads - (unsigned)warp * 32;
  return rest < 32 ? (1u << rest) - 1 : ~0u;
}

static void run_block(Block* block, uint64_t linear_index) {
  const unsigned* grid = block->launch->config->grid;
  unsigned threads = block->launch->threads;
  block->traced = (int64_t)linear_index == block->launch->config->traced_block;
  block->index = {(unsigned)(linear_index % grid[0]), (unsigned)(linear_index / grid[0] % grid[1]),
                  (unsigned)(linear_index / grid[0] / grid[1])};
  block->serial = __atomic_add_fetch(&serials, 1, __ATOMIC_RELAXED);
  block->alive = threads;
  block->arrived = block->epoch = 0;
  block->left_thread = block->unwaited = -1;
  block->unwritten = block->atomics = false;
  for (NamedBarrier& named : block->named) {
    if (!block->named_used) break;
    free(named.told);
    named = {};
  }
  block->named_used = false;
  check_block(block);
  block->warps_used = (threads + 31) / 32;
  memset(block->started, 0, threads);
  for (unsigned w = 0; w < block->warps_used; w++) {
    block->warp[w].alive = block->warp[w].runnable = all_lanes(block, (int)w);
    block->warp[w].first = (int)(w * 32);
  }
  switch_to(block, &block->worker_stack_pointer, 0);  // returns after the last thread, or after a finding
}

// ---- switching stacks: save the registers that a call must preserve, swap the stack pointer, restore ------

#if defined(__APPLE__)
#define SYMBOL "_switch_stack"
#else
#define SYMBOL "switch_stack"
#endif
extern "C" void switch_stack(void** save, void* load);
#if defined(__x86_64__)
asm(".text\n.globl " SYMBOL "\n" SYMBOL ":\n"
    " pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
    " movq %rsp,(%rdi)\n movq %rsi,%rsp\n"
    " popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n");
enum { FRAME_WORDS = 8, FRAME_ENTRY = 6 };  // size of a new stack's frame, and index of the entry point in it
#elif defined(__aarch64__)
asm(".text\n.globl " SYMBOL "\n.p2align 2\n" SYMBOL ":\n"
    " sub sp,sp,#160\n stp x19,x20,[sp]\n stp x21,x22,[sp,#16]\n stp x23,x24,[sp,#32]\n stp x25,x26,[sp,#48]\n"
    " stp x27,x28,[sp,#64]\n stp x29,x30,[sp,#80]\n stp d8,d9,[sp,#96]\n stp d10,d11,[sp,#112]\n"
    " stp d12,d13,[sp,#128]\n stp d14,d15,[sp,#144]\n mov x9,sp\n str x9,[x0]\n mov sp,x1\n"
    " ldp x19,x20,[sp]\n ldp x21,x22,[sp,#16]\n ldp x23,x24,[sp,#32]\n ldp x25,x26,[sp,#48]\n"
    " ldp x27,x28,[sp,#64]\n ldp x29,x30,[sp,#80]\n ldp d8,d9,[sp,#96]\n ldp d10,d11,[sp,#112]\n"
    " ldp d12,d13,[sp,#128]\n ldp d14,d15,[sp,#144]\n add sp,sp,#160\n ret\n");
enum { FRAME_WORDS = 20, FRAME_ENTRY = 11 };
#else
#error "no stack switch for this processor"
#endif

// ---- fibers: a thread gets a stack when it first runs, and returns it at its end --------------------------

static void run_threads();

static Fiber* new_stack(Block* block) {
  if (block->free_stacks) return block->free_stack[--block->free_stacks];
  unsigned number = block->stacks_used++;
  char* base = block->stacks + number * STACK_BYTES;
  char* top = base + STACK_BYTES - 64 - number * 13 % 64 * 64;  // staggered over the sets of the cache
  void** frame = (void**)top - FRAME_WORDS;
  memset(frame, 0, FRAME_WORDS * sizeof(void*));
  frame[FRAME_ENTRY] = (void*)run_threads;
  Fiber* fiber = record_of((uintptr_t)base);
  fiber->stack_pointer = frame;
  return fiber;
}

static void become_thread(Fiber* fiber, Block* block, int thread) {
  const unsigned* size = block->launch->config->block;
  const unsigned* grid = block->launch->config->grid;
  unsigned t = (unsigned)thread;
  fiber->threadIdx = {t % size[0], t / size[0] % size[1], t / (size[0] * size[1])};
  fiber->blockIdx = block->index;
  fiber->blockDim = dim3(size[0], size[1], size[2]);
  fiber->gridDim = dim3(grid[0], grid[1], grid[2]);
  fiber->thread = thread;
  fiber->lane = thread % 32;
  fiber->warp = &block->warp[thread / 32];
  fiber->block = block;
  fiber->waits_at = nullptr;
  fiber->waits_function = nullptr;
  fiber->waits_at_line = 0;
  fiber->fence_epoch = 0;
  block->fiber[thread] = fiber;
  block->started[thread] = true;
}

static int next_warp(Block*, const Warp*);

// Returns the next runnable thread: this warp's other lanes in order, then the next warps; -1: none. With `leave_warp`
// the warp's lower lanes come after the other warps, so that every thread gets its turn.
static INLINE int next_runnable(Fiber* fiber, bool leave_warp = false) {
  const Warp* warp = fiber->warp;
  unsigned lane = 1u << fiber->lane, others = warp->runnable & ~lane, above = others & -lane;
  if (above) return warp->first + __builtin_ctz(above);
  if (others && !leave_warp) return warp->first + __builtin_ctz(others);
  return next_warp(fiber->block, warp);
}

static int next_warp(Block* block, const Warp* warp) {
  for (unsigned k = 1, w = (unsigned)(warp - block->warp); k <= block->warps_used; k++) {
    const Warp& next = block->warp[(w + k) % block->warps_used];
    if (next.runnable) return next.first + __builtin_ctz(next.runnable);
  }
  return -1;
}

static INLINE void switch_to(Block* block, void** save, int thread) {
  check_turn();
  if (!block->started[thread]) become_thread(new_stack(block), block, thread);
  switch_stack(save, block->fiber[thread]->stack_pointer);
}

static bool stopped(Block* block) { return __atomic_load_n(&block->launch->stop, __ATOMIC_RELAXED); }

[[noreturn]] static void leave(Block* block) {  // abandon all fibers of the block and return to the worker
  void* forgotten;
  block->failed = true;
  switch_stack(&forgotten, block->worker_stack_pointer);
  __builtin_unreachable();
}

static void deadlock(Block*);

static INLINE void run_another(Fiber* fiber, bool leave_warp = false) {
  Block* block = fiber->block;
  int thread = next_runnable(fiber, leave_warp);
  if (thread < 0) {
    deadlock(block);
    leave(block);
  }
  if (thread != fiber->thread) switch_to(block, &fiber->stack_pointer, thread);
  if (stopped(block)) leave(block);
}

RUNTIME_API void let_others_run() { run_another(self(), true); }

static void release_barrier(Block*);
static void end_block(Block*);
[[noreturn]] static void divergent_barrier(Fiber*, int line);
static bool all_wait(Block*, Warp*, unsigned lanes);
static void meet(Fiber*, unsigned lanes);

// The first function on every stack: runs one thread after another until all threads have started.
static void run_threads() {
  Fiber* fiber = self();
  fiber->top = (uintptr_t)__builtin_frame_address(0);
  for (;;) {
    Block* block = fiber->block;
    block->launch->call(block->launch->kernel, block->launch->arguments);
    if (stopped(block)) leave(block);
    check_exit(fiber);
    Warp* warp = fiber->warp;
    unsigned lane = 1u << fiber->lane;
    warp->last_line[fiber->lane] = fiber->waits_at_line;
    warp->last_mask[fiber->lane] = fiber->waits_mask;
    warp->alive &= ~lane;
    warp->runnable &= ~lane;
    forget(block->copies[fiber->thread]);
    block->left_thread = fiber->thread;
    block->alive--;
    if (block->arrived && block->arrived == block->alive) {  // a barrier does not wait for exited threads,
      release_barrier(block);
    } else {  // nor does a warp function
      for (unsigned rest = warp->alive & ~warp->runnable; rest; rest &= rest - 1) {
        int waiting_thread = warp->first + __builtin_ctz(rest);
        Fiber* waiting = block->fiber[waiting_thread];
        if (!block->started[waiting_thread] || !waiting->waits_function) continue;
        unsigned lanes = waiting->waits_mask & warp->alive;
        if (!all_wait(block, warp, lanes)) continue;
        meet(waiting, lanes);
        break;
      }
    }
    int next = next_runnable(fiber);
    if (next < 0 && block->alive) {
      deadlock(block);
      leave(block);
    }
    if (next < 0) {
      end_block(block);
      check_exits(fiber);
    }
    if (next >= 0 && !block->started[next]) {
      check_turn();
      become_thread(fiber, block, next);  // a new thread reuses this stack without a switch
      continue;
    }
    block->free_stack[block->free_stacks++] = fiber;
    if (next >= 0) switch_to(block, &fiber->stack_pointer, next);
    else switch_stack(&fiber->stack_pointer, block->worker_stack_pointer);
  }
}

// ---- barriers ---------------------------------------------------------------------------------------------

// A stack frame. A hash of the return addresses identifies the calls that led a thread to a barrier, because a function
// with a barrier may be called from two branches. Checked kernels are compiled so that their frames are a linked list.
struct Frame {
  Frame* caller;
  uintptr_t return_address;
};

#ifdef CHECKED
// Above the kernel's own frame are two of device.h, the same for all threads, which the path leaves out.
static uintptr_t find_kernel_return(Fiber* fiber, const Frame* frame) {
  uintptr_t last[3] = {1, 1, 1};
  for (const Frame* next; frame < (Frame*)fiber->top; frame = next) {
    last[0] = last[1];
    last[1] = last[2];
    last[2] = frame->return_address;
    next = frame->caller;
    if (next <= frame) break;
  }
  return fiber->block->launch->kernel_returns_to = last[0];
}
#endif

// frame: that of a runtime function that a function of device.h has called.
static INLINE uint64_t path_of(Fiber* fiber, void* frame) {
  uint64_t path = 1;
#ifdef CHECKED
  fiber->path_frame = frame;
  const Frame *top = (Frame*)fiber->top, *next = ((Frame*)frame)->caller;
  uintptr_t kernel_returns_to = fiber->block->launch->kernel_returns_to;
  if (!kernel_returns_to) kernel_returns_to = find_kernel_return(fiber, next);
  for (const Frame* f = next; f < top && f->return_address != kernel_returns_to; f = next) {
    path = path * 0x9e3779b97f4a7c15u + f->return_address;
    next = f->caller;
    if (next <= f) break;  // the kernel has overwritten it
  }
#endif
  return path;
}

RUNTIME_API unsigned long long call_path() { return path_of(self(), __builtin_frame_address(0)); }

static INLINE void wait_at_barrier(Fiber* fiber, uint64_t path, int line) {
  Block* block = fiber->block;
  if (block->arrived == 0) {
    block->barrier_line = line;
    block->barrier_path = path;
  }
  if (block->barrier_path != path) divergent_barrier(fiber, line);
  fiber->waits_at = "__syncthreads()";
  fiber->waits_at_line = line;
  if (++block->arrived == block->alive) {
    release_barrier(block);
  } else {
    fiber->warp->runnable &= ~(1u << fiber->lane);
    run_another(fiber);
  }
  fiber->waits_at = nullptr;
}

RUNTIME_API void barrier(int line) {
  Fiber* fiber = self();
  wait_at_barrier(fiber, path_of(fiber, __builtin_frame_address(0)), line);
}

static void release_barrier(Block* block) {
  check_barrier(block);
  block->epoch++;
  block->arrived = 0;
  for (unsigned w = 0; w < block->warps_used; w++) block->warp[w].runnable = block->warp[w].alive;
}

[[noreturn]] static void divergent_barrier(Fiber* fiber, int line) {
  Block* block = fiber->block;
  int other = block->barrier_line;
  report(block, fiber, "divergent barrier", other == line ?
         "threads of one block reach the __syncthreads() of line %d from different places, or by two calls of it" :
         "threads of one block wait at different __syncthreads(): line %d and line %d", other, line);
  block->launch->config->finding.site = site_of_line(line);
  if (other != line) block->launch->config->finding.other_site = site_of_line(other);
  note_calls(fiber, block->launch->config->finding.trail);
  for (unsigned t = 0; t < block->launch->threads; t++) {
    Fiber* waiting = block->started[t] && block->warp[t / 32].alive >> t % 32 & 1 ? block->fiber[t] : nullptr;
    if (!waiting || !waiting->waits_at || strcmp(waiting->waits_at, "__syncthreads()")) continue;
    note_calls(waiting, block->launch->config->finding.trail + TRAIL / 2);
    break;
  }
  leave(block);
}

RUNTIME_API int barrier_reduce(int predicate, int operation, int line) {
  Fiber* fiber = self();
  Block* block = fiber->block;
  uint64_t path = path_of(fiber, __builtin_frame_address(0));
  if (block->arrived == 0) block->votes = block->voters = 0;
  block->votes += predicate != 0;
  block->voters++;
  wait_at_barrier(fiber, path, line);
  int votes = block->votes, voters = block->voters;
  wait_at_barrier(fiber, path + 1, line);  // all read this count before the next one starts
  return operation == 0 ? votes : operation == 1 ? votes == voters : votes != 0;
}

// Reports a warp of which only some lanes have reached a named barrier.
static void expect_whole_warps(Block* block, int number) {
  const NamedBarrier& b = block->named[number];
  for (int w = 0; w < (int)block->warps_used && b.arrived; w++) {
    unsigned missing = b.came[w] ? all_lanes(block, w) & ~b.came[w] : 0;
    if (!missing) continue;
    report(block, nullptr, "divergent barrier", "named barrier %d: lane %d of warp %d reached it, and lane %d did not",
           number, __builtin_ctz(b.came[w]), w, __builtin_ctz(missing));
    block->launch->config->finding.site = site_of_line(b.line);
    leave(block);
  }
}

// Returns whether a lane reaches the barrier again although its whole warp has arrived and the barrier still waits. A
// lane that is ahead of its warp first lets the others catch up.
static bool comes_again(Fiber* fiber, const NamedBarrier* b) {
  const unsigned *came = &b->came[fiber->thread / 32], lane = 1u << fiber->lane;
  while (*came & lane && fiber->warp->alive & ~*came) {
    if (next_runnable(fiber) == fiber->thread) return true;
    run_another(fiber);
  }
  return *came & lane;
}

// Arrives at barrier `number`, for `threads` threads in whole warps; without `waits`, only counts (bar.arrive).
RUNTIME_API void named_barrier(int number, int threads, bool waits, int line) {
  Fiber* fiber = self();
  Block* block = fiber->block;
  Warp* warp = fiber->warp;
  NamedBarrier* b = &block->named[number & (NAMED_BARRIERS - 1)];
  int w = warp->first / 32;
  uint64_t path = path_of(fiber, __builtin_frame_address(0));
  const char* wrong = nullptr;
  if (number < 1 || number >= NAMED_BARRIERS) wrong = "named barrier: its number must be 1 to 15 (0 is __syncthreads()), got %d";
  else if (threads < 32 || threads > MAX_THREADS || threads % 32)
    wrong = "named barrier %d: whole warps meet, so the count must be 32, 64, ..., 1024, got %d";
  else if (b->arrived && b->threads != threads)
    wrong = "named barrier %d: this call is for %d threads, and one that waits is for %d";
  else if (comes_again(fiber, b))
    wrong = "named barrier %d: a warp arrives a second time before the others of its %d threads have arrived once";
  else if (b->path[w] && b->path[w] != path)
    wrong = "named barrier %d: the lanes of a warp arrive by two different calls";
  if (wrong) {
    char message[160];
    snprintf(message, sizeof message, wrong, number, threads, b->threads);
    report_at(line, fiber, "divergent barrier", "%s", message);
    leave(block);
  }
  block->named_used = true;
  b->threads = threads;
  b->line = line;
  b->path[w] = path;
  b->came[w] |= 1u << fiber->lane;
  bool complete = ++b->arrived == threads;
  if (complete) expect_whole_warps(block, number);
  if (waits) b->waiting[w] |= 1u << fiber->lane;
  check_named_barrier(fiber, b, complete);
  if (complete) {
    for (unsigned v = 0; v < block->warps_used; v++) block->warp[v].runnable |= b->waiting[v] & block->warp[v].alive;
    *b = {};
    return;
  }
  if (!waits) return;
  fiber->waits_at = "named_barrier_sync()";
  fiber->waits_at_line = line;
  warp->runnable &= ~(1u << fiber->lane);
  run_another(fiber);
  fiber->waits_at = nullptr;
}

static void end_block(Block* block) {
  check_barrier(block);
  for (int number = 1; number < NAMED_BARRIERS && block->named_used; number++) expect_whole_warps(block, number);
}

// ---- warp functions ---------------------------------------------------------------------------------------

RUNTIME_API void warp_function(unsigned mask, WarpFunction function, void* argument, const char* name, int line) {
  Fiber* fiber = self();
  Block* block = fiber->block;
  Warp* warp = fiber->warp;
  if (!(mask >> fiber->lane & 1)) {
    report_at(line, fiber, "warp function", "%s: the calling lane %d is not in its mask 0x%08x", name,
              fiber->lane, mask);
    leave(block);
  }
  fiber->waits_at = name;
  fiber->waits_at_line = line;
  fiber->waits_mask = mask;
  fiber->waits_function = function;
  fiber->waits_argument = argument;
  warp->runnable &= ~(1u << fiber->lane);
  unsigned lanes = mask & warp->alive;
  if (all_wait(block, warp, lanes)) meet(fiber, lanes);
  else run_another(fiber);
}

static bool all_wait(Block* block, Warp* warp, unsigned lanes) {
  if (warp->runnable & lanes) return false;
  for (unsigned rest = lanes; rest; rest &= rest - 1) {
    int thread = warp->first + __builtin_ctz(rest);
    if (!block->started[thread] || !block->fiber[thread]->waits_function) return false;
  }
  return true;
}

// Reports an exited lane of this call's mask that had made the same call with a different mask.
static void expect_one_mask(Fiber* fiber, unsigned gone, unsigned lanes) {
  const Warp* warp = fiber->warp;
  for (; gone; gone &= gone - 1) {
    int lane = __builtin_ctz(gone);
    if (warp->last_line[lane] != fiber->waits_at_line || warp->last_mask[lane] & lanes) continue;
    report_at(fiber->waits_at_line, fiber, "warp function", "lanes of one warp call one %s with different masks: "
              "lane %d with 0x%08x, and lane %d with 0x%08x", fiber->waits_at, fiber->lane, fiber->waits_mask, lane,
              warp->last_mask[lane]);
    leave(fiber->block);
  }
}

static void meet(Fiber* fiber, unsigned lanes) {
  Block* block = fiber->block;
  Warp* warp = fiber->warp;
  void* argument[32];
  if (unsigned gone = fiber->waits_mask & ~lanes) expect_one_mask(fiber, gone & all_lanes(block, fiber->thread / 32), lanes);
  for (unsigned rest = lanes; rest; rest &= rest - 1) {
    int lane = __builtin_ctz(rest);
    Fiber* other = block->fiber[warp->first + lane];
    argument[lane] = other->waits_argument;
    bool same = other->waits_at == fiber->waits_at || strcmp(other->waits_at, fiber->waits_at) == 0;
    if (same && other->waits_function == fiber->waits_function && other->waits_mask == fiber->waits_mask) continue;
    report_at(other->waits_at_line, other, "warp function",
              "lanes of one warp meet at different warp functions: %s (line %d, mask 0x%08x) and %s (line %d, mask 0x%08x)",
              other->waits_at, other->waits_at_line, other->waits_mask,
              fiber->waits_at, fiber->waits_at_line, fiber->waits_mask);
    leave(block);
  }
  block->meeting = true;
  fiber->waits_function(argument, lanes);
  block->meeting = false;
  if (strcmp(fiber->waits_at, "__syncwarp") == 0) check_syncwarp(block, warp, lanes);  // the only one that orders memory
  for (unsigned rest = lanes; rest; rest &= rest - 1) {
    Fiber* other = block->fiber[warp->first + __builtin_ctz(rest)];
    other->waits_function = nullptr;
    other->waits_at = nullptr;
  }
  warp->runnable |= lanes;
}

struct Shuffle {
  int source;  // the lane to read from; -1: it does not take part
  unsigned long long in, out;
};

static void shuffle_lanes(void** argument, unsigned lanes) {
  for (unsigned rest = lanes; rest; rest &= rest - 1) {
    Shuffle* mine = (Shuffle*)argument[__builtin_ctz(rest)];
    if (lanes >> mine->source & 1) mine->out = ((Shuffle*)argument[mine->source])->in;
    else mine->source = -1;
  }
}

// Returns the bits of another lane in the same segment of `width` lanes; beyond the segment, the lane's own bits.
RUNTIME_API unsigned long long shuffle(unsigned mask, unsigned long long bits, int how, int by, int width,
                                       const char* name, int line) {
  Fiber* fiber = self();
  if (width < 1 || width > 32 || width & (width - 1)) {
    report_at(line, fiber, "warp function", "%s: its width must be 1, 2, 4, 8, 16 or 32, got %d", name, width);
    leave(fiber->block);
  }
  int lane = fiber->lane, first = lane & -width, source = lane;
  if (how == FROM) source = first + (by & (width - 1));
  else if (how == UP && (unsigned)by <= (unsigned)(lane - first)) source = lane - by;
  else if (how == DOWN && (unsigned)by < (unsigned)(first + width - lane)) source = lane + by;
  else if (how == XOR && (unsigned)(lane ^ by) < (unsigned)(first + width)) source = lane ^ by;
  Shuffle mine = {source, bits, 0};
  warp_function(mask, shuffle_lanes, &mine, name, line);
  if (mine.source >= 0) return mine.out;
  report_at(line, fiber, "failure", "a shuffle reads from a lane that takes no part in it: %s of lane %d reads lane %d, %s 0x%08x",
            name, lane, source, mask >> source & 1 ? "which has returned or does not exist, though it is in the mask"
            : "which is not in the mask", mask);
  leave(fiber->block);
}

// For matrix.cuh: matrix products are computed here because a checked kernel's own code is not optimised.
RUNTIME_API double dot(double sum, const double* a, const double* b, int length) {
  for (int k = 0; k < length; k++) sum += a[k] * b[k];
  return sum;
}

// ---- shared memory ----------------------------------------------------------------------------------------

// Called where a shared array is declared. The first thread of a block that gets there fills it with 0xff bytes, which
// are NaN as a float, since a kernel cannot rely on what a GPU leaves there either.
RUNTIME_API void shared_array(void* start, size_t bytes, size_t element, int columns, const char* name) {
  Block* block = self()->block;
  Array* array = nullptr;
  for (int i = 0; i < block->shared_arrays && !array; i++)
    if (block->shared[i].start == (uintptr_t)start) array = &block->shared[i];
  if (array && array->serial == block->serial) return;
  if (!array) {
    if (block->shared_arrays == MAX_SHARED_ARRAYS) return;
    Config* c = block->launch->config;
    if (c->traced_block >= 0 && block->shared_arrays < TRACED_SHARED)
      snprintf(c->shared_name[block->shared_arrays], sizeof c->shared_name[0], "%s", name);
    array = &block->shared[block->shared_arrays++];
    int grain = grain_of((int64_t)element);
    *array = {(uintptr_t)start, (uintptr_t)start + bytes, name, (int)element, columns, grain, 0, false, "shared", nullptr};
    size_t total = 0;
    for (int i = 0; i < block->shared_arrays; i++)
      if (block->shared[i].start - (uintptr_t)block->dynamic >= block->dynamic_capacity)
        total += block->shared[i].end - block->shared[i].start;
    if (total > MAX_STATIC_SHARED) {
      report(block, self(), "shared memory",
             "the __shared__ arrays take %zu bytes with %s, and a kernel has %d: declare one of them extern and pass "
             "its size as shared_mem", total, name, (int)MAX_STATIC_SHARED);
      leave(block);
    }
    if (total + c->shared_bytes > c->shared_limit) {
      report(block, self(), "shared memory", "the __shared__ arrays take %zu bytes with %s, and shared_mem %u more: a "
             "block has %u on this GPU", total, name, c->shared_bytes, c->shared_limit);
      leave(block);
    }
  }
  array->serial = block->serial;
  memset(start, 0xff, bytes);
}

RUNTIME_API void* dynamic_shared(size_t element, const char* name) {
  Block* block = self()->block;
  void* start = (void*)(((uintptr_t)block->dynamic + 127) & ~(uintptr_t)127);
  shared_array(start, block->launch->config->shared_bytes, element, 0, name);
  return start;
}

// ---- asynchronous copies: their data arrives at the wait, never earlier -----------------------------------

RUNTIME_API void check_access(const void* address, int bytes, int kind, int line);
RUNTIME_API void check_range(const void* start, size_t bytes, int kind, int line);
RUNTIME_API void check_visit(const void* address, int bytes, int kind, int line);
RUNTIME_API void check_space(const void* address, bool shared, int line);

// The first `given` bytes come from global memory, the remaining ones are zeros.
RUNTIME_API void async_copy(void* shared, const void* global, int bytes, int given, int line) {
  check_space(shared, true, line);
  if (given) check_space(global, false, line);
  if (given == bytes) check_access(global, bytes, READ, line);
  else if (given) check_range(global, given, READ, line);
  check_access(shared, bytes, ASYNC, line);
  AsyncCopies& copies = self()->block->copies[self()->thread];
  if (copies.length == copies.capacity) {
    copies.capacity = copies.capacity ? 2 * copies.capacity : 16;
    Block* block = self()->block;
    block->busy = true;
    copies.copy = (AsyncCopy*)realloc(copies.copy, copies.capacity * sizeof(AsyncCopy));
    block->busy = false;
  }
  copies.copy[copies.length++] = {shared, global, bytes, given, copies.group, line};
}

RUNTIME_API void async_commit() { self()->block->copies[self()->thread].group++; }

RUNTIME_API void async_wait(int groups_left) {
  AsyncCopies& copies = self()->block->copies[self()->thread];
  int done = 0;
  while (done < copies.length && copies.copy[done].group < copies.group - groups_left) {
    AsyncCopy& copy = copies.copy[done++];
    check_visit(copy.to, copy.bytes, WRITE, copy.line);
    memcpy(copy.to, copy.from, copy.given);
    memset((char*)copy.to + copy.given, 0, copy.bytes - copy.given);
  }
  copies.waited = copies.group;
  copies.left = groups_left;
  copies.length -= done;
  memmove(copies.copy, copies.copy + done, copies.length * sizeof(AsyncCopy));
}

// The library's own range of addresses: code, string literals, variables.
#if defined(__APPLE__)
#include <mach-o/getsect.h>
#include <mach-o/loader.h>
extern "C" const struct mach_header_64 __dso_handle;
static uintptr_t library_start() { return (uintptr_t)&__dso_handle; }
static uintptr_t library_end() {
  unsigned long bytes = 0;
  uintptr_t data = (uintptr_t)getsegmentdata(&__dso_handle, "__DATA", &bytes);
  return data + bytes;
}
static uintptr_t code_end() { return library_end(); }
#else
extern "C" __attribute__((visibility("hidden"))) char __ehdr_start, _etext, _end;
static uintptr_t library_start() { return (uintptr_t)&__ehdr_start; }
static uintptr_t library_end() { return (uintptr_t)&_end; }
static uintptr_t code_end() { return (uintptr_t)&_etext; }
#endif
static bool in_library(uintptr_t address) { return address - library_start() < library_end() - library_start(); }

// ---- fences, printing, clock, failing ---------------------------------------------------------------------

RUNTIME_API void fence(bool of_block) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  check_fence(self(), of_block);
}

static bool sound_print(Block*, const char* format, va_list values, int room, void* caller);

RUNTIME_API int print(const char* format, ...) {
  Block* block = self()->block;
  Launch* launch = block->launch;
  Config* c = launch->config;
  va_list values;
  va_start(values, format);
  if (!sound_print(block, format, values, c->output_capacity, __builtin_return_address(0))) leave(block);
  va_end(values);
  va_start(values, format);
  block->busy = true;
  lock(&launch->output_lock);
  int room = c->output_capacity - c->output_length;
  int length = vsnprintf(c->output + c->output_length, room, format, values);
  if (length > 0) c->output_length += length < room ? length : room - 1;
  c->output_cut |= length >= room;
  unlock(&launch->output_lock);
  block->busy = false;
  va_end(values);
  return length;
}

static const char* text_fault(Block*, const char* text, int most);

// Checks printf's arguments before they are passed to the C library; reports a fault and returns false if there is one.
static bool sound_print(Block* block, const char* format, va_list values, int room, void* caller) {
  char wrong[120] = "";
  const char* fault = format ? text_fault(block, format, -1) : "is a null pointer";
  if (fault) snprintf(wrong, sizeof wrong, "the format %s", fault);
  for (const char* f = format; !*wrong && (f = strchr(f, '%')) != nullptr; f++) {
    f += 1 + strspn(f + 1, "-+ #0'");
    long size[2] = {0, -1};  // width and precision
    for (int i = 0; i < 2; i++) {
      if (i == 1 && *f != '.') break;
      f += i;
      if (*f == '*') size[i] = va_arg(values, int), f++;
      else size[i] = strtol(f, (char**)&f, 10);
    }
    bool wide = *f && strchr("lqjzt", *f), longest = *f == 'L';
    f += strspn(f, "hlLqjzt");
    if (size[0] > room || -size[0] > room || size[1] > room) {
      snprintf(wrong, sizeof wrong, "a width or precision must be at most %d, got %ld", room, size[size[0] <= room]);
    } else if (*f == 's') {
      const char* text = va_arg(values, const char*);
      fault = text ? text_fault(block, text, (int)size[1]) : nullptr;  // a null pointer prints as (null)
      if (fault) snprintf(wrong, sizeof wrong, "the text of %%s %s", fault);
    } else if (*f == 'n') {
      snprintf(wrong, sizeof wrong, "a GPU has no %%n");
    } else if (*f && strchr("eEfFgGaA", *f)) {
      if (longest) va_arg(values, long double);
      else va_arg(values, double);
    } else if (*f == 'p' || (wide && *f && strchr("diuoxX", *f))) {
      va_arg(values, long long);
    } else if (*f && strchr("diuoxXc", *f)) {
      va_arg(values, int);
    } else if (*f != '%') {
      break;  // leave unknown conversions to the C library
    }
  }
  if (!*wrong) return true;
  report(block, self(), fault ? "out of bounds" : "failure", "printf: %s", wrong);
  block->launch->config->finding.site = (Site)((uintptr_t)caller - library_start());
  return false;
}

static double seconds_now() {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

RUNTIME_API long long nanoseconds() { return (long long)(seconds_now() * 1e9); }

RUNTIME_API void fail(const char* message, int line) {
  Fiber* fiber = self();
  report_at(line, fiber, "failure", "%s", message);
  leave(fiber->block);
}

// Functions of the C library that end the process are replaced by these, which end only the kernel.
#if !defined(__APPLE__)
[[noreturn]] static void ends_process(const char* name, void* caller) {
  Fiber* fiber = self();
  report(fiber->block, fiber, "failure", "%s() would end the whole process: a kernel has __trap() for that", name);
  fiber->block->launch->config->finding.site = (Site)((uintptr_t)caller - library_start());
  leave(fiber->block);
}
#define ENDS_PROCESS(NAME, DECLARATION)                                                            \
  extern "C" __attribute__((visibility("hidden"), used)) void kernel_##DECLARATION asm(#NAME);     \
  void kernel_##DECLARATION { ends_process(#NAME, __builtin_return_address(0)); }
ENDS_PROCESS(exit, exit(int)) ENDS_PROCESS(_exit, _exit(int)) ENDS_PROCESS(_Exit, _Exit(int))
ENDS_PROCESS(quick_exit, quick_exit(int)) ENDS_PROCESS(abort, abort())
#endif

// Records the first finding of the launch and stops all workers.
static Finding* report_values(Block* block, Fiber* fiber, const char* kind, const char* format, va_list values) {
  static Finding spare;  // for a second worker that finds a bug at the same time
  block->failed = true;
  bool first = !__atomic_exchange_n(&block->launch->stop, 1, __ATOMIC_SEQ_CST);
  Finding* finding = first ? &block->launch->config->finding : &spare;
  char message[sizeof finding->message];
  vsnprintf(message, sizeof message, format, values);
  begin_finding(finding, fiber, kind, message);
  return finding;
}

static void report(Block* block, Fiber* fiber, const char* kind, const char* format, ...) {
  va_list values;
  va_start(values, format);
  report_values(block, fiber, kind, format, values);
  va_end(values);
}

static void report_at(int line, Fiber* fiber, const char* kind, const char* format, ...) {
  va_list values;
  va_start(values, format);
  report_values(fiber->block, fiber, kind, format, values)->site = site_of_line(line);
  va_end(values);
}

static void begin_finding(Finding* finding, Fiber* fiber, const char* kind, const char* message) {
  *finding = {};
  snprintf(finding->kind, sizeof finding->kind, "%s", kind);
  snprintf(finding->message, sizeof finding->message, "%s", message);
  finding->array = finding->other_thread = -1;
  finding->has_thread = fiber != nullptr;
  if (!fiber) return;
  memcpy(finding->block, &fiber->blockIdx, sizeof finding->block);
  memcpy(finding->thread, &fiber->threadIdx, sizeof finding->thread);
}

static void deadlock(Block* block) {
  char list[400] = "";
  int length = 0, line = 0;
  Fiber* first = nullptr;
  for (unsigned t = 0; t < block->launch->threads && length < 240; t++) {
    Fiber* fiber = block->started[t] ? block->fiber[t] : nullptr;
    if (!fiber || !(fiber->warp->alive >> fiber->lane & 1) || !fiber->waits_at) continue;
    if (fiber->waits_at_line == line) continue;  // one thread for each line
    if (!first) first = fiber;
    line = fiber->waits_at_line;
    length += snprintf(list + length, sizeof list - length, "%sthread (%u,%u,%u) waits at %s in line %d",
                       length ? ", " : "", fiber->threadIdx.x, fiber->threadIdx.y, fiber->threadIdx.z,
                       fiber->waits_at, line);
  }
  report(block, first, "deadlock", "no thread of the block can continue: %s", list);
  if (first) block->launch->config->finding.site = site_of_line(first->waits_at_line);
}

// ---- faults and Ctrl-C -------------------------------------------------------------------------------------

// A fault (a wild pointer, a stack overflow, a division by zero) ends the launch but not the process; so does Ctrl-C.
// The signal handlers are installed while a launch runs in any thread of the process. An unchecked text's fault
// handlers stay installed, because each change is a system call and a launch takes only a microsecond. Outside of
// launches they call the former handlers.
static const int SIGNALS[] = {SIGINT, SIGSEGV, SIGFPE, SIGBUS, SIGILL, SIGABRT};
#if defined(CHECKED) || defined(__APPLE__)
enum { GUARDED = 6 };
#else
enum { GUARDED = 3 };
#endif
#ifdef CHECKED
enum { STAY = false };
#else
enum { STAY = true };
#endif
static struct sigaction former_action[GUARDED];
static bool standing[GUARDED];
static int guards, guards_lock;

// Returns the block that this thread of the process runs, if the interrupted stack belongs to one of its fibers.
static Block* interrupted_block(uintptr_t stack_pointer, bool anywhere) {
  for (Block* b = __atomic_load_n(&all_blocks, __ATOMIC_ACQUIRE); b; b = b->next)
    if (__atomic_load_n(&b->launch, __ATOMIC_ACQUIRE) && pthread_equal(b->worker, pthread_self()))
      return anywhere || stack_pointer - (uintptr_t)b->stacks < b->stacks_used * STACK_BYTES ? b : nullptr;
  return nullptr;
}

static void on_fault(Block*, int signal, uintptr_t stack_pointer, uintptr_t instruction, uintptr_t address);

static void call_former(int signal, siginfo_t* info, void* context) {
  for (int i = 0; i < GUARDED; i++) {
    struct sigaction& former = former_action[i];
    if (SIGNALS[i] != signal) continue;
    if (former.sa_flags & SA_SIGINFO) former.sa_sigaction(signal, info, context);
    else if (former.sa_handler == SIG_DFL) sigaction(signal, &former, nullptr), signal == SIGINT && raise(signal);
    else if (former.sa_handler != SIG_IGN) former.sa_handler(signal);
  }
}

static void registers_of(void* context, uintptr_t* stack_pointer, uintptr_t* instruction) {
  ucontext_t* interrupted = (ucontext_t*)context;
#if defined(__linux__) && defined(__x86_64__)
  *stack_pointer = (uintptr_t)interrupted->uc_mcontext.gregs[REG_RSP];
  *instruction = (uintptr_t)interrupted->uc_mcontext.gregs[REG_RIP];
#elif defined(__linux__) && defined(__aarch64__)
  *stack_pointer = interrupted->uc_mcontext.sp;
  *instruction = interrupted->uc_mcontext.pc;
#else
  (void)interrupted;
#endif
}

static void on_interrupt(int signal, siginfo_t* info, void* context) {
  Block* block = interrupted_block(0, true);
  bool told = block && stopped(block);
  if (!told) call_former(signal, info, context);
  if (!block) return;
  Launch* launch = block->launch;
  if (!told) report(block, nullptr, "interrupted", "%s", "by Ctrl-C");
  for (Block* b = __atomic_load_n(&all_blocks, __ATOMIC_ACQUIRE); b && !told; b = b->next)
    if (__atomic_load_n(&b->launch, __ATOMIC_ACQUIRE) == launch && b != block) pthread_kill(b->worker, SIGINT);
  bool in_fiber = interrupted_block((uintptr_t)__builtin_frame_address(0), false) && !block->busy;
  if (in_fiber) leave(block);
}

static void on_signal(int signal, siginfo_t* info, void* context) {
  uintptr_t stack_pointer = 0, instruction = 0;
  registers_of(context, &stack_pointer, &instruction);
  Block* block = interrupted_block(0, true);
  if (!block) return call_former(signal, info, context);
  if (block->busy) unlock(&block->launch->output_lock);  // the fault is in printf's arguments
  on_fault(block, signal, stack_pointer, instruction, (uintptr_t)info->si_addr);
  leave(block);
}

static void guard() {
  lock(&guards_lock);
  for (int i = 0; i < GUARDED && guards == 0; i++) {
    if (standing[i]) continue;
    struct sigaction action = {};
    action.sa_sigaction = SIGNALS[i] == SIGINT ? on_interrupt : on_signal;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | (SIGNALS[i] == SIGINT ? 0 : SA_ONSTACK);  // a handler may never return
    sigaction(SIGNALS[i], &action, &former_action[i]);
    standing[i] = true;
  }
  guards++;
  unlock(&guards_lock);
}

static void unguard() {
  lock(&guards_lock);
  guards--;
  for (int i = 0; i < GUARDED && guards == 0; i++) {
    if (STAY && SIGNALS[i] != SIGINT) continue;
    sigaction(SIGNALS[i], &former_action[i], nullptr);
    standing[i] = false;
  }
  unlock(&guards_lock);
}

// Gives fault handlers a separate stack, because the fiber's own stack may be the cause of the fault.
static void offer_signal_stack() {
  static thread_local char memory[32 * 1024];
  static thread_local bool offered;
  if (offered) return;
  stack_t stack = {};
  stack.ss_sp = memory;
  stack.ss_size = sizeof memory;
  sigaltstack(&stack, nullptr);
  offered = true;
}

static Fiber* fiber_at(Block* block, uintptr_t stack_pointer) {
  if (stack_pointer - (uintptr_t)block->stacks >= block->stacks_used * STACK_BYTES) return nullptr;
  Fiber* fiber = record_of(stack_pointer & ~(STACK_BYTES - 1));
  for (unsigned t = 0; t < block->launch->threads; t++)
    if (block->started[t] && block->fiber[t] == fiber && block->warp[t / 32].alive >> t % 32 & 1) {
      // The kernel may have overwritten the fiber's record, so restore it from the block's data.
      const unsigned* size = block->launch->config->block;
      fiber->threadIdx = {t % size[0], t / size[0] % size[1], t / (size[0] * size[1])};
      fiber->blockIdx = block->index;
      fiber->block = block;
      fiber->thread = (int)t;
      return fiber;
    }
  return nullptr;
}

#ifdef CHECKED
#include "checker.cpp"
#else
static void check_begin(Launch*) {}
static void check_end(Launch*) {}
static void check_turn() {}
static void check_block(Block*) {}
static void check_barrier(Block*) {}
static void check_syncwarp(Block*, Warp*, unsigned) {}
static void check_fence(Fiber*, bool) {}
static void check_named_barrier(Fiber*, NamedBarrier*, bool) {}
static void check_exit(Fiber*) {}
static void check_exits(Fiber*) {}
static void note_calls(Fiber*, Site*) {}
RUNTIME_API void check_access(const void*, int, int, int) {}
RUNTIME_API void check_range(const void*, size_t, int, int) {}
RUNTIME_API void check_space(const void*, bool, int) {}
RUNTIME_API void check_visit(const void*, int, int, int) {}
RUNTIME_API void count_flops(int, int) {}
RUNTIME_API void device_variable(Variable*) {}
static const char* text_fault(Block*, const char*, int) { return nullptr; }
static void on_fault(Block* block, int signal, uintptr_t stack_pointer, uintptr_t, uintptr_t) {
  report(block, fiber_at(block, stack_pointer), "crash", "%s", signal == SIGFPE ?
         "an integer division that has no result (to find where, run with the checker: without --fast or checked=False)" :
         "an access to memory that belongs to no array (to find where, run with the checker: without --fast or checked=False)");
}
#endif
