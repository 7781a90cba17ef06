// checker.cpp: the part of the runtime that checks every access of a launch. runtime.cpp includes it.
//
// A checked kernel is compiled with -fsanitize=thread, whose only effect on the code is a call before every load and
// store (__tsan_read4(address), ...), with -fsanitize=bounds and others, which call __ubsan_handle_*, and with
// -fsanitize-coverage=trace-pc, which calls __sanitizer_cov_trace_pc() in every basic block. The sanitizers' own
// libraries are not linked. The functions at the end of this file replace them. Because each access is checked before
// it happens, a wild pointer becomes a finding instead of a crash. (g++ does not report one kind of access: a struct
// passed by value directly from memory, such as f(x[i]) for a float4; float4 v = x[i] is reported.)

// ---- records of accesses: one cell for at most 4 bytes -------------------------------------------------------

// One access, as two words so that it stays in registers: the checker spends most of its time on these.
struct Visit {
  uint64_t when;  // high half: the block's serial number; low half: number of barriers that it had passed
  uint64_t who;   // from the top: site (32 bits), warp's epoch (18), kind (3), thread's number + 32 (11)

  unsigned serial() const { return (unsigned)(when >> 32); }
  Site site() const { return (Site)(who >> 32); }
  int kind() const { return (int)(who >> 11 & 7); }
  int thread() const { return (int)(who & 0x7ff) - 32; }  // negative: nobody
  bool same_thread(Visit other) const { return when >> 32 == other.when >> 32 && ((who ^ other.who) & 0x7ff) == 0; }
};

// Lanes of one warp that read the cell, or changed it by atomics, in one epoch of the warp.
struct Group {
  Site site;       // site of the first of them; SEVERAL: some came from other sites
  unsigned lanes;  // one bit per lane; 0: an empty group
  unsigned where;  // from the top: warp (5 bits), kind (2), the warp's epoch (25)

  int kind() const { return (int)(where >> 25 & 3); }
  int warp() const { return (int)(where >> 27); }
};
enum : unsigned { SEVERAL = 1u << 30, WARP_EPOCH = (1u << 25) - 1 };

namespace runtime {
// The accesses to one piece of memory with which the next access may race. Between two barriers an access races with
// those of any other warp, so two groups of different warps suffice; within a single warp, lanes are distinguished.
struct Cell {
  Visit write;      // the last write or atomic
  Visit elsewhere;  // a read or an atomic by an earlier block
  uint64_t when;    // time of the groups, as in Visit
  Group group[2];
};
static_assert(sizeof(Cell) == 64, "a cell is one cache line");

// The accesses that a block's fence publishes once an atomic follows it: those before the last barrier before the
// fence, and those of the fence's thread before it (of its warp, up to the warp's last meeting). If several threads
// have called a fence, all accesses count as published.
struct Publication {
  bool done, several;
  int thread;                     // its number + 32; 0: no fence
  unsigned epoch, own, of_warp;  // the block's epoch; the warp's at the fence; the warp's when all lanes last met
};

// Vector clocks: flags, locks and named barriers order threads in pairs. Entry [t][u] is the last epoch of u's warp up
// to which u's accesses are ordered before t's next one. A note has such a row for an address that a thread changed by
// an atomic after a fence.
struct Clocks {
  bool used;
  unsigned threads;
  unsigned* row[MAX_THREADS];
  int notes, capacity;
  struct Note { uintptr_t address; unsigned* row; }* note;
};
}  // namespace runtime

static Array arrays[MAX_ARRAYS];  // the arguments
static int array_count;
static Array nowhere, static_data;
static Variable* variables;  // the __device__ and __constant__ ones
static Array* array_at[256];  // cache: the array last accessed from a site, by the site's low bits
static unsigned first_serial;
static Publication* publications;  // one per block
static double deadline;
static int ticks, profiled_ticks;
static unsigned turns, turn_before;  // number of thread switches; the same at the last look at the clock, or one more

// Copies word by word: a 16-byte load would stall until the separate stores of the two words have completed.
static inline void put(Visit& place, Visit visit) {
  place.when = visit.when;
  place.who = visit.who;
}

static inline bool conflict(int a, int b) { return (a | b) & WRITE && !(a & b & STRONG_READ); }

// Returns the epoch of `of`'s warp up to which its accesses are ordered before those of thread `by`.
static unsigned known(Block* block, int by, int of) {
  unsigned epoch = block->clocks && block->clocks->used ? block->clocks->row[by][of] : 0;
  if (by / 32 != of / 32) return epoch;
  const Warp& warp = block->warp[by / 32];
  unsigned met = warp.met[by % 32][of % 32];
  if (met < warp.all_met) met = warp.all_met;
  return epoch < met ? met : epoch;
}

// Returns whether an access by another block came before a fence of that block which an atomic followed.
static bool published(Visit earlier) {
  const Publication& p = publications[earlier.serial() - first_serial];
  if (!p.done || p.several || earlier.kind() == ATOMIC) return p.done;
  unsigned epoch = (unsigned)earlier.when, warp_epoch = (unsigned)(earlier.who >> 14);
  if (epoch != p.epoch) return epoch < p.epoch;
  int thread = earlier.thread() + 32;
  if (thread / 32 != p.thread / 32) return false;
  unsigned until = thread == p.thread ? p.own : p.of_warp;
  return ((until - warp_epoch - 1) & 0x3ffff) < 0x20000;  // warp_epoch < until
}

// Returns whether `earlier` happened before `later`.
static inline bool ordered(Visit earlier, Visit later) {
  if (earlier.thread() < 0) return true;
  if (earlier.serial() != later.serial())  // two blocks: only through a fence and atomics on both sides
    return checked_block->atomics && published(earlier);
  if (earlier.when != later.when || earlier.same_thread(later)) return true;  // a barrier lies between; one thread
  unsigned epoch = checked_block->warp[earlier.thread() / 32].epoch;
  unsigned age = (epoch - (unsigned)(earlier.who >> 14)) & 0x3ffff;
  return epoch - known(checked_block, later.thread(), earlier.thread()) < age;
}

static unsigned unknown_lanes(Block*, const Group&, int thread, unsigned lanes);

// Returns the lanes of a group, of the current interval between barriers, that nothing orders before `thread` now.
static inline unsigned unordered_lanes(Block* block, const Group& group, int thread) {
  unsigned lanes = group.lanes, epoch = block->warp[group.warp()].epoch, age = (epoch - group.where) & WARP_EPOCH;
  bool same_warp = group.warp() == thread / 32;
  if (same_warp) lanes &= ~(1u << thread % 32);
  if (lanes == 0 || age == 0 || (!same_warp && !(block->clocks && block->clocks->used))) return lanes;
  return unknown_lanes(block, group, thread, lanes);
}

static unsigned unknown_lanes(Block* block, const Group& group, int thread, unsigned lanes) {
  unsigned epoch = block->warp[group.warp()].epoch, age = (epoch - group.where) & WARP_EPOCH;
  for (unsigned rest = lanes; rest; rest &= rest - 1) {
    int lane = __builtin_ctz(rest);
    if (epoch - known(block, thread, group.warp() * 32 + lane) < age) lanes &= ~(1u << lane);
  }
  return lanes;
}

static Visit visit_of(const Cell* cell, const Group& group, int lane) {
  uint64_t who = (uint64_t)group.site << 32 | (uint64_t)(group.where & 0x3ffff) << 14;
  return {cell->when, who | (uint64_t)group.kind() << 11 | (uint64_t)(group.warp() * 32 + lane + 32)};
}

// Returns a read or an atomic on the cell with which `now` races, or an empty visit.
static Visit racing_visit(Block* block, const Cell* cell, Visit now) {
  unsigned kinds = (unsigned)(cell->elsewhere.who >> 11) | (cell->group[0].where | cell->group[1].where) >> 25;
  if (!((kinds | (unsigned)now.kind()) & WRITE)) return {};  // only readers
  if (conflict(cell->elsewhere.kind(), now.kind()) && !ordered(cell->elsewhere, now)) return cell->elsewhere;
  if (cell->when != now.when && cell->when >> 32 == now.serial()) return {};  // a barrier lies between
  for (const Group& group : cell->group) {
    if (!group.lanes || !conflict(group.kind(), now.kind())) continue;
    unsigned lanes = group.lanes;
    if (cell->when == now.when) lanes = unordered_lanes(block, group, now.thread());
    else if (ordered(visit_of(cell, group, __builtin_ctz(lanes)), now)) continue;
    if (!lanes) continue;
    Visit then = visit_of(cell, group, __builtin_ctz(lanes));
    if (lanes == group.lanes) then.who &= ~((uint64_t)SEVERAL << 32);  // its first is among them
    return then;
  }
  return {};
}

// ---- meetings, flags, locks --------------------------------------------------------------------------------

static void join(unsigned* row, const unsigned* other, unsigned threads) {
  for (unsigned t = 0; t < threads; t++) row[t] = row[t] < other[t] ? other[t] : row[t];
}

static void check_syncwarp(Block* block, Warp* warp, unsigned lanes) {
  unsigned met[32] = {};
  warp->epoch++;
  if (Clocks* clocks = block->clocks && block->clocks->used ? block->clocks : nullptr) {
    unsigned** row = clocks->row + warp->first;
    unsigned* first = row[__builtin_ctz(lanes)];
    for (unsigned rest = lanes & (lanes - 1); rest; rest &= rest - 1) join(first, row[__builtin_ctz(rest)], clocks->threads);
    for (unsigned rest = lanes & (lanes - 1); rest; rest &= rest - 1)
      memcpy(row[__builtin_ctz(rest)], first, clocks->threads * sizeof *first);
  }
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

static void free_clocks(Clocks* clocks) {
  for (int i = 0; i < clocks->notes; i++) free(clocks->note[i].row);
  for (unsigned* row : clocks->row) free(row);
  free(clocks->note);
  *clocks = {};
}

static Clocks* use_clocks(Block* block) {
  if (!block->clocks) block->clocks = (Clocks*)calloc(1, sizeof(Clocks));
  Clocks* clocks = block->clocks;
  if (clocks->used) return clocks;
  clocks->used = true;
  clocks->threads = block->launch->threads;
  for (unsigned t = 0; t < clocks->threads; t++) clocks->row[t] = (unsigned*)calloc(clocks->threads, sizeof(unsigned));
  return clocks;
}

// Joins into `row` the clocks of a thread, and its own accesses before its warp's epoch `until`.
static void tell(Block* block, Fiber* fiber, unsigned* row, unsigned until) {
  join(row, block->clocks->row[fiber->thread], block->clocks->threads);
  unsigned last = (unsigned)fiber->warp->first + 32;
  for (unsigned t = last - 32; t < last && t < block->clocks->threads; t++) {
    unsigned epoch = (int)t == fiber->thread ? until : known(block, fiber->thread, (int)t);
    if (row[t] < epoch) row[t] = epoch;
  }
}

static void check_block(Block* block) {
  if (block->clocks && block->clocks->used) free_clocks(block->clocks);
  block->fences = &publications[block->serial - first_serial];
}

static void check_fence(Fiber* fiber, bool of_block) {
  Block* block = fiber->block;
  Publication* p = block->fences;
  fiber->fence_epoch = ++fiber->warp->epoch;
  if (of_block) return;
  p->several |= p->thread && p->thread != fiber->thread + 32;
  p->thread = fiber->thread + 32;
  p->epoch = block->epoch;
  p->own = fiber->fence_epoch;
  unsigned oldest = p->own - 0x1ffff, met = fiber->warp->all_met;
  p->of_warp = (int)(met - oldest) < 0 ? oldest : met;
}

// An atomic acquires the clocks left at its address by earlier atomics, and releases its thread's clocks as of its last
// fence. Volatile reads and writes do the same.
static void check_atomic(Block* block, Fiber* fiber, uintptr_t address, int kind) {
  block->atomics = true;
  if (kind & WRITE && block->fences->thread) block->fences->done = true;
  bool tells = kind & WRITE && fiber->fence_epoch;
  if (!tells && !(block->clocks && block->clocks->used)) return;
  Clocks* clocks = use_clocks(block);
  int i = 0;
  while (i < clocks->notes && clocks->note[i].address != address) i++;
  if (i < clocks->notes) join(clocks->row[fiber->thread], clocks->note[i].row, clocks->threads);
  if (!tells) return;
  if (i == clocks->notes) {
    if (i == clocks->capacity) {
      clocks->capacity = 2 * clocks->capacity + 8;
      clocks->note = (Clocks::Note*)realloc(clocks->note, (size_t)clocks->capacity * sizeof(Clocks::Note));
    }
    clocks->note[clocks->notes++] = {address, (unsigned*)calloc(clocks->threads, sizeof(unsigned))};
  }
  tell(block, fiber, clocks->note[i].row, fiber->fence_epoch);
}

static void check_named_barrier(Fiber* fiber, NamedBarrier* b, bool complete) {
  Block* block = fiber->block;
  Clocks* clocks = use_clocks(block);
  if (!b->told) b->told = (unsigned*)calloc(clocks->threads, sizeof(unsigned));
  tell(block, fiber, b->told, ++fiber->warp->epoch);
  if (!complete) return;
  for (unsigned t = 0; t < clocks->threads; t++)
    if (b->waiting[t / 32] >> t % 32 & 1) join(clocks->row[t], b->told, clocks->threads);
  free(b->told);
}

// ---- findings ---------------------------------------------------------------------------------------------

static bool is_shared(Block* block, Array* array) {
  return array >= block->shared && array < block->shared + MAX_SHARED_ARRAYS;
}

static void locate(Finding* finding, Block* block, Site site, Array* array, uintptr_t address) {
  finding->site = site;
  finding->offset = (int64_t)address;
  if (!array) return;
  finding->array = array->space ? -2 : (int)(array - arrays);
  finding->offset = (int64_t)(address - array->start);
  finding->element = array->element;
  finding->columns = array->columns;
  finding->bytes = array->end - array->start;
  snprintf(finding->name, sizeof finding->name, "%s", array->name);
  snprintf(finding->space, sizeof finding->space, "%s", array->space ? array->space : "");
}

static Finding* describe(Fiber* fiber, Site site, Array* array, uintptr_t address, const char* kind,
                         const char* message) {
  report(fiber->block, fiber, kind, "%s", message);
  Finding* finding = &fiber->block->launch->config->finding;
  locate(finding, fiber->block, site, array, address);
  return finding;
}

// If a thread with a wrong index or address has read unwritten shared memory, reports that read as the cause.
static void blame_unwritten(Block* block, const Fiber* fiber) {
  Finding *finding = &block->launch->config->finding, *cause = &block->unwritten_finding;
  if (!block->unwritten || memcmp(cause->thread, &fiber->threadIdx, sizeof cause->thread)) return;
  cause->other_site = finding->site;
  snprintf(cause->message, sizeof cause->message, "shared memory is read before anything is written there, and the value "
           "is used as an index or address");
  *finding = *cause;
}

// Returns whether the thread that wrote the cell had read it by the instruction that reads it now. This is so for
// y[0] += 1, but not for a tree reduction's s[t] += s[t + d].
static bool read_likewise(const Cell* cell, Visit write, Visit now) {
  for (const Group& group : cell->group) {
    bool its = group.warp() == write.thread() / 32 && group.lanes >> write.thread() % 32 & 1;
    if (its && cell->when == write.when && (group.site & ~SEVERAL) == now.site()) return true;
  }
  return false;
}

[[noreturn]] static void race(Fiber* fiber, const Cell* cell, Visit now, Visit then, Array* array, uintptr_t address) {
  bool both_write = now.kind() & then.kind() & WRITE, several = then.site() & SEVERAL;
  then.who &= ~((uint64_t)SEVERAL << 32);
  Finding* finding = describe(fiber, now.site(), array, address, "race",
                              both_write ? "two threads write" : "one thread writes, another reads");
  finding->other_thread = then.serial() != now.serial() ? -2 : several ? -3 : then.thread();
  finding->other_site = then.site();
  finding->atomics = (now.kind() | then.kind()) & STRONG_READ ? 1 : fiber->block->atomics ? 2 : 0;
  finding->update = now.kind() == READ && then.kind() == WRITE && read_likewise(cell, then, now);
  leave(fiber->block);
}

// Reports a read of unwritten shared memory only at the barrier, because it may turn out to be half of a race.
static void check_barrier(Block* block) {
  Config* c = block->launch->config;
  if (block->unwritten) {
    report(block, nullptr, "uninitialised", "%s", "");
    c->finding = block->unwritten_finding;
    leave(block);
  }
  if (block->alive && block->alive < block->launch->threads) {
    unsigned t = 0;
    while (!block->started[t] || !(block->warp[t / 32].alive >> t % 32 & 1)) t++;  // find a thread that waits
    report(block, block->fiber[t], "divergent barrier", 
           "another thread never comes to this __syncthreads(): it has left the kernel");
    c->finding.site = site_of_line(block->barrier_line);
    c->finding.other_thread = block->left_thread;
    note_calls(block->fiber[t], c->finding.trail);
    leave(block);
  }
}

static void check_exit(Fiber* fiber) {
  Block* block = fiber->block;
  AsyncCopies& copies = block->copies[fiber->thread];
  if (!copies.length || (block->unwaited >= 0 && block->unwaited < fiber->thread)) return;
  block->unwaited = fiber->thread;
  block->unwaited_line = copies.copy[0].line;
}

// Reports a missing wait once all threads have returned, for the thread with the lowest number, because the order in
// which they return depends on the host's compiler.
static void check_exits(Fiber* last) {
  Block* block = last->block;
  if (block->unwaited < 0) return;
  become_thread(last, block, block->unwaited);
  describe(last, site_of_line(block->unwaited_line), nullptr, 0, "missing wait",
           "a copy_async is never waited for (copy_async_commit, then copy_async_wait)");
  leave(block);
}

// ---- one access -------------------------------------------------------------------------------------------

static bool in_zone(uintptr_t address) {
  for (Variable* v = variables; v; v = v->next)
    for (const char* zone : v->zone) {
      uintptr_t end = (uintptr_t)v->start + v->bytes, start = (uintptr_t)zone;
      if (start - end < 64) start = end;  // padding before an aligned zone is unused too
      if (address - start < (uintptr_t)zone + 512 - start) return true;
    }
  return false;
}

static Array* find_array(Block* block, uintptr_t address) {
  for (int i = 0; i < block->shared_arrays; i++)
    if (address - block->shared[i].start < block->shared[i].end - block->shared[i].start) return &block->shared[i];
  for (int i = 0; i < array_count; i++)
    if (address - arrays[i].start < arrays[i].end - arrays[i].start) return &arrays[i];
  return nullptr;
}

// Returns why a C string cannot be read, up to its end or to `most` bytes (negative: no limit); null if it can.
static const char* text_fault(Block* block, const char* text, int most) {
  uintptr_t address = (uintptr_t)text, here = (uintptr_t)__builtin_frame_address(0);
  const Array* array = find_array(block, address);
  uintptr_t end = array ? array->end : in_library(address) ? library_end() : (address ^ here) / STACK_BYTES ? 0 : self()->top;
  if (address < 4096) return "is a null pointer";
  if (address >= end) return "is at an address that is in no array";
  size_t length = most < 0 || (size_t)most > end - address ? end - address : (size_t)most;
  return length == (size_t)most || memchr(text, 0, length) ? nullptr : "has no end: there is no 0 byte up to the end of its array";
}

[[noreturn]] static void out_of_bounds(Fiber* fiber, Site site, uintptr_t address, int kind) {
  Block* block = fiber->block;
  const char* message = kind & WRITE ? "write" : "read";
  if (address < 4096) message = kind & WRITE ? "write through a null pointer" : "read through a null pointer";
  else if ((address ^ (uintptr_t)fiber) / STACK_BYTES == 0)
    message = "a pointer is used to a local variable whose function has returned, or to an address below one";
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
  blame_unwritten(block, fiber);
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

static void remember_apart(Cell* cell, Visit now, Group group);

// Returns whether the cell has two groups of other warps, which suffice unless flags or locks order some of them.
static inline bool two_warps_beside(const Group* group, unsigned warp) {
  unsigned first = group[0].where >> 27, second = group[1].where >> 27;
  if (!group[1].lanes || first == second || first == warp || second == warp) return false;
  return !(checked_block->clocks && checked_block->clocks->used);
}

// Records a read or an atomic, in a group with others of the same kind, warp and epoch.
static INLINE void remember(Cell* cell, Visit now, unsigned epoch) {
  unsigned thread = (unsigned)now.thread(), lane = 1u << thread % 32;
  unsigned where = thread / 32 << 27 | (unsigned)now.kind() << 25 | (epoch & WARP_EPOCH);
  Group* group = cell->group;
  if (cell->when == now.when) {
    if (group[0].where == where && (group[0].site == now.site() || group[0].lanes & lane)) group[0].lanes |= lane;
    else if (group[1].lanes && group[1].where == where && group[1].site == now.site()) group[1].lanes |= lane;
    else if (!two_warps_beside(group, thread / 32)) remember_apart(cell, now, {now.site(), lane, where});
  } else if (cell->when == 0 || cell->when >> 32 == now.serial()) {  // the first access, or the first since a barrier
    cell->when = now.when;
    group[0] = {now.site(), lane, where};
    group[1].lanes = 0;
  } else remember_apart(cell, now, {now.site(), lane, where});
}

// Returns whether the group `then` can be dropped in favour of `mine`: whatever races with it also races with `mine`.
static bool covers(Group mine, Visit now, const Group& then) {
  bool alike = then.kind() == mine.kind() || then.kind() == STRONG_READ;
  return alike && !unordered_lanes(checked_block, then, now.thread());
}

static void remember_apart(Cell* cell, Visit now, Group mine) {
  Group* group = cell->group;
  if (cell->when != now.when) {
    // Keep one access of an earlier block, preferably one that may still race.
    if (group[0].lanes && cell->when >> 32 != now.serial() &&
        (cell->elsewhere.thread() < 0 || published(cell->elsewhere)))
      put(cell->elsewhere, visit_of(cell, group[0], __builtin_ctz(group[0].lanes)));
    cell->when = now.when;
    group[0] = mine;
    group[1].lanes = 0;
    return;
  }
  for (int i = 0; i < 2 && group[i].lanes; i++) {
    if (group[i].where != mine.where) continue;
    if (group[i].lanes & mine.lanes) return;
    if (i == 1 || group[1].lanes || group[i].site == mine.site) {
      if ((group[i].site & ~SEVERAL) != mine.site) group[i].site |= SEVERAL;
      group[i].lanes |= mine.lanes;
      return;
    }
  }
  if (covers(mine, now, group[0])) group[0] = mine;
  else if (!group[1].lanes || covers(mine, now, group[1]) ||
           (group[0].warp() == group[1].warp() && group[0].warp() != mine.warp())) group[1] = mine;
}

// A fast path for the most frequent accesses: 4 bytes that this block last wrote before its last barrier, or that were
// never written. It halves the cost of a check. Returns null if `access` has to check.
static INLINE Cell* plain_cell(Block* block, uintptr_t address, Site site) {
  Array* array = array_at[site & 255];
  if (address - array->start >= array->end - array->start) return nullptr;
  if (address & 3 || array->grain != 2 || !array->shadow || block->traced || array->end - address < 4) return nullptr;
  Cell* cell = &array->shadow[(address - array->start) >> 2];
  uint64_t then = cell->write.when;
  bool before = then >> 32 == block->serial && (unsigned)then != block->epoch && cell->write.kind() == WRITE;
  bool never = then == 0 && !is_shared(block, array);
  return before || never ? cell : nullptr;
}

static INLINE bool plain_read(uintptr_t address, Site site) {
  Block* block = checked_block;
  Cell* cell = plain_cell(block, address, site);
  if (!cell) return false;
  Fiber* fiber = self();
  remember(cell, visit_now(fiber, block, READ, site), fiber->warp->epoch);
  return true;
}

static INLINE bool plain_write(uintptr_t address, Site site) {
  Block* block = checked_block;
  Cell* cell = plain_cell(block, address, site);
  if (!cell || cell->elsewhere.when || array_at[site & 255]->read_only) return false;
  Fiber* fiber = self();
  Visit now = visit_now(fiber, block, WRITE, site);
  const Group& reader = cell->group[0];
  bool before = cell->when != now.when && cell->when >> 32 == block->serial;
  bool mine = cell->when == now.when && reader.lanes == 1u << fiber->lane && reader.warp() == fiber->thread / 32 &&
              !cell->group[1].lanes;
  if (cell->when && !before && !mine) return false;
  put(cell->write, now);
  return true;
}

static void visit(Fiber* fiber, Array* array, uintptr_t address, int bytes, Visit now);

[[noreturn]] static void read_only(Fiber* fiber, Site site, Array* array, uintptr_t address) {
  describe(fiber, site, array, address, "read-only", array->space ? "a kernel writes to a __constant__ variable" :
           "a kernel writes to an array that it takes as const, through a cast");
  leave(fiber->block);
}

// Returns whether an address is in the running thread's record or above its stack pointer. Between them are remains of
// functions that have returned.
static INLINE bool is_local(uintptr_t address) {
  uintptr_t here = (uintptr_t)__builtin_frame_address(0);
  return (address ^ here) / STACK_BYTES == 0 && (address >= here || address % STACK_BYTES < 32 * RECORD_BYTES);
}

static void access(uintptr_t address, int bytes, int kind, Site site) {
  Block* block = checked_block;
  if (!block) return;
  if (is_local(address)) return;
  Fiber* fiber = self();
  if (kind & STRONG_READ) check_atomic(block, fiber, address, kind);
  Array* array = array_at[site & 255];
  if (address - array->start >= array->end - array->start) {
    array = find_array(block, address);
    if (!array && in_library(address) && !in_zone(address)) {  // a string literal, a function's static variable
      return visit(fiber, &static_data, address, bytes, visit_now(fiber, block, kind, site));
    }
    if (!array) out_of_bounds(fiber, site, address, kind);
    array_at[site & 255] = array;
  }
  if (address + bytes > array->end) {
    describe(fiber, site, array, address, "out of bounds", kind & WRITE ? "write" : "read");
    blame_unwritten(block, fiber);
    leave(block);
  }
  if (array->read_only && kind & WRITE) read_only(fiber, site, array, address);
  if (address & (uintptr_t)(bytes - 1)) misaligned(fiber, site, array, address, bytes);  // 1, 2, 4, 8 or 16
  Config* c = block->launch->config;
  if (block->traced && c->trace_length < c->trace_capacity) {
    bool shared = is_shared(block, array);
    int number = shared ? -1 - (int)(array - block->shared) : (int)(array - arrays);
    int64_t offset = (int64_t)(address - array->start);
    int noted = kind == STRONG_READ ? READ : kind == UPDATE ? ATOMIC : kind;
    c->trace[c->trace_length++] = {offset, site, number, fiber->thread, bytes, noted};
  }
  visit(fiber, array, address, bytes, visit_now(fiber, block, kind, site));
}

// Splits cells when an array is accessed in smaller pieces than before (a float array that now holds 16-bit numbers).
static void split_cells(Array* array, int grain) {
  size_t cells = ((array->end - array->start) >> grain) + 1;
  Cell* finer = (Cell*)calloc(cells, sizeof(Cell));
  for (size_t i = 0; array->shadow && i < cells; i++) finer[i] = array->shadow[i >> (array->grain - grain)];
  free(array->shadow);
  array->shadow = finer;
  array->grain = grain;
}

[[noreturn]] static void missing_wait(Fiber* fiber, Visit now, Visit then, Array* array, uintptr_t address) {
  const AsyncCopies& copies = fiber->block->copies[then.thread()];
  const AsyncCopy* copy = copies.copy;
  while (address - (uintptr_t)copy->to >= (uintptr_t)copy->bytes) copy++;
  int newer = copies.group - copy->group;  // groups committed since, including its own
  char message[200] = "an asynchronous copy to this place has not been waited for";
  if (newer == 0) snprintf(message, sizeof message, "an asynchronous copy to this place is in no group yet: "
                           "copy_async_commit() has not come after it");
  else if (newer <= copies.left && copies.waited == copies.group)
    snprintf(message, sizeof message, "an asynchronous copy to this place is still under way: copy_async_wait<%d> leaves the "
             "newest %d group(s) unfinished, and its own is number %d of them", copies.left, copies.left, newer);
  Finding* finding = describe(fiber, now.site(), array, address, "missing wait", message);
  finding->other_site = then.site();
  leave(fiber->block);
}

// Compares an access with earlier ones of the same memory, and records it.
static void visit(Fiber* fiber, Array* array, uintptr_t address, int bytes, Visit now) {
  Block* block = fiber->block;
  if (grain_of(bytes) < array->grain) split_cells(array, grain_of(bytes));
  if (!array->shadow) array->shadow = (Cell*)calloc(((array->end - array->start) >> array->grain) + 1, sizeof(Cell));
  Cell* cell = &array->shadow[(address - array->start) >> array->grain];
  Cell* end = &array->shadow[(address + bytes - 1 - array->start) >> array->grain];
  bool writes = now.kind() & WRITE, reads = !writes || now.kind() == UPDATE;
  if (now.kind() == UPDATE) now.who ^= (uint64_t)(UPDATE ^ ATOMIC) << 11;
  for (; cell <= end; cell++) {
    if (cell->write.serial() != now.serial() && is_shared(block, array)) {  // never written, or by an earlier block
      cell->write = {};
      if (cell->when >> 32 != now.serial()) cell->when = cell->group[0].lanes = cell->group[1].lanes = 0;
      if (reads && !block->unwritten) {
        block->unwritten = true;
        begin_finding(&block->unwritten_finding, fiber, "uninitialised",
                      "shared memory is read before anything is written there");
        locate(&block->unwritten_finding, block, now.site(), array, address);
      }
    }
    Visit then = cell->write;
    if (then.kind() == ASYNC && then.serial() == now.serial() && !(now.kind() == WRITE && then.same_thread(now))) {
      missing_wait(fiber, now, then, array, address);
    }
    if (then.when | cell->when | cell->elsewhere.when) {  // there are earlier accesses
      if (conflict(then.kind(), now.kind()) && !ordered(then, now)) race(fiber, cell, now, then, array, address);
      Visit other = racing_visit(block, cell, now);
      if (other.thread() >= 0) race(fiber, cell, now, other, array, address);
    }
    if (writes) put(cell->write, now);
    if (now.kind() == READ || now.kind() & STRONG_READ) remember(cell, now, fiber->warp->epoch);
  }
}

static void range(const void* start, size_t bytes, int kind, Site site) {
  uintptr_t address = (uintptr_t)start;
  if (is_local(address) && is_local(address + bytes)) return;
  size_t step = address % 4 == 0 && bytes % 4 == 0 ? 4 : 1;
  if ((bytes == 8 || bytes == 16) && address % bytes == 0) step = bytes;  // one access, as on a GPU
  for (size_t i = 0; i < bytes; i += step) access(address + i, (int)step, kind, site);
}

RUNTIME_API void check_range(const void* start, size_t bytes, int kind, int line) {
  range(start, bytes, kind, site_of_line(line));
}

RUNTIME_API void check_access(const void* address, int bytes, int kind, int line) {
  access((uintptr_t)address, bytes, kind, site_of_line(line));
}

// Checks instructions that reach one kind of memory only. For an instruction on shared memory, a GPU would take the
// lower half of any other pointer as a shared address. (`access` reports addresses that are in no array.)
RUNTIME_API void check_space(const void* address, bool shared, int line) {
  Block* block = checked_block;
  uintptr_t at = (uintptr_t)address;
  Array* array = find_array(block, at);
  bool local = (at ^ (uintptr_t)__builtin_frame_address(0)) / STACK_BYTES == 0;
  if (array ? is_shared(block, array) == shared : !local && !(shared && in_library(at))) return;
  describe(self(), site_of_line(line), array, at, "failure",
           shared ? "this address must be in shared memory, and is not" :
           "this address must be in global memory, and is not");
  leave(block);
}

// Second half of an access that has already been checked and traced: a copy arrives, or a lane gets its part of a row.
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

[[noreturn]] static void endless(Site site) {
  describe(self(), site, nullptr, 0, "endless", "the launch takes too long: is there a loop that never ends?");
  leave(checked_block);
}

// Called every 65,536 basic blocks to check the time. A thread that has run all that time yields to the others, as on a
// GPU, because one of them must set the flag that it may be polling. No other thread yields here: compilers differ in
// their basic blocks, but the order of threads, and with it the thread that a finding names, must not depend on the
// compiler. In a profiled launch it is called for, and records, every basic block.
static void tick(Site site) {
  Block* block = checked_block;
  bool profiled = block && block->launch->config->traced_block >= 0;
  ticks = profiled ? 0 : 1 << 16;
  if (!block || block->meeting) return;  // g++ 11 also instruments warp functions, see RAW
  if (profiled && block->traced) note(block, site, ENTERED, 0);
  if (profiled && ++profiled_ticks % (1 << 16) != 0) return;
  if (seconds_now() > deadline) endless(site);
  bool whole_turn = turns == turn_before;
  turn_before = turns + whole_turn;  // counts the switch below
  if (whole_turn) run_another(self(), true);
}

// A timer of CPU time finds empty loops, `for (;;);`, in which g++ marks no basic block. It interrupts only the kernel's
// code and the checker's, never the C library's.
static void on_clock(int, siginfo_t*, void* context) {
  uintptr_t stack_pointer = 0, instruction = 0;
  registers_of(context, &stack_pointer, &instruction);
  Block* block = checked_block;
  if (!block || block->meeting || block->busy || seconds_now() < deadline + 0.1) return;  // `tick` comes first
  if (!pthread_equal(block->worker, pthread_self())) pthread_kill(block->worker, SIGVTALRM);
  else if (in_library(instruction) && fiber_at(block, stack_pointer)) endless((Site)(instruction + 1 - library_start()));
}

static itimerval former_clock;
static struct sigaction former_clock_action;

static void check_turn() { turns++; }

static void start_clock() {
  struct sigaction action = {};
  action.sa_sigaction = on_clock;
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_NODEFER;
  sigaction(SIGVTALRM, &action, &former_clock_action);
  itimerval every = {{0, 100000}, {0, 100000}};
  setitimer(ITIMER_VIRTUAL, &every, &former_clock);
}

static void stop_clock() {
  setitimer(ITIMER_VIRTUAL, &former_clock, nullptr);
  // A signal may still be on its way, and without a handler it would end the process.
  if (former_clock_action.sa_handler != SIG_DFL) sigaction(SIGVTALRM, &former_clock_action, nullptr);
}

// Reports faults that the checks do not prevent: a wild jump, a stack overflow, a bad argument of printf.
static void on_fault(Block* block, int signal, uintptr_t stack_pointer, uintptr_t instruction, uintptr_t address) {
  Fiber* fiber = fiber_at(block, stack_pointer);
  uintptr_t stacks = (uintptr_t)block->stacks;
  bool overflow = !fiber || address - (stacks - GUARD_BYTES) < GUARD_BYTES;
  report(block, fiber, "crash", "%s",
         signal == SIGFPE ? "an integer division that has no result" :
         signal == SIGILL ? "an illegal instruction" :
         signal == SIGABRT ? "the C library aborts: abort was called, or its memory was overwritten" :
         overflow ? "a thread's stack is full or overwritten (recursion, a local array that is too large or overrun)" :
         "an access or a jump to memory that belongs to no array: a wild pointer, or one that an overrun overwrote");
  Finding* finding = &block->launch->config->finding;
  if (in_library(instruction)) finding->site = (Site)(instruction + 1 - library_start());
  if (!fiber) return;
  int found = 0;  // collect words on the stack that look like return addresses in the kernel's code
  for (uintptr_t* word = (uintptr_t*)(stack_pointer & ~7ul); (uintptr_t)word < fiber->top && found < TRAIL; word++)
    if (fiber->top - (uintptr_t)word < STACK_BYTES && in_library(*word) && *word < code_end())
      finding->trail[found++] = (Site)(*word - library_start());
}

// Records the calls that led a thread to the barrier at which it waits, innermost first.
static void note_calls(Fiber* fiber, Site* trail) {
  uintptr_t ends_at = fiber->block->launch->kernel_returns_to;
  const Frame* top = (Frame*)fiber->top;
  const Frame *f = ((Frame*)fiber->path_frame)->caller, *next;
  for (int i = 0; i < TRAIL / 2 && f < top && f->return_address != ends_at; i++, f = next) {
    if (in_library(f->return_address)) trail[i] = (Site)(f->return_address - library_start());
    next = f->caller;
    if (next <= f) break;
  }
}

static void check_begin(Launch* launch) {
  Config* c = launch->config;
  array_count = c->arguments < MAX_ARRAYS ? c->arguments : MAX_ARRAYS;
  for (int i = 0; i < array_count; i++) {
    const Argument& a = c->argument[i];
    uintptr_t end = (uintptr_t)(a.start + a.bytes);
    arrays[i] = {(uintptr_t)a.start, end, a.name, (int)a.element, 0, grain_of(a.element), 0, a.read_only != 0, nullptr,
                 nullptr};
  }
  for (Variable* v = variables; v && array_count < MAX_ARRAYS; v = v->next) {
    uintptr_t start = (uintptr_t)v->start;
    arrays[array_count++] = {start, start + v->bytes, v->name, (int)v->element, v->columns, grain_of((int)v->element), 0,
                             v->constant, v->constant ? "__constant__" : "__device__", nullptr};
  }
  static_data = {library_start(), library_end(), "", 4, 0, 2, 0, false, "static", nullptr};
  for (Array*& array : array_at) array = &nowhere;
  first_serial = serials + 1;
  publications = (Publication*)calloc(launch->blocks, sizeof(Publication));
  deadline = seconds_now() + c->seconds;
  ticks = c->traced_block >= 0 ? 0 : 1 << 16;
  profiled_ticks = 0;
  turn_before = turns + 1;  // of the first thread
  start_clock();
}

static void check_end(Launch*) {
  stop_clock();
  for (int i = 0; i < array_count; i++) free(arrays[i].shadow);
  free(static_data.shadow);
  free(publications);
  array_count = 0;
}

RUNTIME_API void device_variable(Variable* variable) {
  variable->next = variables;
  variables = variable;
}
extern "C" __attribute__((visibility("default"))) const char* nanoeuler_variable_name(int number) {
  Variable* v = variables;
  while (v && number--) v = v->next;
  return v ? v->name : nullptr;
}

RUNTIME_API void check_from(const void* address, int bytes, int kind, void* caller) {
  access((uintptr_t)address, bytes, kind, (Site)((uintptr_t)caller - library_start()));
}

// ---- what the compiler calls ------------------------------------------------------------------------------

#define HERE ((Site)((uintptr_t)__builtin_return_address(0) - library_start()))

RUNTIME_API void __sanitizer_cov_trace_pc() {
  if (--ticks < 0) tick(HERE);
}

// The compiler uses `unaligned` for types that need less alignment than their size, such as a struct of four floats.
#define UNALIGNED_HOOKS(PREFIX, BYTES)                                                                               \
  RUNTIME_API void __tsan_##PREFIX##read##BYTES(void* p) { range(p, BYTES, READ, HERE); }                            \
  RUNTIME_API void __tsan_##PREFIX##write##BYTES(void* p) { range(p, BYTES, WRITE, HERE); }
#define HOOKS(PREFIX, BYTES)                                                                                         \
  RUNTIME_API void __tsan_##PREFIX##read##BYTES(void* p) {                                                           \
    if (BYTES != 4 || !plain_read((uintptr_t)p, HERE)) access((uintptr_t)p, BYTES, READ, HERE);                      \
  }                                                                                                                  \
  RUNTIME_API void __tsan_##PREFIX##write##BYTES(void* p) {                                                          \
    if (BYTES != 4 || !plain_write((uintptr_t)p, HERE)) access((uintptr_t)p, BYTES, WRITE, HERE);                    \
  }                                                                                                                  \
  RUNTIME_API void __tsan_##PREFIX##read_write##BYTES(void* p) {                                                     \
    access((uintptr_t)p, BYTES, READ, HERE);                                                                         \
    access((uintptr_t)p, BYTES, WRITE, HERE);                                                                        \
  }
// A volatile write after a fence may be a flag, and others may poll it.
#define VOLATILE_HOOKS(BYTES)                                                                                        \
  RUNTIME_API void __tsan_volatile_read##BYTES(void* p) { access((uintptr_t)p, BYTES, STRONG_READ, HERE); }          \
  RUNTIME_API void __tsan_volatile_write##BYTES(void* p) {                                                           \
    access((uintptr_t)p, BYTES, checked_block && self()->fence_epoch ? ATOMIC : WRITE, HERE);                        \
  }
#define ALL_HOOKS(BYTES) \
  HOOKS(, BYTES) VOLATILE_HOOKS(BYTES) UNALIGNED_HOOKS(unaligned_, BYTES) UNALIGNED_HOOKS(unaligned_volatile_, BYTES)
ALL_HOOKS(1) ALL_HOOKS(2) ALL_HOOKS(4) ALL_HOOKS(8) ALL_HOOKS(16)

RUNTIME_API void __tsan_read_range(void* p, unsigned long bytes) { range(p, bytes, READ, HERE); }
RUNTIME_API void __tsan_write_range(void* p, unsigned long bytes) { range(p, bytes, WRITE, HERE); }
// Clang copies a float4 like this without stating its alignment, so copies of 8 and 16 bytes are checked as vectors.
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
// The compiler puts a canary after a function's local arrays, and calls this at its end if the canary has changed.
extern "C" __attribute__((visibility("hidden"), used)) void overrun() asm("__stack_chk_fail");
void overrun() {
  describe(self(), HERE, nullptr, 0, "out of bounds",
           "a local array of this function, which ends here, was written beyond its end through a pointer");
  leave(checked_block);
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
struct Type {
  uint16_t kind, info;  // for an integer: bit 0: signed; bits 1 and up: log2 of its number of bits
  char name[1];  // "'int'", "'float [16]'"

  long long number(uintptr_t value) const {  // Clang extends with zeros, g++ with the sign
    int unused = 64 - (1 << (info >> 1));
    if (unused < 0) return 0;  // of 128 bits, `value` is the address
    return info & 1 ? (long long)((uint64_t)value << unused) >> unused : (long long)((uint64_t)value << unused >> unused);
  }
};
struct TypedPlace {
  Place place;
  const Type *type, *second;  // second: type of a shift's right operand, or of an index
};
static void undefined(const Place* place, const char* kind, const char* format, ...) __attribute__((format(printf, 3, 4)));
static void undefined(const Place* place, const char* kind, const char* format, ...) {
  if (!checked_block) return;
  Fiber* fiber = self();
  va_list values;
  va_start(values, format);
  report_values(fiber->block, fiber, kind, format, values);
  va_end(values);
  fiber->block->launch->config->finding.site = site_of_line((int)place->line);
  fiber->block->launch->config->finding.columns = (int)place->column;
  blame_unwritten(fiber->block, fiber);
  leave(fiber->block);
}
RUNTIME_API void __ubsan_handle_out_of_bounds(TypedPlace* p, uintptr_t index) {
  undefined(&p->place, "out of bounds", "index %lld of an array %.80s", p->second->number(index), p->type->name);
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
#define OVERFLOWS(NAME, SIGN)                                                                                          \
  RUNTIME_API void __ubsan_handle_##NAME##_overflow(TypedPlace* p, uintptr_t left, uintptr_t right) {                \
    undefined(&p->place, "undefined", "int overflow: %lld " SIGN " %lld is too large for %.80s", p->type->number(left), \
              p->type->number(right), p->type->name);                                                                \
  }
OVERFLOWS(add, "+") OVERFLOWS(sub, "-") OVERFLOWS(mul, "*")
RUNTIME_API void __ubsan_handle_negate_overflow(TypedPlace* p, uintptr_t value) {
  undefined(&p->place, "undefined", "int overflow: -(%lld) is too large for %.80s", p->type->number(value), p->type->name);
}
RUNTIME_API void __ubsan_handle_divrem_overflow(TypedPlace* p, uintptr_t left, uintptr_t right) {
  long long number = p->type->number(left), by = p->type->number(right);
  if (by == 0) undefined(&p->place, "undefined", "integer division of %lld by zero", number);
  undefined(&p->place, "undefined", "int overflow: %lld / %lld is too large for %.80s", number, by, p->type->name);
}
RUNTIME_API void __ubsan_handle_shift_out_of_bounds(TypedPlace* p, uintptr_t, uintptr_t by) {
  undefined(&p->place, "undefined", "shift of %.80s by %lld bits", p->type->name, p->second->number(by));
}
