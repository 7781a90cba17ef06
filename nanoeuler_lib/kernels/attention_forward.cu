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
// first, longest rows first, then those of the next S. Shared memory, in numbers: max(4 KEYS, 2 KEYS + ROWS) C; for
// Hopper (ROWS + 2 KEYS + VALUES KEYS) C. Arrays must be aligned to 16 bytes. BLOCKS: blocks per multiprocessor, which
// limits the registers of a thread.
#include <fours.cuh>
#include <attention.cuh>
#include <hopper.cuh>

#ifndef HOLDQ
#define HOLDQ 1
#endif
#ifndef ORDER
#define ORDER 0
#endif
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

// s = q k^T for a warp's rows and a tile's keys. Groups of 16 keys from `reach` on are in the future and are skipped.
#if ORDER == 1
template <class Number, Mode MODE, int C, int KEYS, int BANDS>
__device__ __forceinline__ void scores(float (&s)[BANDS][KEYS / 8][4], const unsigned (&q)[BANDS][STEPS<Number, C>][4],
                                       const Number* k, int reach, const Number* own) {
  int lane = lane_of();
#pragma unroll
  for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
    for (int band = 0; band < BANDS; band++)
#pragma unroll
      for (int i = 0; i < 4; i++) s[band][n][i] = 0;
#pragma unroll
  for (int step = 0; step < STEPS<Number, C>; step++) {
    unsigned a[BANDS][4];
#pragma unroll
    for (int band = 0; band < BANDS; band++)
      if (HOLDQ)
#pragma unroll
        for (int i = 0; i < 4; i++) a[band][i] = q[band][step][i];
      else ldmatrix<4>(a[band], own + place<Number, C>(lane % 16, 2 * step + lane / 16) + 16 * band * C);
#pragma unroll
    for (int n = 0; n < KEYS; n += 16) {
      if (n >= reach) continue;
      unsigned b[4];
      load_transposed<Number, C>(b, k, n, step);
#pragma unroll
      for (int band = 0; band < BANDS; band++) {
        multiply<Number, MODE>(s[band][n / 8], a[band], b);
        multiply<Number, MODE>(s[band][n / 8 + 1], a[band], b + 2);
      }
    }
  }
}
#else
template <class Number, Mode MODE, int C, int KEYS, int BANDS>
__device__ __forceinline__ void scores(float (&s)[BANDS][KEYS / 8][4], const unsigned (&q)[BANDS][STEPS<Number, C>][4],
                                       const Number* k, int reach, const Number*) {
#pragma unroll
  for (int n = 0; n < KEYS; n += 16) {
#pragma unroll
    for (int band = 0; band < BANDS; band++)
#pragma unroll
      for (int i = 0; i < 4; i++) s[band][n / 8][i] = s[band][n / 8 + 1][i] = 0;
    if (n >= reach) continue;
#pragma unroll
    for (int step = 0; step < STEPS<Number, C>; step++) {
      unsigned b[4];
      load_transposed<Number, C>(b, k, n, step);
#pragma unroll
      for (int band = 0; band < BANDS; band++) {
        multiply<Number, MODE>(s[band][n / 8], q[band][step], b);
        multiply<Number, MODE>(s[band][n / 8 + 1], q[band][step], b + 2);
      }
    }
  }
}
#endif

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

  load_packed_tile<Number, C, ROWS, THREADS>(tiles + (HOLDQ ? 2 : 4) * TILE, w.q, w.pitch, C, w.packed, w.first, w.limit);
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
    if (HOLDQ) load_rows<Number, MODE, C>(q[band], tiles + 2 * TILE, below + 16 * band);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      position[band][half] = (row + 16 * band + lane / 4 + 8 * half) / w.packed;
      top[band][half] = LEAST, sum[band][half] = 0;
    }
  }

  const Number* own = tiles + 4 * TILE + below * C;
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
#ifdef __CUDACC__
#if KEEP
    if constexpr (MODE == SPLIT && HOLDQ)
#pragma unroll
      for (int i = 0; i < BANDS * STEPS<Number, C> * 4; i++) asm volatile("" : "+r"((&q[0][0][0])[i]));
#endif
#endif
    float s[BANDS][KEYS / 8][4];
    if (least + 1 >= behind) {  // no key of the tile is in any row's future
      scores<Number, MODE, C, KEYS, BANDS>(s, q, here, KEYS, own);
      softmax_step<KEYS, BANDS>(s, top, sum, shrink, scale * LOG2_E);
      rescale<C, BANDS>(o, shrink);
      add_values<Number, MODE, C, KEYS, BANDS>(o, s, here + TILE, KEYS);
    } else if (most >= step * KEYS) {  // some keys are, but not all
      scores<Number, MODE, C, KEYS, BANDS>(s, q, here, most + 1 - step * KEYS, own);
      mask<KEYS, BANDS>(s, position, step * KEYS + 2 * (lane % 4));
      softmax_step<KEYS, BANDS>(s, top, sum, shrink, scale * LOG2_E);
      rescale<C, BANDS>(o, shrink);
      add_values<Number, MODE, C, KEYS, BANDS>(o, s, here + TILE, most + 1 - step * KEYS);
    }
  }
  __syncthreads();  // all warps have finished with the tiles, whose memory the outputs now use
  store_rows<Number, C, BANDS>(w, tiles + below * C, o, top, sum, scale, row);
}

// ---- Hopper: four warps multiply 64 rows together -------------------------------------------------------------------
// wgmma reads tiles of 64 columns from shared memory, so a wider head takes two of them. On other GPUs, and in the
// checker, the same code runs with mma: each warp multiplies its own 16 rows.

constexpr int COLUMNS = 64, KEYS = 64;

template <class Number, int C>
__device__ __forceinline__ void load_tiles(Number* tiles, const Number* from, size_t pitch, int given) {
#pragma unroll
  for (int c = 0; c < C; c += COLUMNS)
    load_tile<Number, COLUMNS, KEYS, 128>(tiles + KEYS * c, from + c, pitch, given);
}

// s = q k^T, both read from shared memory. (With queries kept in registers, the code of ptxas 13.0 overwrote them
// inside the loop, which only the wrong results on the GPU revealed.)
template <class Number, int C>
__device__ __forceinline__ void group_scores(float (&s)[1][KEYS / 8][4], const Number* q, const Number* k) {
#pragma unroll
  for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) s[0][n][i] = 0;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  wgmma_hold<KEYS / 2>(s[0][0]);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < STEPS<Number, C>; step++)
    wgmma<KEYS, Number>(s[0][0], wgmma_tile(q + step / 4 * 64 * COLUMNS) + step % 4 * 2,
                        wgmma_tile(k + step / 4 * KEYS * COLUMNS) + step % 4 * 2);
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_hold<KEYS / 2>(s[0][0]);
#else
#pragma unroll
  for (int c = 0; c < C; c += COLUMNS) {
    unsigned a[1][STEPS<Number, COLUMNS>][4];
    load_rows<Number, CORES, COLUMNS>(a[0], q + 64 * c, threadIdx.x / 32 * 16);
#pragma unroll
    for (int n = 0; n < KEYS; n += 16)
#pragma unroll
      for (int step = 0; step < STEPS<Number, COLUMNS>; step++) {
        unsigned b[4];
        load_transposed<Number, COLUMNS>(b, k + KEYS * c, n, step);
        mma<Number>(s[0][n / 8], a[0][step], b);
        mma<Number>(s[0][n / 8 + 1], a[0][step], b + 2);
      }
  }
#endif
}

// o += p v.
template <class Number, int C>
__device__ __forceinline__ void group_values(float (&o)[1][C / 8][4], unsigned (&p)[KEYS / 16][1][4],
                                             const Number* v) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  wgmma_hold<C / 2>(o[0][0]);
  wgmma_hold<KEYS / 4>(p[0][0]);
  wgmma_fence();
#pragma unroll
  for (int c = 0; c < C; c += COLUMNS)
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++)
      wgmma_of_registers<Number>(o[0][c / 8], p[n][0], wgmma_tile(v + KEYS * c) + 128 * n);
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_hold<C / 2>(o[0][0]);
  wgmma_hold<KEYS / 4>(p[0][0]);
#else
#pragma unroll
  for (int c = 0; c < C; c += COLUMNS)
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++)
      add_product<Number, CORES, COLUMNS, 1>((float(*)[COLUMNS / 8][4])o[0][c / 8], &p[n], v + KEYS * c, 16 * n);
#endif
}

__device__ __forceinline__ void show_tiles() {  // make the copied tiles visible to wgmma
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  fence_async();
#endif
}

// VALUES: tiles of v, 2, or 1 to save shared memory; the single one is then copied while the scores are computed.
template <class Number, int C, int VALUES, int BLOCKS>
__global__ void __launch_bounds__(128, BLOCKS)
attention_forward_hopper(const Number* __restrict__ qkv, Number* __restrict__ out, float* __restrict__ lse, int pairs,
                         int T, int heads, int groups, float scale) {
  constexpr int ROWS = 64, TILE = KEYS * C;
  extern __shared__ __align__(1024) unsigned memory[];
  Number *q = (Number*)memory, *keys = q + ROWS * C, *values = keys + 2 * TILE;
  int pair = blockIdx.z * gridDim.x + blockIdx.x;
  if (pair >= pairs) return;
  Work<Number> w = work_of_block<Number, C, ROWS>(qkv, out, lse, pair, T, heads, groups);
  int steps = (w.limit - 1) / w.packed / KEYS + 1;

#pragma unroll
  for (int c = 0; c < C; c += COLUMNS)
    load_packed_tile<Number, COLUMNS, ROWS, 128>(q + ROWS * c, w.q + c, w.pitch, C, w.packed, w.first, w.limit);
  load_tiles<Number, C>(keys, w.k, w.pitch, T);
  if constexpr (VALUES == 2) load_tiles<Number, C>(values, w.v, w.pitch, T);
  copy_async_commit();
  int lane = lane_of(), below = threadIdx.x / 32 * 16, row = w.first + below, least = w.first / w.packed;
  int position[1][2] = {{(row + lane / 4) / w.packed, (row + lane / 4 + 8) / w.packed}};
  unsigned p[KEYS / 16][1][4];
  float s[1][KEYS / 8][4], o[1][C / 8][4] = {}, top[1][2] = {{LEAST, LEAST}}, sum[1][2] = {}, shrink[1][2];

  for (int step = 0; step < steps; step++) {
    copy_async_wait<0>();
    show_tiles();
    __syncthreads();
    int now = step * KEYS, next = now + KEYS;
    if constexpr (VALUES == 1) {
      load_tiles<Number, C>(values, w.v + now * w.pitch, w.pitch, T - now);
      copy_async_commit();
    }
    if (step + 1 < steps) {
      load_tiles<Number, C>(keys + (step + 1) % 2 * TILE, w.k + next * w.pitch, w.pitch, T - next);
      if constexpr (VALUES == 2)
        load_tiles<Number, C>(values + (step + 1) % 2 * TILE, w.v + next * w.pitch, w.pitch, T - next);
    }
    copy_async_commit();
    group_scores<Number, C>(s, q, keys + step % 2 * TILE);
    if (least + 1 < next) mask<KEYS, 1>(s, position, now + 2 * (lane % 4));
    softmax_step<KEYS, 1>(s, top, sum, shrink, scale * LOG2_E);
    rescale<C, 1>(o, shrink);
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++) as_factor<Number, CORES>(p[n], s[0] + 2 * n);
    if constexpr (VALUES == 1) {
      copy_async_wait<1>();
      show_tiles();
      __syncthreads();
    }
    group_values<Number, C>(o, p, values + step % VALUES * TILE);
  }
  __syncthreads();  // all warps have finished with the queries, whose memory the outputs now use
  store_rows<Number, C, 1>(w, q + below * C, o, top, sum, scale, row);
}
