// FlashAttention, forward pass: out = softmax(scale q k^T, causal) v, without a T x T matrix in memory. Chapter 27; the
// formulas are in ops/reference.py. (Dao 2023, algorithm 1.)
//
// qkv: [B, T, (H + 2 G) C], at each position H queries, G keys, G values; head h reads group h / (H / G). out: [B, T, H
// C]. lse: [B, H, T], the natural logarithm of the sum of exp(scale q k), which the backward pass needs.
//
// A block owns ROWS queries of one group, with the H / G heads of a position in adjacent rows, and loops over the keys
// that they attend to, KEYS at a time. All warps use the same tiles of k and v. Each warp owns some of the rows and
// keeps their scores, largest score and sum in registers. The next tile is copied while the current one is used.
//
// Launch (S, ceil(T H / G / ROWS), ceil(B G / S)) blocks of 32 WARPS threads, for any S: the blocks of S groups run
// first, longest rows first, then those of the next S. Shared memory, in numbers: max(4 KEYS, 2 KEYS + ROWS) C; with
// SPLIT (4 KEYS + ROWS) C. Arrays must be aligned to 16 bytes. BLOCKS: blocks per multiprocessor, which limits the
// registers of a thread.
#include <fours.cuh>
#include <hopper.cuh>
#include <attention.cuh>
#include <named_barrier.cuh>

constexpr float LOG2_E = 1.44269504f, LN_2 = 0.69314718f, LEAST = -3e38f;

// The work of a block: rows first to limit - 1 of one group of one text. Row r is position r / packed and head
// r % packed of the group. The pointers are those of the text's first position.
template <class Number> struct Work {
  const Number *q, *k, *v;
  Number* out;
  float* lse;
  size_t pitch, out_pitch;  // distance between two positions, in numbers
  int T, packed, first, limit;
};

template <class Number, int C, int ROWS>
__device__ __forceinline__ Work<Number> work_of_block(const Number* qkv, Number* out, float* lse, int pair, int T,
                                                      int heads, int groups) {
  Work<Number> w;
  int text = pair / groups, group = pair % groups;
  w.T = T, w.packed = heads / groups;
  w.pitch = (size_t)(heads + 2 * groups) * C, w.out_pitch = (size_t)heads * C;
  w.q = qkv + text * T * w.pitch + group * w.packed * C;
  w.k = qkv + text * T * w.pitch + (heads + group) * C;
  w.v = w.k + groups * C;
  w.out = out + text * T * w.out_pitch + group * w.packed * C;
  w.lse = lse + ((size_t)text * heads + group * w.packed) * T;
  w.first = (gridDim.y - 1 - blockIdx.y) * ROWS;
  w.limit = min(w.first + ROWS, w.packed * T);
  return w;
}

// s += q k^T for a warp's rows and a tile's keys. Groups of 16 keys from `reach` on are in the future and are skipped.
// q: fragments, or for SPLIT `own`, the warp's rows in shared memory: their parts would take too many registers.
template <class Number, Mode MODE, int C, int KEYS, int BANDS>
__device__ __forceinline__ void scores(float (&s)[BANDS][KEYS / 8][4], const unsigned (&q)[BANDS][STEPS<Number, C>][4],
                                       const Number* own, const Number* k, int reach) {
  unsigned b[4];
  auto add = [&](int n, int band, const unsigned* a) {
    multiply<Number, MODE>(s[band][n / 8], a, b);
    multiply<Number, MODE>(s[band][n / 8 + 1], a, b + 2);
  };
  if constexpr (MODE == SPLIT) {
#pragma unroll
    for (int step = 0; step < STEPS<Number, C>; step++) {  // outside, so that rows are split once for all keys
      unsigned a[BANDS][4];
#pragma unroll
      for (int band = 0; band < BANDS; band++)
        ldmatrix<4>(a[band], own + place<Number, C>(lane_of() % 16, 2 * step + lane_of() / 16) + 16 * band * C);
#pragma unroll
      for (int n = 0; n < KEYS; n += 16) {
        if (n >= reach) continue;
        load_transposed<Number, C>(b, k, n, step);
#pragma unroll
        for (int band = 0; band < BANDS; band++) add(n, band, a[band]);
      }
    }
  } else {
#pragma unroll
    for (int n = 0; n < KEYS; n += 16) {
      if (n >= reach) continue;
#pragma unroll
      for (int step = 0; step < STEPS<Number, C>; step++) {
        load_transposed<Number, C>(b, k, n, step);
#pragma unroll
        for (int band = 0; band < BANDS; band++) add(n, band, q[band][step]);
      }
    }
  }
}

// Causal mask: scores of keys after a row's position become LEAST; `key` is the key of s[.][0][0].
template <int KEYS, int BANDS>
__device__ __forceinline__ void mask(float (&s)[BANDS][KEYS / 8][4], const int (&position)[BANDS][2], int key) {
#pragma unroll
  for (int band = 0; band < BANDS; band++)
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (key + 8 * n + i % 2 > position[band][i / 2]) s[band][n][i] = LEAST;
}

// One step of the online softmax. s becomes 2^(scale (s - top)), where top is the largest score so far, and is added to
// `sum` (this lane's columns only). `shrink` is the factor by which the earlier sum and outputs must be multiplied.
template <int KEYS, int BANDS>
__device__ __forceinline__ void softmax_step(float (&s)[BANDS][KEYS / 8][4], float (&top)[BANDS][2],
                                             float (&sum)[BANDS][2], float (&shrink)[BANDS][2], float scale) {
#pragma unroll
  for (int band = 0; band < BANDS; band++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float most = top[band][half];
#pragma unroll
      for (int n = 0; n < KEYS / 8; n++) most = fmaxf(most, fmaxf(s[band][n][2 * half], s[band][n][2 * half + 1]));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      shrink[band][half] = fast_exp2((top[band][half] - most) * scale);
      top[band][half] = most;
      float offset = most * scale, more = 0;
#pragma unroll
      for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; i++) more += s[band][n][i] = fast_exp2(s[band][n][i] * scale - offset);
      sum[band][half] = sum[band][half] * shrink[band][half] + more;
    }
}

template <int C, int BANDS>
__device__ __forceinline__ void rescale(float (&o)[BANDS][C / 8][4], const float (&shrink)[BANDS][2]) {
#pragma unroll
  for (int band = 0; band < BANDS; band++)
#pragma unroll
    for (int n = 0; n < C / 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) o[band][n][i] *= shrink[band][i / 2];
}

// o += p v, skipping the keys from `reach` on.
template <class Number, Mode MODE, int C, int KEYS, int BANDS>
__device__ __forceinline__ void add_values(float (&o)[BANDS][C / 8][4], const float (&p)[BANDS][KEYS / 8][4],
                                           const Number* v, int reach) {
#pragma unroll
  for (int n = 0; n < KEYS; n += 16) {
    if (n >= reach) continue;
    unsigned a[BANDS][sizeof(Number) / 2][4];
#pragma unroll
    for (int band = 0; band < BANDS; band++) as_factor<Number, MODE>(a[band], p[band] + n / 8);
    add_product<Number, MODE, C, BANDS>(o, a, v, n);
  }
}

// Write the outputs of a warp's rows, from `row` on, divided by their sums, and lse. 16-bit numbers go through `mine`,
// 16 BANDS rows of shared memory, so that a warp writes whole pieces.
template <class Number, int C, int BANDS>
__device__ __forceinline__ void store_rows(const Work<Number>& w, Number* mine, float (&o)[BANDS][C / 8][4],
                                           const float (&top)[BANDS][2], const float (&sum)[BANDS][2], float scale,
                                           int row) {
  int lane = lane_of();
#pragma unroll
  for (int band = 0; band < BANDS; band++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float all = sum[band][half];
      all += __shfl_xor_sync(0xffffffffu, all, 1);
      all += __shfl_xor_sync(0xffffffffu, all, 2);
      int own = 16 * band + lane / 4 + 8 * half, r = row + own, at = r / w.packed, head = r % w.packed;
      float share = 1 / all;
      if (lane % 4 == 0 && r < w.limit) w.lse[(size_t)head * w.T + at] = top[band][half] * scale + LN_2 * log2f(all);
      if constexpr (sizeof(Number) == 2) {
#pragma unroll
        for (int n = 0; n < C / 8; n++)
          *(unsigned*)(mine + place<Number, C>(own, n) + 2 * (lane % 4)) =
              pack(Number(), o[band][n][2 * half] * share, o[band][n][2 * half + 1] * share);
      } else if (r < w.limit) {
        Number* to = w.out + at * w.out_pitch + head * C + 8 * (lane % 4);
#pragma unroll
        for (int n = 0; n < C / 8; n += 4)
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; i++)
            *(float4*)(to + 8 * n + i % 2 * 4) = make_float4(o[band][n][i] * share, o[band][n + 1][i] * share,
                                                             o[band][n + 2][i] * share, o[band][n + 3][i] * share);
      }
    }
  if constexpr (sizeof(Number) == 2) {
    constexpr int P = PIECES<Number, C>;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16 * BANDS * P / 32; i++) {
      int own = (lane + 32 * i) / P, piece = (lane + 32 * i) % P, r = row + own;
      if (r < w.limit)
        *(uint4*)(w.out + r / w.packed * w.out_pitch + r % w.packed * C + 8 * piece) =
            *(const uint4*)(mine + place<Number, C>(own, piece));
    }
  }
}

// The kernel for all GPUs. Each warp owns 16 BANDS rows.
template <class Number, Mode MODE, int C, int KEYS, int WARPS, int BANDS, int BLOCKS>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS)
attention_forward(const Number* __restrict__ qkv, Number* __restrict__ out, float* __restrict__ lse, int pairs, int T,
                  int heads, int groups, float scale) {
  constexpr int ROWS = 16 * BANDS * WARPS, THREADS = 32 * WARPS, TILE = KEYS * C;
  extern __shared__ __align__(1024) unsigned memory[];
  Number* tiles = (Number*)memory;  // k, v, k, v
  int pair = blockIdx.z * gridDim.x + blockIdx.x;
  if (pair >= pairs) return;
  Work<Number> w = work_of_block<Number, C, ROWS>(qkv, out, lse, pair, T, heads, groups);
  int steps = (w.limit - 1) / w.packed / KEYS + 1;

  Number* own = tiles + (MODE == SPLIT ? 4 : 2) * TILE;  // queries; except with SPLIT, tiles use this memory later
  load_packed_tile<Number, C, ROWS, THREADS>(own, w.q, w.pitch, C, w.packed, w.first, w.limit);
  copy_async_commit();
  load_tile<Number, C, KEYS, THREADS>(tiles, w.k, w.pitch, T);
  load_tile<Number, C, KEYS, THREADS>(tiles + TILE, w.v, w.pitch, T);
  copy_async_commit();

  int lane = lane_of(), below = threadIdx.x / 32 * 16 * BANDS, row = w.first + below;
  int position[BANDS][2], least = row / w.packed, most = (row + 16 * BANDS - 1) / w.packed;
  unsigned q[BANDS][STEPS<Number, C>][4];
  float o[BANDS][C / 8][4] = {}, top[BANDS][2], sum[BANDS][2], shrink[BANDS][2];
  copy_async_wait<1>();
  __syncthreads();
#pragma unroll
  for (int band = 0; band < BANDS; band++) {
    if constexpr (MODE != SPLIT) load_rows<Number, MODE, C>(q[band], own, below + 16 * band);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      position[band][half] = (row + 16 * band + lane / 4 + 8 * half) / w.packed;
      top[band][half] = LEAST, sum[band][half] = 0;
    }
  }

  for (int step = 0; step < steps; step++) {
    Number *here = tiles + step % 2 * 2 * TILE, *next = tiles + (step + 1) % 2 * 2 * TILE;
    copy_async_wait<0>();
    if constexpr (ROUNDED<Number, MODE>) round_tile<C, 2 * KEYS, THREADS>(here);
    __syncthreads();
    int behind = (step + 1) * KEYS;
    if (step + 1 < steps) {
      load_tile<Number, C, KEYS, THREADS>(next, w.k + behind * w.pitch, w.pitch, T - behind);
      load_tile<Number, C, KEYS, THREADS>(next + TILE, w.v + behind * w.pitch, w.pitch, T - behind);
      copy_async_commit();
    }
    float s[BANDS][KEYS / 8][4] = {};
    if (least + 1 >= behind) {  // no key of the tile is in any row's future
      scores<Number, MODE, C, KEYS, BANDS>(s, q, own + below * C, here, KEYS);
      softmax_step<KEYS, BANDS>(s, top, sum, shrink, scale * LOG2_E);
      rescale<C, BANDS>(o, shrink);
      add_values<Number, MODE, C, KEYS, BANDS>(o, s, here + TILE, KEYS);
    } else if (most >= step * KEYS) {  // some keys are, but not all
      scores<Number, MODE, C, KEYS, BANDS>(s, q, own + below * C, here, most + 1 - step * KEYS);
      mask<KEYS, BANDS>(s, position, step * KEYS + 2 * (lane % 4));
      softmax_step<KEYS, BANDS>(s, top, sum, shrink, scale * LOG2_E);
      rescale<C, BANDS>(o, shrink);
      add_values<Number, MODE, C, KEYS, BANDS>(o, s, here + TILE, most + 1 - step * KEYS);
    }
  }
  __syncthreads();  // all warps have finished with the tiles, whose memory the outputs now use
  store_rows<Number, C, BANDS>(w, tiles + below * C, o, top, sum, scale, row);
}

// ---- Hopper: warpgroups multiply 64 rows each by wgmma, and one more copies the tiles by TMA ------------------------
// A block takes one piece of work after another: 64 GROUPS queries of a head. The copying warpgroup is up to STAGES
// tiles ahead of the others, also across pieces. A warpgroup computes the softmax of a tile while the tensor cores
// multiply the powers of the tile before by its values. On other GPUs, and in the checker, the same code runs with mma
// (each warp multiplies its own 16 rows), copies by all threads of the copying warpgroup, and named barriers.

constexpr float SLACK = 8;  // bits by which a score may exceed `top` before the outputs are rescaled

// DEEP stages in shared memory, which the copying warpgroup fills in turn, and GROUPS warpgroups empty. `step` counts
// the fillings. FIRST: number of the first of 2 DEEP named barriers.
template <int DEEP, int GROUPS, int FIRST> struct Stages {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  unsigned long long filled[DEEP], emptied[DEEP];
  __device__ __forceinline__ void start() {
    if (threadIdx.x >= DEEP) return;
    mbarrier_init(&filled[threadIdx.x], 1);
    mbarrier_init(&emptied[threadIdx.x], 4 * GROUPS);  // one lane of each multiplying warp arrives
  }
  __device__ __forceinline__ void wait_emptied(int step) {
    if (step >= DEEP) mbarrier_wait(&emptied[step % DEEP], (step / DEEP + 1) % 2);
  }
  __device__ __forceinline__ void tell_filled(int step) {
    if (threadIdx.x % 128 == 0) mbarrier_arrive(&filled[step % DEEP]);
  }
  __device__ __forceinline__ void wait_filled(int step) { mbarrier_wait(&filled[step % DEEP], step / DEEP % 2); }
  __device__ __forceinline__ void tell_emptied(int step) {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(&emptied[step % DEEP]);
  }
#else
  static constexpr int THREADS = 128 * GROUPS + 128;
  __device__ __forceinline__ void start() {}
  __device__ __forceinline__ void wait_emptied(int step) {
    if (step >= DEEP) named_barrier_sync(FIRST + DEEP + step % DEEP, THREADS);
  }
  __device__ __forceinline__ void tell_filled(int step) { named_barrier_arrive(FIRST + step % DEEP, THREADS); }
  __device__ __forceinline__ void wait_filled(int step) { named_barrier_sync(FIRST + step % DEEP, THREADS); }
  __device__ __forceinline__ void tell_emptied(int step) { named_barrier_arrive(FIRST + DEEP + step % DEEP, THREADS); }
#endif
  __device__ __forceinline__ void skip(int step) { wait_filled(step), tell_emptied(step); }

  // Fill a stage with ROWS rows of C columns of a text, from (row, column) on; rows from T on become 0.
  template <int ROWS, int C, class Number>
  __device__ __forceinline__ void fill(int step, Number* stage, const TensorMap& map, const Number* qkv, size_t pitch,
                                       int text, int T, int row, int column) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if (threadIdx.x % 128) return;
    unsigned long long* now = &filled[step % DEEP];
    mbarrier_expect(now, ROWS * C * (int)sizeof(Number));
#pragma unroll
    for (int c = 0; c < C; c += COLUMNS)
#pragma unroll
      for (int r = 0; r < ROWS; r += 64)
        copy_tile(stage + ROWS * c + COLUMNS * r, &map, column + c, row + r, text, now);
#else
    const Number* from = qkv + ((size_t)text * T + row) * pitch + column;
    for (int c = 0; c < C; c += COLUMNS)
      load_tile<Number, COLUMNS, ROWS, 128>(stage + ROWS * c, from + c, pitch, T - row);
    copy_async_commit();
    copy_async_wait<0>();
    tell_filled(step);
#endif
  }
};

// One step of the online softmax, as in softmax_step, but `top` stays as it is until a score of one of the warp's rows
// exceeds it by SLACK bits. Returns whether it has changed, so that the outputs must be multiplied by `shrink`.
template <int KEYS>
__device__ __forceinline__ bool lazy_softmax_step(float (&s)[1][KEYS / 8][4], float (&top)[1][2], float (&sum)[1][2],
                                                  float (&shrink)[1][2], float power) {
  float most[2];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    most[half] = s[0][0][2 * half];
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
      most[half] = fmaxf(most[half], fmaxf(s[0][n][2 * half], s[0][n][2 * half + 1]));
    most[half] = fmaxf(most[half], __shfl_xor_sync(0xffffffffu, most[half], 1));
    most[half] = fmaxf(most[half], __shfl_xor_sync(0xffffffffu, most[half], 2));
  }
  bool grew = __any_sync(0xffffffffu, fmaxf(most[0] - top[0][0], most[1] - top[0][1]) * power > SLACK);
  if (grew)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      most[half] = fmaxf(most[half], top[0][half]);
      shrink[0][half] = fast_exp2((top[0][half] - most[half]) * power);
      top[0][half] = most[half], sum[0][half] *= shrink[0][half];
    }
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float offset = top[0][half] * power;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; i++) sum[0][half] += s[0][n][i] = fast_exp2(s[0][n][i] * power - offset);
  }
  return grew;
}

// Write the outputs of a warp's 16 rows, from `row` on, divided by their sums, and lse. They go through `mine`, 16 rows
// of shared memory, so that a warp writes whole pieces.
template <class Number, int C>
__device__ __forceinline__ void store_outputs(Number* mine, const float (&o)[1][C / 8][4], const float (&top)[1][2],
                                              const float (&sum)[1][2], float scale, int row, int T, size_t pitch,
                                              Number* out, float* lse) {
  int lane = lane_of();
  __syncwarp();  // all lanes have read the last outputs
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float all = sum[0][half];
    all += __shfl_xor_sync(0xffffffffu, all, 1);
    all += __shfl_xor_sync(0xffffffffu, all, 2);
    int r = lane / 4 + 8 * half;
    float share = fast_divide(1, all);
    if (lane % 4 == 0 && row + r < T) lse[row + r] = top[0][half] * scale + LN_2 * fast_log2(all);
#pragma unroll
    for (int n = 0; n < C / 8; n++)
      *(unsigned*)(mine + place<Number, C>(r, n) + 2 * (lane % 4)) =
          pack(Number(), o[0][n][2 * half] * share, o[0][n][2 * half + 1] * share);
  }
  __syncwarp();
  int r = lane / (C / 8), piece = lane % (C / 8);
  Number* to = out + (row + r) * pitch + 8 * piece;
#pragma unroll
  for (int i = 0; i < 16; i += 256 / C)
    if (row + r + i < T) *(uint4*)(to + i * pitch) = *(const uint4*)(mine + place<Number, C>(r + i, piece));
}

struct Piece { int text, head, first; };  // of work; head is -1 if there is no more

// Take the next piece of work: ROWS queries of a head, from `first` on. First come `together` pairs of text and head,
// of these the longest rows, then the next pairs. *taken counts the pieces; after the last block's end it is 0 again.
template <int ROWS>
__device__ __forceinline__ Piece take_piece(int* taken, int pairs, int together, int tiles, int heads) {
  int item = atomicAdd(taken, 1), all = pairs * tiles;
  if (item == all + (int)gridDim.x - 1) atomicExch(taken, 0);
  if (item >= all) return {0, -1, 0};
  int begin = item / (together * tiles) * together, inside = item - begin * tiles, width = min(together, pairs - begin);
  int pair = begin + inside % width;
  return {pair / heads, pair % heads, (tiles - 1 - inside / width) * ROWS};
}

// Launch one block per multiprocessor, or fewer, of 128 GROUPS + 128 threads. map: qkv as matrices [B, T, ...], in
// boxes of 64 rows; taken: 0; pairs: B H, of which `together` run at the same time, so that their keys and values stay
// in the L2 cache. Shared memory, in numbers: (2 STAGES KEYS + 192 GROUPS) C.
template <class Number, int C, int KEYS, int GROUPS, int STAGES>
__global__ void __launch_bounds__(128 * GROUPS + 128, 1)
attention_forward_hopper(const __grid_constant__ TensorMap map, const Number* __restrict__ qkv,
                         Number* __restrict__ out, float* __restrict__ lse, int* taken, int pairs, int together, int T,
                         int heads, int groups, float scale) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int DEEP = STAGES, AT_START = 65536 / (128 * GROUPS + 128) / 8 * 8, COPYING = 24;  // registers of a thread
#else
  constexpr int DEEP = 2;  // there are 15 named barriers
#endif
  constexpr int ROWS = 64 * GROUPS, TILE = KEYS * C;
  extern __shared__ __align__(1024) unsigned memory[];
  __shared__ Stages<DEEP, GROUPS, 1> of_keys;
  __shared__ Stages<DEEP, GROUPS, 5> of_values;
  __shared__ Stages<2, GROUPS, 9> of_queries;
  __shared__ Piece pieces[2];
  Number *queries = (Number*)memory, *keys = queries + 2 * ROWS * C, *values = keys + STAGES * TILE;
  Number* outputs = values + STAGES * TILE;
  int tiles = (T + ROWS - 1) / ROWS, lane = lane_of();
  int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), warpgroup = warp / 4;  // nvcc then knows: one for all lanes
  int turn = 0, step = 0;  // pieces of work and tiles of keys so far
  of_keys.start(), of_values.start(), of_queries.start();
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  fence_async();
  __syncthreads();
#endif
  if (warpgroup == GROUPS) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    give_registers<COPYING>();
#endif
    size_t pitch = (size_t)(heads + 2 * groups) * C;
    for (;; turn++) {
      of_queries.wait_emptied(turn);
      if (threadIdx.x % 128 == 0) pieces[turn % 2] = take_piece<ROWS>(taken, pairs, together, tiles, heads);
      named_barrier_sync(13, 128);
      Piece w = pieces[turn % 2];
      if (w.head < 0) break;
      Number* own = queries + turn % 2 * ROWS * C;
      int k = (heads + w.head / (heads / groups)) * C, v = k + groups * C;  // columns of qkv
      of_queries.template fill<ROWS, C>(turn, own, map, qkv, pitch, w.text, T, w.first, w.head * C);
      for (int now = 0; now < min(w.first + ROWS, T); now += KEYS, step++) {
        of_keys.wait_emptied(step);
        of_keys.template fill<KEYS, C>(step, keys + step % DEEP * TILE, map, qkv, pitch, w.text, T, now, k);
        of_values.wait_emptied(step);
        of_values.template fill<KEYS, C>(step, values + step % DEEP * TILE, map, qkv, pitch, w.text, T, now, v);
      }
    }
    of_queries.tell_filled(turn);
    return;
  }

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  take_registers<(AT_START * (GROUPS + 1) - COPYING) / GROUPS / 8 * 8>();
#endif
  float power = scale * LOG2_E;
  auto skip_rest = [&](int end) {  // the tiles that only the other warpgroups need
    for (; step < end; step++) {
      if (step + 1 < end) of_keys.skip(step + 1);
      of_values.skip(step);
    }
  };
#pragma unroll 1
  for (;; turn++) {
    of_queries.wait_filled(turn);
    Piece w = pieces[turn % 2];
    if (w.head < 0) break;
    int row = w.first + 16 * warp, position[1][2] = {{row + lane / 4, row + lane / 4 + 8}};
    int steps = (min(w.first + ROWS, T) + KEYS - 1) / KEYS, end = step + steps;  // of all warpgroups
    if (w.first + 64 * warpgroup >= T) {  // no query of this warpgroup exists
      of_queries.tell_emptied(turn);
      of_keys.skip(step);
      skip_rest(end);
      continue;
    }
    int last = step + min(steps, (w.first + 64 * warpgroup + 64 + KEYS - 1) / KEYS) - 1;  // of this one
    const Number* own = queries + turn % 2 * ROWS * C + 64 * warpgroup * COLUMNS;
    unsigned p[KEYS / 16][4];
    float s[1][KEYS / 8][4], o[1][C / 8][4] = {}, top[1][2] = {{LEAST, LEAST}}, sum[1][2] = {}, shrink[1][2];
    of_keys.wait_filled(step);
    start_scores<Number, C, KEYS, ROWS>(s[0][0], own, keys + step % DEEP * TILE);
    wait_scores<0, KEYS>(s[0][0]);
    of_keys.tell_emptied(step);
    if (step == last) mask<KEYS, 1>(s, position, 2 * (lane % 4));
    lazy_softmax_step<KEYS>(s, top, sum, shrink, power);
    as_factors<Number, KEYS>(p, s[0][0]);
#pragma unroll 1
    for (; step < last; step++) {
      of_keys.wait_filled(step + 1);
      start_scores<Number, C, KEYS, ROWS>(s[0][0], own, keys + (step + 1) % DEEP * TILE);
      of_values.wait_filled(step);
      start_product<Number, C, KEYS>(o[0][0], p, values + step % DEEP * TILE);
      wait_scores<1, KEYS>(s[0][0]);
      of_keys.tell_emptied(step + 1);
      if (step + 1 == last) mask<KEYS, 1>(s, position, (steps - end + last) * KEYS + 2 * (lane % 4));
      bool grew = false;  // (Without the next line's branch, ptxas 13.0 computes the powers only after the wait.)
      if (row < T) grew = lazy_softmax_step<KEYS>(s, top, sum, shrink, power);
      wait_product<C, KEYS>(o[0][0], p);
      of_values.tell_emptied(step);
      if (grew) rescale<C, 1>(o, shrink);
      as_factors<Number, KEYS>(p, s[0][0]);
    }
    if (step + 1 < end) of_keys.skip(step + 1);
    of_values.wait_filled(step);
    start_product<Number, C, KEYS>(o[0][0], p, values + step % DEEP * TILE);
    wait_product<C, KEYS>(o[0][0], p);
    of_values.tell_emptied(step);
    of_queries.tell_emptied(turn);
    size_t pair = (size_t)w.text * heads + w.head;
    store_outputs<Number, C>(outputs + 16 * warp * C, o, top, sum, scale, row, T, heads * C,
                             out + ((size_t)w.text * T * heads + w.head) * C, lse + pair * T);
    step++;
    skip_rest(end);
  }
}
