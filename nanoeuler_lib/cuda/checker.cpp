// checker.cpp: the part of the runtime that watches a checked launch. runtime.cpp includes it.
//
// A checked kernel is compiled with -fsanitize=thread, whose only effect on the code is a call before every load and
// store (__tsan_read4(address), ...), with -fsanitize=bounds and others, which call __ubsan_handle_*, and with
// -fsanitize-coverage=trace-pc, which calls __sanitizer_cov_trace_pc() in every basic block. The libraries that
// usually stand behind those calls are not linked: the functions at the end of this file take their place. Because
// each access is looked at before it happens, a wild pointer becomes a finding and not a crash. (With g++ one kind is not
// told: a struct passed by value straight from memory, f(x[i]) for a float4; float4 v = x[i] is.)

// ---- who accessed a piece of memory last: one cell for at most 4 bytes ---------------------------------------

// Two words, so that a visit stays in registers: the checker spends its time here.
struct Visit {
  uint64_t when;  // the block's serial number, and below it how many barriers it had passed
  uint64_t who;   // from the top: site (32 bits), warp's epoch (18), kind (3), thread's number + 32 (11)

  unsigned serial() const { return (unsigned)(when >> 32); }
  Site site() const { return (Site)(who >> 32); }
  int kind() const { return (int)(who >> 11 & 7); }
  int thread() const { return (int)(who & 0x7ff) - 32; }  // negative: nobody
  bool same_group(Visit other) const {  // the same kind of access, warp, and stretch between two barriers
    return when == other.when && ((who ^ other.who) & 0xffffffe0u) == 0;
  }
  bool same_warp_epoch(Visit now) const;  // of two lanes of a warp: no __syncwarp() came between, for these two
  bool same_thread(Visit other) const { return when >> 32 == other.when >> 32 && ((who ^ other.who) & 0x7ff) == 0; }
};

namespace runtime {
struct Cell {
  Visit write;
  Visit read, read_before;  // the last two readers
  Visit read_elsewhere;     // the last reader of another warp than the last one
};
static_assert(sizeof(Cell) == 64, "a cell is one cache line");
}  // namespace runtime

static Array arrays[MAX_ARRAYS];  // the arguments
static int array_count;
static Array nowhere;
static Array* recent[2] = {&nowhere, &nowhere};  // the two arrays that were accessed last
static unsigned first_serial;
static unsigned char* published;  // of each block: it called __threadfence() and then an atomic
static double deadline;
static int ticks, profiled_ticks;

// The library's own range of addresses: __constant__ and __device__ variables lie in it.
#if defined(__APPLE__)
#include <mach-o/getsect.h>
#include <mach-o/loader.h>
extern "C" const struct mach_header_64 __dso_handle;
static uintptr_t library_start() { return (uintptr_t)&__dso_handle; }
static bool in_library(uintptr_t address) {
  unsigned long bytes = 0;
  uintptr_t data = (uintptr_t)getsegmentdata(&__dso_handle, "__DATA", &bytes);
  return address >= library_start() && address < data + bytes;
}
#else
extern "C" __attribute__((visibility("hidden"))) char __ehdr_start, _end;
static uintptr_t library_start() { return (uintptr_t)&__ehdr_start; }
static bool in_library(uintptr_t address) { return address >= library_start() && address < (uintptr_t)&_end; }
#endif

// Word by word: as one copy of 16 bytes it would wait for the words to reach the memory first.
static inline void put(Visit& place, Visit visit) {
  place.when = visit.when;
  place.who = visit.who;
}

// Did `earlier` happen before `later`, by barriers alone?
static inline bool ordered(Visit earlier, Visit later) {
  if (earlier.thread() < 0) return true;
  if (earlier.serial() != later.serial())  // two blocks: only through a fence and atomics on both sides
    return published[earlier.serial() - first_serial] && checked_block->atomics;
  if (earlier.when != later.when || earlier.same_thread(later)) return true;
  bool same_warp = earlier.thread() / 32 == later.thread() / 32;
  return same_warp && !earlier.same_warp_epoch(later);
}

inline bool Visit::same_warp_epoch(Visit now) const {
  const Warp& warp = checked_block->warp[now.thread() / 32];
  unsigned age = (unsigned)((now.who >> 14) - (who >> 14)) & 0x3ffff, met = warp.met[now.thread() % 32][thread() % 32];
  return warp.epoch - (met < warp.all_met ? warp.all_met : met) >= age;
}

static void check_syncwarp(Warp* warp, unsigned lanes) {
  unsigned met[32] = {};
  warp->epoch++;
  if (lanes == ~0u) {
    warp->all_met = warp->epoch;
    return;
  }
  for (unsigned rest = lanes; rest; rest &= rest - 1)
    for (int b = 0, lane = __builtin_ctz(rest); b < 32; b++)
      if (met[b] < warp->met[lane][b]) met[b] = warp->met[lane][b];
  for (unsigned rest = lanes; rest; rest &= rest - 1) met[__builtin_ctz(rest)] = warp->epoch;
  for (unsigned rest = lanes; rest; rest &= rest - 1) memcpy(warp->met[__builtin_ctz(rest)], met, sizeof met);
}

// ---- findings ---------------------------------------------------------------------------------------------

static bool is_shared(Block* block, Array* array) {
  return array >= block->shared && array < block->shared + MAX_SHARED_ARRAYS;
}

static void locate(Finding* finding, Block* block, Site site, Array* array, uintptr_t address) {
  finding->site = site;
  finding->offset = (int64_t)address;
  if (!array) return;
  bool shared = is_shared(block, array);
  finding->array = shared ? -2 : (int)(array - arrays);
  finding->offset = (int64_t)(address - array->start);
  finding->element = array->element;
  finding->columns = array->columns;
  finding->bytes = array->end - array->start;
  snprintf(finding->name, sizeof finding->name, "%s", array->name);
}

static Finding* describe(Fiber* fiber, Site site, Array* array, uintptr_t address, const char* kind,
                         const char* message) {
  report(fiber->block, fiber, kind, "%s", message);
  Finding* finding = &fiber->block->launch->config->finding;
  locate(finding, fiber->block, site, array, address);
  return finding;
}

[[noreturn]] static void race(Fiber* fiber, Visit now, Visit then, Array* array, uintptr_t address) {
  bool both_write = now.kind() & then.kind() & WRITE;
  Finding* finding = describe(fiber, now.site(), array, address, "race",
                              both_write ? "two threads write" : "one thread writes, another reads");
  finding->other_thread = then.serial() == now.serial() ? then.thread() : -2;  // -2: of another block
  finding->other_site = then.site();
  leave(fiber->block);
}

// A read of shared memory that nobody has written may be half of a race, which tells more: wait for the barrier.
static void check_barrier(Block* block) {
  Config* c = block->launch->config;
  if (block->unwritten) {
    report(block, nullptr, "uninitialised", "%s", "");
    c->finding = block->unwritten_finding;
    leave(block);
  }
  if (block->alive && block->alive < block->launch->threads) {
    unsigned t = 0;
    while (!block->started[t] || !(block->warp[t / 32].alive >> t % 32 & 1)) t++;  // one that waits
    report(block, block->fiber[t], "divergent barrier", 
           "another thread never comes to this __syncthreads(): it has left the kernel");
    c->finding.site = site_of_line(block->barrier_line);
    c->finding.other_thread = block->left_thread;
    leave(block);
  }
}

static void check_exit(Fiber* fiber) {
  AsyncCopies& copies = fiber->block->copies[fiber->thread];
  if (copies.length == 0) return;
  describe(fiber, site_of_line(copies.copy[0].line), nullptr, 0, "missing wait",
           "a copy_async is never waited for (copy_async_commit, then copy_async_wait)");
  copies.length = 0;
  leave(fiber->block);
}

// ---- one access -------------------------------------------------------------------------------------------

static Array* find_array(Block* block, uintptr_t address) {
  for (int i = 0; i < block->shared_arrays; i++)
    if (address - block->shared[i].start < block->shared[i].end - block->shared[i].start) return &block->shared[i];
  for (int i = 0; i < array_count; i++)
    if (address - arrays[i].start < arrays[i].end - arrays[i].start) return &arrays[i];
  return nullptr;
}

[[noreturn]] static void out_of_bounds(Fiber* fiber, Site site, uintptr_t address, int kind) {
  Block* block = fiber->block;
  const char* message = kind & WRITE ? "write" : "read";
  if (address < 4096) message = kind & WRITE ? "write through a null pointer" : "read through a null pointer";
  else if (address - (uintptr_t)block->stacks < block->stacks_used * STACK_BYTES)
    message = "a pointer to another thread's local variable is used";
  Array* nearest = nullptr;
  uintptr_t distance = 64u << 20;
  for (int i = 0; i < block->shared_arrays + array_count; i++) {
    Array* a = i < block->shared_arrays ? &block->shared[i] : &arrays[i - block->shared_arrays];
    uintptr_t wrapped = address - ((uintptr_t)a->element << 32);  // an unsigned index that fell below 0
    uintptr_t away = a->start - wrapped < distance ? a->start - wrapped
                   : address < a->start ? a->start - address : address - a->end;
    if (away >= distance) continue;
    distance = away;
    nearest = a;
  }
  describe(fiber, site, nearest, address, "out of bounds", message);
  leave(block);
}

[[noreturn]] static void misaligned(Fiber* fiber, Site site, Array* array, uintptr_t address, int bytes) {
  char message[80];
  snprintf(message, sizeof message, "%d bytes at once need an address that is a multiple of %d", bytes, bytes);
  describe(fiber, site, array, address, "misaligned", message);
  leave(fiber->block);
}

static inline Visit visit_now(Fiber* fiber, Block* block, int kind, Site site) {
  uint64_t warp_epoch = fiber->warp->epoch & 0x3ffff;
  return {(uint64_t)block->serial << 32 | block->epoch,
          (uint64_t)site << 32 | warp_epoch << 14 | (uint64_t)kind << 11 | (uint64_t)(fiber->thread + 32)};
}

static inline void remember_reader(Cell* cell, Visit now) {
  Visit reader = cell->read;
  // Two readers of one group are enough: whoever writes next is another thread than one of them.
  if (reader.same_group(now) && cell->read_before.same_group(now)) return;
  if (!reader.same_thread(now)) {
    put(cell->read_before, reader);
    bool same_warp = reader.thread() / 32 == now.thread() / 32 && reader.serial() == now.serial();
    if (!same_warp) put(cell->read_elsewhere, reader);
  }
  put(cell->read, now);
}

// Most accesses read 4 bytes that were written before the last barrier, or by nobody: those are settled here, at half
// the price. False: `access` has to look.
static inline bool plain_read(uintptr_t address, Site site) {
  Block* block = checked_block;
  Array* array = recent[0];
  if (address - array->start >= array->end - array->start) {
    array = recent[1];
    if (address - array->start >= array->end - array->start) return false;
  }
  if (address & 3 || array->grain != 2 || !array->shadow || block->traced || array->end - address < 4) return false;
  Cell* cell = &array->shadow[(address - array->start) >> 2];
  Visit then = cell->write;
  uint64_t when = (uint64_t)block->serial << 32 | block->epoch;
  bool before = (then.when ^ when) >> 32 == 0 && then.when != when && then.kind() != ASYNC;
  bool never = then.when == 0 && !is_shared(block, array);
  if (!before && !never) return false;
  remember_reader(cell, visit_now(self(), block, READ, site));
  return true;
}

static void visit(Fiber* fiber, Array* array, uintptr_t address, int bytes, Visit now);

static void access(uintptr_t address, int bytes, int kind, Site site) {
  Block* block = checked_block;
  if (!block) return;
  uintptr_t here = (uintptr_t)__builtin_frame_address(0);
  if ((address ^ here) / STACK_BYTES == 0) return;  // a local variable
  Fiber* fiber = self();
  if (kind == ATOMIC) {
    block->atomics = true;
    if (block->fenced) published[block->serial - first_serial] = 1;
  }
  Array* array = recent[0];
  if (address - array->start >= array->end - array->start) {
    array = find_array(block, address);
    if (!array && in_library(address)) return;  // __constant__ and __device__ variables
    if (!array) out_of_bounds(fiber, site, address, kind);
    recent[1] = recent[0];
    recent[0] = array;
  }
  if (address + bytes > array->end) {
    describe(fiber, site, array, address, "out of bounds", kind & WRITE ? "write" : "read");
    leave(block);
  }
  if (address & (uintptr_t)(bytes - 1)) misaligned(fiber, site, array, address, bytes);  // 1, 2, 4, 8 or 16
  Config* c = block->launch->config;
  if (block->traced && c->trace_length < c->trace_capacity) {
    bool shared = is_shared(block, array);
    int number = shared ? -1 - (int)(array - block->shared) : (int)(array - arrays);
    int64_t offset = (int64_t)(address - array->start);
    c->trace[c->trace_length++] = {offset, site, number, fiber->thread, bytes, kind};
  }
  visit(fiber, array, address, bytes, visit_now(fiber, block, kind, site));
}

// An array is used in smaller pieces than before (a float array that holds 16-bit numbers now): let each have its cell.
static void split_cells(Array* array, int grain) {
  size_t cells = ((array->end - array->start) >> grain) + 1;
  Cell* finer = (Cell*)calloc(cells, sizeof(Cell));
  for (size_t i = 0; array->shadow && i < cells; i++) finer[i] = array->shadow[i >> (array->grain - grain)];
  free(array->shadow);
  array->shadow = finer;
  array->grain = grain;
}

// Compare with those who were here before; remember this visit.
static void visit(Fiber* fiber, Array* array, uintptr_t address, int bytes, Visit now) {
  Block* block = fiber->block;
  if (grain_of(bytes) < array->grain) split_cells(array, grain_of(bytes));
  if (!array->shadow) array->shadow = (Cell*)calloc(((array->end - array->start) >> array->grain) + 1, sizeof(Cell));
  Cell* cell = &array->shadow[(address - array->start) >> array->grain];
  Cell* end = &array->shadow[(address + bytes - 1 - array->start) >> array->grain];
  bool writes = now.kind() & WRITE;
  for (; cell <= end; cell++) {
    if (cell->write.serial() != now.serial() && is_shared(block, array)) {  // never written, or by an earlier block
      cell->write = {};
      if (cell->read.serial() != now.serial()) cell->read = cell->read_before = cell->read_elsewhere = {};
      if (!writes && !block->unwritten) {
        block->unwritten = true;
        begin_finding(&block->unwritten_finding, fiber, "uninitialised",
                      "shared memory is read before anything is written there");
        locate(&block->unwritten_finding, block, now.site(), array, address);
      }
    }
    Visit then = cell->write;
    if (then.kind() == ASYNC && then.serial() == now.serial() && !(now.kind() == WRITE && then.same_thread(now))) {
      Finding* finding = describe(fiber, now.site(), array, address, "missing wait",
                                  "an asynchronous copy to this place has not been waited for");
      finding->other_site = then.site();
      leave(block);
    }
    bool atomics = now.kind() == ATOMIC && then.kind() == ATOMIC;
    if (!atomics && !ordered(then, now)) race(fiber, now, then, array, address);
    if (writes) {
      const Visit* readers[] = {&cell->read, &cell->read_before, &cell->read_elsewhere};
      for (const Visit* reader : readers)
        if (!ordered(*reader, now)) race(fiber, now, *reader, array, address);
      put(cell->write, now);
    } else {
      remember_reader(cell, now);
    }
  }
}

static void range(const void* start, size_t bytes, int kind, Site site) {
  uintptr_t address = (uintptr_t)start;
  size_t step = address % 4 == 0 && bytes % 4 == 0 ? 4 : 1;
  if ((bytes == 8 || bytes == 16) && address % bytes == 0) step = bytes;  // moved as a whole, as a GPU would
  for (size_t i = 0; i < bytes; i += step) access(address + i, (int)step, kind, site);
}

RUNTIME_API void check_range(const void* start, size_t bytes, int kind, int line) {
  range(start, bytes, kind, site_of_line(line));
}

RUNTIME_API void check_access(const void* address, int bytes, int kind, int line) {
  access((uintptr_t)address, bytes, kind, site_of_line(line));
}

// Some instructions reach one kind of memory only: where the GPU takes a pointer's lower half for an address in shared
// memory, another array's address would be read there. (What is in no array at all, `access` tells.)
RUNTIME_API void check_space(const void* address, bool shared, int line) {
  Block* block = checked_block;
  uintptr_t at = (uintptr_t)address;
  Array* array = find_array(block, at);
  bool local = (at ^ (uintptr_t)__builtin_frame_address(0)) / STACK_BYTES == 0;
  if (array ? is_shared(block, array) == shared : !local && !(shared && in_library(at))) return;
  describe(self(), site_of_line(line), array, at, "failure",
           shared ? "this takes an address in shared memory, and got another" :
           "this takes an address in global memory, and got another");
  leave(block);
}

// The second half of an access that has been checked and traced before: a copy arrives, a lane gets its part of a row.
RUNTIME_API void check_visit(const void* address, int bytes, int kind, int line) {
  Array* array = find_array(checked_block, (uintptr_t)address);
  visit(self(), array, (uintptr_t)address, bytes, visit_now(self(), checked_block, kind, site_of_line(line)));
}

static void note(Block* block, Site site, int kind, int flops) {
  Config* c = block->launch->config;
  if (c->trace_length < c->trace_capacity) c->trace[c->trace_length++] = {0, site, 0, self()->thread, flops, kind};
}

RUNTIME_API void count_flops(int flops, int line) {
  if (checked_block->traced) note(checked_block, site_of_line(line), FLOPS, flops);
}

// ---- endless loops, faults --------------------------------------------------------------------------------

// Called every 65,536 basic blocks: look at the clock, and let the other threads run, as a GPU does. In a launch that is
// profiled every one comes here, to be noted.
static void tick(Site site) {
  Block* block = checked_block;
  bool profiled = block && block->launch->config->traced_block >= 0;
  ticks = profiled ? 0 : 1 << 16;
  if (!block || block->meeting) return;  // g++ 11 watches the lanes of a warp function, too: see RAW
  if (profiled && block->traced) note(block, site, ENTERED, 0);
  if (profiled && ++profiled_ticks % (1 << 16) != 0) return;
  if (seconds_now() > deadline) {
    describe(self(), site, nullptr, 0, "endless", "the launch takes too long: is there a loop that never ends?");
    leave(block);
  }
  run_another(self(), true);
}

// What slips past the checks (a stack that overflows, a call through a wild pointer) arrives here as a signal.
static const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
static struct sigaction former_action[4];
static stack_t former_stack;
static char signal_stack[64 * 1024];
static pthread_t launching_thread;

static void on_signal(int signal, siginfo_t*, void* context) {
  Block* block = checked_block;
  if (!block || !pthread_equal(pthread_self(), launching_thread)) {
    // Not ours: the former handler deals with it when the instruction runs again.
    for (int i = 0; i < 4; i++) sigaction(SIGNALS[i], &former_action[i], nullptr);
    return;
  }
  uintptr_t stack_pointer = 0, instruction = 0;
  ucontext_t* interrupted = (ucontext_t*)context;
#if defined(__linux__) && defined(__x86_64__)
  stack_pointer = (uintptr_t)interrupted->uc_mcontext.gregs[REG_RSP];
  instruction = (uintptr_t)interrupted->uc_mcontext.gregs[REG_RIP];
#elif defined(__linux__) && defined(__aarch64__)
  stack_pointer = interrupted->uc_mcontext.sp;
  instruction = interrupted->uc_mcontext.pc;
#else
  (void)interrupted;
#endif
  bool known = stack_pointer - (uintptr_t)block->stacks < block->stacks_used * STACK_BYTES;
  Fiber* fiber = known ? record_of(stack_pointer & ~(STACK_BYTES - 1)) : nullptr;
  report(block, fiber, "crash", "%s", signal == SIGFPE ? "an integer division that has no result" :
         "a wild pointer, or a stack that overflows (recursion, large local arrays)");
  if (in_library(instruction)) block->launch->config->finding.site = (Site)(instruction + 1 - library_start());
  leave(block);
}

static void check_begin(Launch* launch) {
  Config* c = launch->config;
  array_count = c->arguments < MAX_ARRAYS ? c->arguments : MAX_ARRAYS;
  for (int i = 0; i < array_count; i++) {
    const Argument& a = c->argument[i];
    uintptr_t end = (uintptr_t)(a.start + a.bytes);
    arrays[i] = {(uintptr_t)a.start, end, a.name, (int)a.element, 0, grain_of(a.element), 0, nullptr};
  }
  recent[0] = recent[1] = &nowhere;
  first_serial = serials + 1;
  published = (unsigned char*)calloc(launch->blocks, 1);
  deadline = seconds_now() + c->seconds;
  ticks = c->traced_block >= 0 ? 0 : 1 << 16;
  launching_thread = pthread_self();
  stack_t stack = {};
  stack.ss_sp = signal_stack;
  stack.ss_size = sizeof signal_stack;
  sigaltstack(&stack, &former_stack);
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // the handler never returns: the next one must come
  for (int i = 0; i < 4; i++) sigaction(SIGNALS[i], &action, &former_action[i]);
}

static void check_end(Launch*) {
  for (int i = 0; i < 4; i++) sigaction(SIGNALS[i], &former_action[i], nullptr);
  sigaltstack(&former_stack, nullptr);
  for (int i = 0; i < array_count; i++) free(arrays[i].shadow);
  free(published);
  array_count = 0;
}

RUNTIME_API void check_from(const void* address, int bytes, int kind, void* caller) {
  access((uintptr_t)address, bytes, kind, (Site)((uintptr_t)caller - library_start()));
}

// ---- what the compiler calls ------------------------------------------------------------------------------

#define HERE ((Site)((uintptr_t)__builtin_return_address(0) - library_start()))

RUNTIME_API void __sanitizer_cov_trace_pc() {
  if (--ticks < 0) tick(HERE);
}

// Of `unaligned` ones the compiler knows that they need less alignment than their size: a struct of four floats.
#define UNALIGNED_HOOKS(PREFIX, BYTES)                                                                               \
  RUNTIME_API void __tsan_##PREFIX##read##BYTES(void* p) { range(p, BYTES, READ, HERE); }                            \
  RUNTIME_API void __tsan_##PREFIX##write##BYTES(void* p) { range(p, BYTES, WRITE, HERE); }
#define HOOKS(PREFIX, BYTES)                                                                                         \
  RUNTIME_API void __tsan_##PREFIX##read##BYTES(void* p) {                                                           \
    if (BYTES != 4 || !plain_read((uintptr_t)p, HERE)) access((uintptr_t)p, BYTES, READ, HERE);                      \
  }                                                                                                                  \
  RUNTIME_API void __tsan_##PREFIX##write##BYTES(void* p) { access((uintptr_t)p, BYTES, WRITE, HERE); }              \
  RUNTIME_API void __tsan_##PREFIX##read_write##BYTES(void* p) {                                                     \
    access((uintptr_t)p, BYTES, READ, HERE);                                                                         \
    access((uintptr_t)p, BYTES, WRITE, HERE);                                                                        \
  }
#define ALL_HOOKS(BYTES) \
  HOOKS(, BYTES) HOOKS(volatile_, BYTES) UNALIGNED_HOOKS(unaligned_, BYTES) UNALIGNED_HOOKS(unaligned_volatile_, BYTES)
ALL_HOOKS(1) ALL_HOOKS(2) ALL_HOOKS(4) ALL_HOOKS(8) ALL_HOOKS(16)

RUNTIME_API void __tsan_read_range(void* p, unsigned long bytes) { range(p, bytes, READ, HERE); }
RUNTIME_API void __tsan_write_range(void* p, unsigned long bytes) { range(p, bytes, WRITE, HERE); }
// Clang copies a float4 so, and does not tell its alignment: 8 and 16 bytes count as vectors.
RUNTIME_API void* __tsan_memcpy(void* to, void* from, unsigned long bytes) {
  bool vector = bytes == 8 || bytes == 16;
  vector ? access((uintptr_t)from, (int)bytes, READ, HERE) : range(from, bytes, READ, HERE);
  vector ? access((uintptr_t)to, (int)bytes, WRITE, HERE) : range(to, bytes, WRITE, HERE);
  return memcpy(to, from, bytes);
}
RUNTIME_API void* __tsan_memmove(void* to, void* from, unsigned long bytes) {
  range(from, bytes, READ, HERE);
  range(to, bytes, WRITE, HERE);
  return memmove(to, from, bytes);
}
RUNTIME_API void* __tsan_memset(void* to, int value, unsigned long bytes) {
  range(to, bytes, WRITE, HERE);
  return memset(to, value, bytes);
}
RUNTIME_API void __tsan_init() {}
RUNTIME_API void __tsan_func_exit() {}
RUNTIME_API void __tsan_func_entry(void*) {
  uintptr_t here = (uintptr_t)__builtin_frame_address(0);
  Block* block = checked_block;
  if (!block || here % STACK_BYTES > 12 * 1024) return;
  describe(self(), HERE, nullptr, 0, "crash", "the thread's stack is full: endless recursion, or large local arrays");
  leave(block);
}

struct Place {
  const char* file;
  unsigned line, column;
};
static void undefined(Place* place, const char* format, uintptr_t value, const char* kind = "undefined") {
  if (!checked_block) return;
  Fiber* fiber = self();
  report(fiber->block, fiber, kind, format, (long long)(int64_t)value);
  fiber->block->launch->config->finding.site = site_of_line((int)place->line);
  fiber->block->launch->config->finding.columns = (int)place->column;
  leave(fiber->block);
}
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
struct ArrayPlace {
  Place place;
  struct Type {
    uint16_t kind, info;
    char name[1];  // "'float [16]'"
  }* type;
};
RUNTIME_API void __ubsan_handle_out_of_bounds(ArrayPlace* p, uintptr_t index) {
  char format[120];
  snprintf(format, sizeof format, "index %%lld of an array %.80s", p->type->name);
  undefined(&p->place, format, index, "out of bounds");
}
struct TypePlace {
  Place place;
  void* type;
  unsigned char log_alignment;
};
RUNTIME_API void __ubsan_handle_type_mismatch_v1(TypePlace* p, uintptr_t address) {
  if (!checked_block) return;
  Array* array = find_array(checked_block, address);
  misaligned(self(), site_of_line((int)p->place.line), array, address, 1 << p->log_alignment);
}
#define OVERFLOWS(NAME, TEXT) \
  RUNTIME_API void __ubsan_handle_##NAME##_overflow(Place* p, uintptr_t left) { undefined(p, TEXT, left); }
OVERFLOWS(add, "int overflow: %lld + ... is too large for its type")
OVERFLOWS(sub, "int overflow: %lld - ... is too large for its type")
OVERFLOWS(mul, "int overflow: %lld * ... is too large for its type")
OVERFLOWS(negate, "int overflow: -(%lld) is too large for its type")
OVERFLOWS(divrem, "integer division of %lld by zero, or a quotient too large for its type")
RUNTIME_API void __ubsan_handle_shift_out_of_bounds(Place* p, uintptr_t, uintptr_t by) {
  undefined(p, "shift by %lld bits", by);
}
