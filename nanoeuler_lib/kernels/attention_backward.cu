// FlashAttention, backward pass: gradients of causal grouped-query attention, from the log-sum-exp saved by the forward
// pass (Dao 2023; ops/reference.py, chapter 28). The T x T matrices of scores s and of dp = dout v^T are never stored:
//   p = exp(scale s - lse), delta = rowsum(dout * out), ds = p * (dp - delta),
//   dq = scale ds k, dk = scale ds^T q, dv = p^T dout.
//
// qkv, dqkv: [B, T, (H + 2 G) C], at each position H queries, G keys, G values; out, dout: [B, T, H C]; lse, delta:
// [B, H, T] in float. Head h belongs to group h / (H / G). With TURN, the gradients of q and k are rotated back by
// RoPE's angles; cosine, sine: [T, C/2] (without TURN any array). All arrays but lse and delta are aligned to 16 bytes.
//
// There are two kernels: `queries` computes dq and delta, `keys`, launched after it, dk and dv. Only one block writes
// each number, so no sum depends on timing. In return both compute the scores: seven products instead of five. (ATOMIC
// takes five: `delta`, then `keys`, which adds to dq in an order that varies between runs, then `finish`.) On Hopper,
// `queries_hopper` and `keys_hopper` compute the same with wgmma, for 16-bit numbers and heads of 64 or 128 numbers.
//
// attention.cuh describes Number, MODE and the tiles. A block owns ROWS rows, a warp 16 BANDS = ROWS / WARPS of them.
// HOLD: keep them in registers, as fragments, all the time.
#include <fours.cuh>
#include <hopper.cuh>
#include <attention.cuh>

constexpr float LOG2_E = 1.44269504f;

// The rows of the block at which a warp's bands begin: one counted from the top and, if there is a second, one from the
// bottom. A band further down has more work on the diagonal, so this gives all warps equally much.
template <int BANDS, int WARPS> __device__ __forceinline__ void begin_bands(int* top) {
  static_assert(BANDS == 1 || BANDS == 2, "a warp has 16 or 32 rows");
  int warp = threadIdx.x / 32;
  top[0] = 16 * warp;
  if (BANDS == 2) top[1] = 16 * (2 * WARPS - 1 - warp);
}

// s += a b^T. a is in registers (`held`) or in the tile `own`, with bands at `top`; b: 16 rows of a tile from `row` on.
template <class Number, Mode MODE, int C, int BANDS, bool HOLD>
__device__ __forceinline__ void add_scores(float (*s)[2][4], const unsigned (*held)[STEPS<Number, C>][4],
                                           const Number* own, const int* top, const Number* tile, int row) {
  int lane = lane_of();
#pragma unroll
  for (int step = 0; step < STEPS<Number, C>; step++) {
    unsigned b[4], loaded[4];
    load_transposed<Number, C>(b, tile, row, step);
#pragma unroll
    for (int band = 0; band < BANDS; band++) {
      if (!HOLD) ldmatrix<4>(loaded, own + place<Number, C>(lane % 16, 2 * step + lane / 16) + top[band] * C);
      const unsigned* a = HOLD ? held[band][step] : loaded;
      multiply<Number, MODE>(s[band][0], a, b);
      multiply<Number, MODE>(s[band][1], a, b + 2);
    }
  }
}

// For the mask: the column minus the row of number i of sums n, as mma leaves them (eight columns each).
__device__ __forceinline__ int column_minus_row(int n, int i) {
  return 8 * n + 2 * (lane_of() % 4) + i % 2 - lane_of() / 4 - i / 2 * 8;
}

template <class Number> __device__ __forceinline__ float2 two(const Number* x) {
  return unpack(Number(), *(const unsigned*)x);
}
__device__ __forceinline__ float2 two(const float* x) { return *(const float2*)x; }
template <class Number> __device__ __forceinline__ void put_two(Number* x, float a, float b) {
  *(unsigned*)x = pack(Number(), a, b);
}
__device__ __forceinline__ void put_two(float* x, float a, float b) { *(float2*)x = make_float2(a, b); }

// Two adjacent numbers.
template <class Number> struct alignas(2 * sizeof(Number)) Two { Number x, y; };

// Rotate the pairs (x, y) back, by minus the angles of these cosines and sines.
__device__ __forceinline__ void turn_back(float2& x, float2& y, const float* cosine, const float* sine) {
  float2 c = two(cosine), s = two(sine), z = y;
  y = make_float2(y.x * c.x - x.x * s.x, y.y * c.y - x.y * s.y);
  x = make_float2(x.x * c.x + z.x * s.x, x.y * c.y + z.y * s.y);
}

// Write a band's sums, times `scale`, to 16 rows of a matrix, the first of which belongs to `position`. They go through
// 16 rows of shared memory of this warp, so that each thread can write 16 bytes and whole rows are written.
template <class Number, int C, bool TURN>
__device__ __forceinline__ void put_band(Number* to, size_t stride, const float (*sum)[4], float scale, Number* own,
                                         int position, int T, const float* cosine, const float* sine) {
  constexpr int P = PIECES<Number, C>;
  int lane = lane_of();
  __syncwarp();  // all lanes have finished reading the rows in shared memory
#pragma unroll
  for (int half = 0; half < 2; half++) {
    int row = lane / 4 + 8 * half;
    if constexpr (sizeof(Number) == 2) {
#pragma unroll
      for (int n = 0; n < C / 16; n++) {
        const float *a = &sum[n][2 * half], *b = &sum[n + C / 16][2 * half];
        float2 x = make_float2(scale * a[0], scale * a[1]), y = make_float2(scale * b[0], scale * b[1]);
        int j = 8 * n + 2 * (lane % 4), angle = (position + row) * (C / 2) + j;
        if (TURN && position + row < T) turn_back(x, y, cosine + angle, sine + angle);
        put_two(own + place<Number, C>(row, n) + 2 * (lane % 4), x.x, x.y);
        put_two(own + place<Number, C>(row, n + C / 16) + 2 * (lane % 4), y.x, y.y);
      }
    } else {
#pragma unroll
      for (int n = 0; n < C / 8; n += 4)  // in the column order of add_product
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; i++)
          *(float4*)(own + place<Number, C>(row, 2 * n + 2 * (lane % 4) + i % 2)) = make_float4(
              scale * sum[n][i], scale * sum[n + 1][i], scale * sum[n + 2][i], scale * sum[n + 3][i]);
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = lane; i < 16 * P / 2; i += 32) {  // a piece of the left half and its RoPE partner in the right half
    int row = i / (P / 2), piece = i % (P / 2), angle = (position + row) * (C / 2) + piece * PER_PIECE<Number>;
    if (position + row >= T) continue;
    uint4 x = *(const uint4*)(own + place<Number, C>(row, piece));
    uint4 y = *(const uint4*)(own + place<Number, C>(row, piece + P / 2));
    if constexpr (TURN && sizeof(Number) == 4) {
      turn_back(((float2*)&x)[0], ((float2*)&y)[0], cosine + angle, sine + angle);
      turn_back(((float2*)&x)[1], ((float2*)&y)[1], cosine + angle + 2, sine + angle + 2);
    }
    Number* here = to + row * stride + piece * PER_PIECE<Number>;
    *(uint4*)here = x;
    *(uint4*)(here + C / 2) = y;
  }
}

// ---- dq and delta ---------------------------------------------------------------------------------------------------

// Add the contribution of 16 keys, from `row` on in their tiles, to dq of a warp's queries. MASK: some keys are in a
// query's future; ahead: the position of the first key minus that of the block's first query.
template <class Number, Mode MODE, int C, int BANDS, bool HOLD, bool MASK>
__device__ __forceinline__ void queries_step(float (*dq)[C / 8][4], const unsigned (*q)[STEPS<Number, C>][4],
                                             const unsigned (*slope)[STEPS<Number, C>][4], const Number* own_q,
                                             const Number* own_slope, const int* top, const Number* k,
                                             const Number* v, int row,
                                             int ahead, const float (*base)[2], const float (*delta)[2], float power) {
  int lane = lane_of();
  float s[BANDS][2][4] = {}, dp[BANDS][2][4] = {};
  unsigned ds[BANDS][sizeof(Number) / 2][4];
  add_scores<Number, MODE, C, BANDS, HOLD>(s, q, own_q, top, k, row);
  add_scores<Number, MODE, C, BANDS, HOLD>(dp, slope, own_slope, top, v, row);
#pragma unroll
  for (int band = 0; band < BANDS; band++) {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        float p = fast_exp2(s[band][n][i] * power - base[band][i / 2]);
        if (MASK && ahead + column_minus_row(n, i) > top[band]) p = 0;
        s[band][n][i] = p * (dp[band][n][i] - delta[band][i / 2]);
      }
    as_factor<Number, MODE>(ds[band], s[band]);
  }
  add_product<Number, MODE, C, BANDS>(dq, ds, k, row);
}

// dq and delta. A block owns ROWS queries of a head and loops over the keys up to them, STEP at a time. Launch a grid
// of (S, ceil(T / ROWS), ceil(B H / S)) blocks, where S heads run at the same time, with 32 WARPS threads each and (2
// ROWS + 4 STEP) C sizeof(Number) bytes of shared memory. pairs: B H.
template <class Number, Mode MODE, int C, int ROWS, int STEP, int WARPS, int BLOCKS, bool HOLD, bool TURN>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS)
attention_backward_queries(const Number* __restrict__ qkv, const Number* __restrict__ out,
                           const Number* __restrict__ dout, const float* __restrict__ lse, float* __restrict__ delta,
                           Number* __restrict__ dqkv, const float* __restrict__ cosine, const float* __restrict__ sine,
                           int pairs, int T, int heads, int groups, float scale) {
  constexpr int BANDS = ROWS / (16 * WARPS), THREADS = 32 * WARPS;
  extern __shared__ __align__(1024) unsigned memory[];
  Number *own_q = (Number*)memory, *own_slope = own_q + ROWS * C, *tiles = own_slope + ROWS * C;  // k, v, k, v
  int pair = blockIdx.z * gridDim.x + blockIdx.x, head = pair % heads, text = pair / heads;
  int first = (gridDim.y - 1 - blockIdx.y) * ROWS;  // the longest rows first
  if (pair >= pairs) return;
  int lane = lane_of(), top[BANDS], steps = (min(first + ROWS, T) + STEP - 1) / STEP;
  size_t stride = (size_t)(heads + 2 * groups) * C, out_stride = (size_t)heads * C;
  size_t from = (size_t)text * T * stride, out_from = ((size_t)text * T + first) * out_stride + head * C;
  size_t at = ((size_t)text * heads + head) * T + first;
  const Number *k = qkv + from + (heads + head / (heads / groups)) * C, *v = k + groups * C;

  auto fetch = [&](int step) {
    if (step < steps) {
      Number* tile = tiles + step % 2 * 2 * STEP * C;
      load_tile<Number, C, STEP, THREADS>(tile, k + step * STEP * stride, stride, T - step * STEP);
      load_tile<Number, C, STEP, THREADS>(tile + STEP * C, v + step * STEP * stride, stride, T - step * STEP);
    }
    copy_async_commit();
  };
  load_tile<Number, C, ROWS, THREADS>(own_q, qkv + from + first * stride + head * C, stride, T - first);
  load_tile<Number, C, ROWS, THREADS>(own_slope, dout + out_from, out_stride, T - first);
  copy_async_commit();
  fetch(0);
  begin_bands<BANDS, WARPS>(top);
  Two<Number> outputs[BANDS][2][C / 8] = {};  // this lane's part of out, needed for delta
#pragma unroll
  for (int i = 0; i < 2 * BANDS; i++) {
    int row = top[i / 2] + 8 * (i % 2) + lane / 4;
    const Number* here = out + out_from + row * out_stride + 2 * (lane % 4);
#pragma unroll
    for (int n = 0; n < C / 8; n++)
      if (first + row < T) outputs[i / 2][i % 2][n] = *(const Two<Number>*)(here + 8 * n);
  }
  copy_async_wait<1>();
  if constexpr (ROUNDED<Number, MODE> && !HOLD) round_tile<C, 2 * ROWS, THREADS>(own_q);
  __syncthreads();
  unsigned q[BANDS][STEPS<Number, C>][4], slope[BANDS][STEPS<Number, C>][4];
  float dq[BANDS][C / 8][4] = {}, base[BANDS][2], mine[BANDS][2];  // base: lse to base 2; mine: delta
#pragma unroll
  for (int band = 0; band < BANDS; band++) {
    if (HOLD) {
      load_rows<Number, MODE, C>(q[band], own_q, top[band]);
      load_rows<Number, MODE, C>(slope[band], own_slope, top[band]);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int row = top[band] + 8 * half + lane / 4;
      float dot = 0;
#pragma unroll
      for (int n = 0; n < C / 8; n++) {
        int c = 8 * n + 2 * (lane % 4);
        float2 a = two((const Number*)&outputs[band][half][n]);
        float2 b = two(own_slope + place<Number, C>(row, c / PER_PIECE<Number>) + c % PER_PIECE<Number>);
        dot += a.x * b.x + a.y * b.y;
      }
      dot += __shfl_xor_sync(0xffffffffu, dot, 1);
      dot += __shfl_xor_sync(0xffffffffu, dot, 2);
      mine[band][half] = dot;
      base[band][half] = first + row < T ? lse[at + row] * LOG2_E : 0.0f;
      if (first + row < T && lane % 4 == 0) delta[at + row] = dot;
    }
  }

  for (int step = 0; step < steps; step++) {
    const Number* tile = tiles + step % 2 * 2 * STEP * C;
    copy_async_wait<0>();
    if constexpr (ROUNDED<Number, MODE>) round_tile<C, 2 * STEP, THREADS>((Number*)tile);
    __syncthreads();  // this step's tiles have arrived, and no thread reads the last step's any more
    fetch(step + 1);
    const Number* values = tile + STEP * C;
    int ahead = step * STEP - first;
    float power = scale * LOG2_E;
    if (ahead + STEP - 1 <= top[0]) {
#pragma unroll 4
      for (int row = 0; row < STEP; row += 16)
        queries_step<Number, MODE, C, BANDS, HOLD, false>(dq, q, slope, own_q, own_slope, top, tile, values, row, 0,
                                                          base, mine, power);
    } else {
      for (int row = 0; row < STEP && ahead + row < top[BANDS - 1] + 16; row += 16)
        if (BANDS == 2 && ahead + row >= top[0] + 16)  // these keys come after the first band's queries
          queries_step<Number, MODE, C, 1, HOLD, true>(dq + BANDS - 1, q + BANDS - 1, slope + BANDS - 1, own_q,
                                                       own_slope, top + BANDS - 1, tile, values, row, ahead + row,
                                                       base + BANDS - 1, mine + BANDS - 1, power);
        else
          queries_step<Number, MODE, C, BANDS, HOLD, true>(dq, q, slope, own_q, own_slope, top, tile, values, row,
                                                           ahead + row, base, mine, power);
    }
  }
#pragma unroll
  for (int band = 0; band < BANDS; band++) {
    int row = top[band];
    put_band<Number, C, TURN>(dqkv + from + (first + row) * stride + head * C, stride, dq[band], scale, own_q + row * C,
                              first + row, T, cosine, sine);
  }
}

// ---- dk and dv ------------------------------------------------------------------------------------------------------

// Add the contribution of 16 queries, from `row` on in their tiles, to dk and dv of a warp's keys. Here the keys are
// the rows, s^T = k q^T, so that p^T and ds^T are in registers as the next products need them. MASK: some keys are in a
// query's future; ahead: the position of the first query minus that of the block's first key. ATOMIC uses ds later.
template <class Number, Mode MODE, int C, int BANDS, int HOLD, bool MASK>
__device__ __forceinline__ void keys_step(float (*dk)[C / 8][4], float (*dv)[C / 8][4],
                                          unsigned (*ds)[sizeof(Number) / 2][4],
                                          const unsigned (*k)[STEPS<Number, C>][4],
                                          const unsigned (*v)[STEPS<Number, C>][4], const Number* own_k,
                                          const Number* own_v, const int* top, const Number* q, const Number* slope,
                                          int row, int ahead, const float* base, const float* delta, float power) {
  int lane = lane_of();
  float s[BANDS][2][4] = {}, dp[BANDS][2][4] = {};
  unsigned p[BANDS][sizeof(Number) / 2][4];
  add_scores<Number, MODE, C, BANDS, (HOLD > 0)>(s, k, own_k, top, q, row);
  add_scores<Number, MODE, C, BANDS, (HOLD > 1)>(dp, v, own_v, top, slope, row);
#pragma unroll
  for (int n = 0; n < 2; n++) {
    float2 less = two(base + row + 8 * n + 2 * (lane % 4)), mean = two(delta + row + 8 * n + 2 * (lane % 4));
#pragma unroll
    for (int band = 0; band < BANDS; band++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        float& x = s[band][n][i];
        x = fast_exp2(x * power - LOG2_E * (i % 2 ? less.y : less.x));
        if (MASK && ahead + column_minus_row(n, i) < top[band]) x = 0;
        dp[band][n][i] = x * (dp[band][n][i] - (i % 2 ? mean.y : mean.x));
      }
  }
#pragma unroll
  for (int band = 0; band < BANDS; band++) {
    as_factor<Number, MODE>(p[band], s[band]);
    as_factor<Number, MODE>(ds[band], dp[band]);
  }
  add_product<Number, MODE, C, BANDS>(dv, p, slope, row);
  add_product<Number, MODE, C, BANDS>(dk, ds, q, row);
}

// put_part stores 16 x 16 numbers, as as_factor leaves them, at (`row`, `column`) of a tile with WIDTH columns;
// load_part loads such a part, transposed, as the fragment a of a product.
template <class Number, int WIDTH>
__device__ __forceinline__ void put_part(Number* tile, const unsigned (*a)[4], int row, int column) {
  int lane = lane_of();
#pragma unroll
  for (int n = 0; n < 2; n++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int r = row + lane / 4 + 8 * half, c = column + 8 * n + 2 * (lane % 4);
      if constexpr (sizeof(Number) == 2)
        *(unsigned*)&tile[place<Number, WIDTH>(r, c / 8) + c % 8] = a[0][2 * n + half];
      else
        *(uint2*)&tile[place<Number, WIDTH>(r, c / 4) + c % 4] = make_uint2(a[n][half], a[n][half + 2]);
    }
}
template <class Number, int WIDTH>
__device__ __forceinline__ void load_part(unsigned (*a)[4], const Number* tile, int row, int column) {
  int lane = lane_of();
  if constexpr (sizeof(Number) == 2) {
    ldmatrix_trans<4>(a[0], tile + place<Number, WIDTH>(row + lane % 8 + lane / 16 * 8, column / 8 + lane / 8 % 2));
  } else {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      int r = row + i / 4 * 8 + lane % 4 * 2 + i % 4 / 2, c = column + lane / 4 + i % 2 * 8;
      a[i / 4][i % 4] = __float_as_uint(tile[place<Number, WIDTH>(r, c / 4) + c % 4]);
    }
  }
}

__device__ __forceinline__ void add_two(float* x, float a, float b) {
#if NE_ARCH >= 900
  atomicAdd((float2*)x, make_float2(a, b));
#else
  atomicAdd(x, a), atomicAdd(x + 1, b);
#endif
}

// dq += ds k for the queries of a step and the block's keys, by atomics. ds^T: [ROWS, STEP] in shared memory; dq:
// [STEP, C] in global memory, of which `given` rows exist; ahead: position of the first query minus the first key's.
template <class Number, Mode MODE, int C, int ROWS, int STEP, int WARPS>
__device__ __forceinline__ void add_queries(float* dq, const Number* ds, const Number* k, int ahead, int given) {
  int lane = lane_of();
  for (int row = threadIdx.x / 32 * 16; row < STEP; row += 16 * WARPS) {
    float sum[1][C / 8][4] = {};
    for (int key = 0; key < ROWS && key <= ahead + row + 15; key += 16) {
      unsigned a[1][sizeof(Number) / 2][4];
      load_part<Number, STEP>(a[0], ds, key, row);
      add_product<Number, MODE, C, 1>(sum, a, k, key);
    }
#pragma unroll
    for (int n = 0; n < C / 8; n++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        int r = row + 8 * half + lane / 4;
        if (r >= given) continue;
        const float* x = &sum[0][n][2 * half];
        if constexpr (sizeof(Number) == 2) {
          add_two(dq + r * C + 8 * n + 2 * (lane % 4), x[0], x[1]);
        } else {  // in the column order of add_product
          float* to = dq + r * C + n / 4 * 32 + 8 * (lane % 4) + n % 4;
          atomicAdd(to, x[0]), atomicAdd(to + 4, x[1]);
        }
      }
  }
}

// dk and dv. A block owns ROWS keys of a group and loops over the queries from them on, STEP at a time, for each head
// of the group in turn. HOLD: 2 keeps k and v in registers as fragments, 1 only k, which leaves room for wider steps, 0
// none. dq: [B, H, T, C], added to if ATOMIC. Launch a grid of (S, ceil(T / ROWS), ceil(B G / S)) blocks, where S
// groups run at the same time, with 32 WARPS threads each and (2 ROWS + 4 STEP) C sizeof(Number) + 16 STEP bytes of
// shared memory; ATOMIC takes ROWS STEP sizeof(Number) more. pairs: B G.
template <class Number, Mode MODE, int C, int ROWS, int STEP, int WARPS, int BLOCKS, int HOLD, bool TURN, bool ATOMIC>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS)
attention_backward_keys(const Number* __restrict__ qkv, const Number* __restrict__ dout, const float* __restrict__ lse,
                        const float* __restrict__ delta, Number* __restrict__ dqkv, float* __restrict__ dq,
                        const float* __restrict__ cosine, const float* __restrict__ sine, int pairs, int T, int heads,
                        int groups, float scale) {
  constexpr int BANDS = ROWS / (16 * WARPS), THREADS = 32 * WARPS;
  constexpr int AT_ONCE = HOLD == 2 ? 4 : 1;  // unrolling takes registers, which a smaller HOLD is meant to save
  extern __shared__ __align__(1024) unsigned memory[];
  Number *own_k = (Number*)memory, *own_v = own_k + ROWS * C, *tiles = own_v + ROWS * C;  // q, dout, q, dout
  float* numbers = (float*)(tiles + 4 * STEP * C);                                         // lse, delta, lse, delta
  Number* parts = (Number*)(numbers + 4 * STEP);                                           // ds^T of one step
  int pair = blockIdx.z * gridDim.x + blockIdx.x, group = pair % groups, text = pair / groups;
  int first = blockIdx.y * ROWS, top[BANDS];  // the longest rows first
  if (pair >= pairs) return;
  begin_bands<BANDS, WARPS>(top);
  size_t stride = (size_t)(heads + 2 * groups) * C, out_stride = (size_t)heads * C;
  size_t from = (size_t)text * T * stride, keys_from = from + first * stride + (heads + group) * C;
  // The steps of a head begin with the one that contains the first key. next_head, next: the step that is fetched next.
  int next_head = group * (heads / groups), last_head = next_head + heads / groups, start = first / STEP * STEP;
  int next = start, stage = 0;

  auto fetch = [&]() {
    if (next_head < last_head) {
      Number* tile = tiles + stage * 2 * STEP * C;
      float* its = numbers + stage * 2 * STEP;
      size_t row = (size_t)text * T + next, at = ((size_t)text * heads + next_head) * T + next;
      load_tile<Number, C, STEP, THREADS>(tile, qkv + row * stride + next_head * C, stride, T - next);
      load_tile<Number, C, STEP, THREADS>(tile + STEP * C, dout + row * out_stride + next_head * C, out_stride,
                                          T - next);
      for (int i = threadIdx.x; i < 2 * STEP; i += THREADS) {
        bool there = next + i % STEP < T;
        copy_async<4>(its + i, (i < STEP ? lse : delta) + at + (there ? i % STEP : 0), there ? 4 : 0);
      }
      next += STEP;
      if (next >= T) next = start, next_head++;
    }
    stage ^= 1;
    copy_async_commit();
  };
  load_tile<Number, C, ROWS, THREADS>(own_k, qkv + keys_from, stride, T - first);
  load_tile<Number, C, ROWS, THREADS>(own_v, qkv + keys_from + groups * C, stride, T - first);
  copy_async_commit();
  fetch();
  copy_async_wait<1>();
  if constexpr (ROUNDED<Number, MODE> && (ATOMIC || HOLD < 2)) round_tile<C, 2 * ROWS, THREADS>(own_k);
  __syncthreads();
  unsigned k[BANDS][STEPS<Number, C>][4], v[BANDS][STEPS<Number, C>][4];
  float dk[BANDS][C / 8][4] = {}, dv[BANDS][C / 8][4] = {};
#pragma unroll
  for (int band = 0; band < BANDS; band++) {
    if (HOLD > 0) load_rows<Number, MODE, C>(k[band], own_k, top[band]);
    if (HOLD > 1) load_rows<Number, MODE, C>(v[band], own_v, top[band]);
  }

  for (int head = group * (heads / groups); head < last_head; head++)
    for (int query = start; query < T; query += STEP) {
      copy_async_wait<0>();
      Number* q = tiles + (stage ^ 1) * 2 * STEP * C;
      const float* base = numbers + (stage ^ 1) * 2 * STEP;
      if constexpr (ROUNDED<Number, MODE>) round_tile<C, 2 * STEP, THREADS>(q);
      __syncthreads();  // this step's tiles have arrived, and no thread reads the last step's any more
      fetch();
      const Number* slope = q + STEP * C;
      int ahead = query - first;
      float power = scale * LOG2_E;
      unsigned ds[BANDS][sizeof(Number) / 2][4];
      auto keep = [&](int row, int bands) {
        if constexpr (ATOMIC)
#pragma unroll
          for (int band = 0; band < BANDS; band++)
            if (band < bands) put_part<Number, STEP>(parts, ds[band], top[band], row);
      };
      if (ahead >= top[BANDS - 1] + 15) {
#pragma unroll AT_ONCE
        for (int row = 0; row < STEP; row += 16) {
          keys_step<Number, MODE, C, BANDS, HOLD, false>(dk, dv, ds, k, v, own_k, own_v, top, q, slope, row, 0, base,
                                                         base + STEP, power);
          keep(row, BANDS);
        }
      } else {
        for (int row = 0; row < STEP; row += 16) {
          if (ahead + row + 15 < top[0]) continue;  // all of these queries come before the warp's keys
          if (BANDS == 2 && ahead + row + 15 < top[BANDS - 1]) {  // before the second band
            keys_step<Number, MODE, C, 1, HOLD, true>(dk, dv, ds, k, v, own_k, own_v, top, q, slope, row,
                                                      ahead + row, base, base + STEP, power);
            keep(row, 1);
          } else {
            keys_step<Number, MODE, C, BANDS, HOLD, true>(dk, dv, ds, k, v, own_k, own_v, top, q, slope, row,
                                                          ahead + row, base, base + STEP, power);
            keep(row, BANDS);
          }
        }
      }
      if constexpr (ATOMIC) {
        __syncthreads();  // all warps have written their parts of ds^T
        float* to = dq + (((size_t)text * heads + head) * T + query) * C;
        add_queries<Number, MODE, C, ROWS, STEP, WARPS>(to, parts, own_k, query - first, T - query);
      }
    }
  if (ATOMIC) __syncthreads();  // all warps have finished reading the keys, whose memory is reused
#pragma unroll
  for (int band = 0; band < BANDS; band++) {
    int row = top[band];
    Number* to = dqkv + keys_from + row * stride;
    put_band<Number, C, TURN>(to, stride, dk[band], scale, own_k + row * C, first + row, T, cosine, sine);
    put_band<Number, C, false>(to + groups * C, stride, dv[band], 1.0f, own_v + row * C, first + row, T, cosine, sine);
  }
}

// ---- Hopper: the same two kernels with wgmma ------------------------------------------------------------------------
// A block has ROWS / 64 warpgroups of four warps. Each owns 64 rows of two matrices: q and dout, or k and v. In each
// step, all warpgroups multiply these by the same 64 rows of the two other matrices. The tiles of STAGES steps are in
// shared memory: thread 0 lets TMA copy those of a step when all warps have finished the step STAGES before it. A tile
// consists of boxes of 64 columns, the widest that wgmma reads. On other GPUs, and in the checker, the threads of the
// first warpgroup copy, and each warp multiplies its 16 rows by mma.

template <int STAGES> struct Barriers { unsigned long long filled[STAGES], emptied[STAGES]; };

// Start to copy 64 rows of C numbers from a matrix [texts, T, columns] to a tile. Rows from T on become 0.
template <class Number, int C>
__device__ __forceinline__ void copy_boxes(Number* tile, const TensorMap& map, const Number* matrix, int columns,
                                           int column, int row, int text, int T, unsigned long long* filled) {
#pragma unroll
  for (int c = 0; c < C; c += COLUMNS) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    copy_tile(tile + COLUMNS * c, &map, column + c, row, text, filled);
#else
    const Number* from = matrix + ((size_t)text * T + row) * columns + column + c;
    load_tile<Number, COLUMNS, 64, 128>(tile + COLUMNS * c, from, columns, T - row);
    copy_async_commit();
#endif
  }
}

template <int STAGES> __device__ __forceinline__ void start(Barriers<STAGES>& b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if (threadIdx.x == 0)
    for (int i = 0; i < STAGES; i++) {
      mbarrier_init(&b.filled[i], 1);
      mbarrier_init(&b.emptied[i], blockDim.x / 32);  // one lane of each warp arrives
    }
  fence_async();
  __syncthreads();
#endif
}
// Whether this thread copies the tiles of a step, of so many bytes; if so, wait until their stage is empty.
template <int STAGES> __device__ __forceinline__ bool may_copy(Barriers<STAGES>& b, int step, int bytes) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if (threadIdx.x != 0) return false;
  if (step >= STAGES) mbarrier_wait(&b.emptied[step % STAGES], (step / STAGES + 1) % 2);
  mbarrier_expect(&b.filled[step % STAGES], bytes);
  return true;
#else
  return threadIdx.x < 128;
#endif
}
template <int STAGES> __device__ __forceinline__ void wait_filled(Barriers<STAGES>& b, int step) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  mbarrier_wait(&b.filled[step % STAGES], step / STAGES % 2);
  __syncwarp();
#else
  copy_async_wait<0>();
  __syncthreads();  // the tiles have arrived, and no thread reads those of the last step any more
#endif
}
template <int STAGES> __device__ __forceinline__ void tell_emptied(Barriers<STAGES>& b, int step) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if (threadIdx.x % 32 == 0) mbarrier_arrive(&b.emptied[step % STAGES]);
#endif
}

// dq and delta. Launch the grid of `queries` with 2 ROWS threads and 2 (ROWS + 64 STAGES) C sizeof(Number) bytes of
// shared memory. The maps are those of qkv and dout, [B, T, columns], in boxes of 64 rows.
template <class Number, int C, int ROWS, int STAGES, int BLOCKS, bool TURN>
__global__ void __launch_bounds__(2 * ROWS, BLOCKS)
attention_backward_queries_hopper(const __grid_constant__ TensorMap map, const __grid_constant__ TensorMap map_dout,
                                  const Number* __restrict__ qkv, const Number* __restrict__ out,
                                  const Number* __restrict__ dout, const float* __restrict__ lse,
                                  float* __restrict__ delta, Number* __restrict__ dqkv,
                                  const float* __restrict__ cosine, const float* __restrict__ sine, int pairs, int T,
                                  int heads, int groups, float scale) {
  constexpr int TILE = 64 * C, BYTES = TILE * (int)sizeof(Number);
  static_assert(ROWS <= 64 * STAGES, "the first warpgroup, whose keys end first, has copied all tiles by then");
  extern __shared__ __align__(1024) unsigned memory[];
  __shared__ Barriers<STAGES> barriers;
  int pair = blockIdx.z * gridDim.x + blockIdx.x, head = pair % heads, text = pair / heads;
  int first = (gridDim.y - 1 - blockIdx.y) * ROWS;  // the longest rows first
  if (pair >= pairs) return;
  int lane = lane_of(), row = threadIdx.x / 32 * 16, steps = (min(first + ROWS, T) + 63) / 64;  // row: of this warp
  int columns = (heads + 2 * groups) * C, key = (heads + head / (heads / groups)) * C;
  Number *own = (Number*)memory, *tiles = own + 2 * ROWS * C;  // own: q, dout of each warpgroup; tiles: k, v, k, v
  Number *q = own + row / 64 * 2 * TILE, *slope = q + TILE;
  start(barriers);
  auto fetch = [&](int step) {
    if (step >= steps || !may_copy(barriers, step, 2 * BYTES + (step == 0 ? ROWS / 32 * BYTES : 0))) return;
    unsigned long long* filled = &barriers.filled[step % STAGES];
    Number* tile = tiles + step % STAGES * 2 * TILE;
    for (int r = 0; r < ROWS && step == 0; r += 64) {
      copy_boxes<Number, C>(own + 2 * r * C, map, qkv, columns, head * C, first + r, text, T, filled);
      copy_boxes<Number, C>(own + 2 * r * C + TILE, map_dout, dout, heads * C, head * C, first + r, text, T, filled);
    }
    copy_boxes<Number, C>(tile, map, qkv, columns, key, 64 * step, text, T, filled);
    copy_boxes<Number, C>(tile + TILE, map, qkv, columns, key + groups * C, 64 * step, text, T, filled);
  };
  for (int step = 0; step < STAGES - 1; step++) fetch(step);

  float base[2], mean[2] = {};  // lse to base 2, and delta
#pragma unroll
  for (int half = 0; half < 2; half++) {
    int position = first + row + lane / 4 + 8 * half;
    size_t at = ((size_t)text * heads + head) * T + position;
    size_t here = (((size_t)text * T + position) * heads + head) * C + lane % 4 * 4;
    base[half] = position < T ? lse[at] * LOG2_E : 0.0f;
#pragma unroll
    for (int c = 0; c < C; c += 16)
      if (position < T) {
        float4 a = read_four(out + here + c), b = read_four(dout + here + c);
        mean[half] += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
      }
    mean[half] += __shfl_xor_sync(0xffffffffu, mean[half], 1);
    mean[half] += __shfl_xor_sync(0xffffffffu, mean[half], 2);
    if (position < T && lane % 4 == 0) delta[at] = mean[half];
  }

  float dq[C / 2] = {}, power = scale * LOG2_E;
  unsigned ds[4][4];
  for (int step = 0; step < steps; step++) {
    const Number *k = tiles + step % STAGES * 2 * TILE, *v = k + TILE;
    int ahead = 64 * step - (first + row / 64 * 64);  // position of the first key minus the warpgroup's first query's
    wait_filled(barriers, step);
    if (ahead > 0) {  // all keys are in the future
      tell_emptied(barriers, step);
      continue;
    }
    float s[32], dp[32];
    start_scores<Number, C>(s, q, k);
    start_scores<Number, C>(dp, slope, v);
    wait_scores<1>(s);
#pragma unroll
    for (int i = 0; i < 32; i++) s[i] = fast_exp2(s[i] * power - base[i / 2 % 2]);
    if (ahead == 0)
#pragma unroll
      for (int i = 0; i < 32; i++)
        if (column_minus_row(i / 4, i % 4) > row % 64) s[i] = 0;
    fetch(step + STAGES - 1);  // here its branch keeps the compiler from moving the powers after the next line
    wait_scores<0>(dp);
#pragma unroll
    for (int i = 0; i < 32; i++) s[i] *= dp[i] - mean[i / 2 % 2];
    as_factors<Number>(ds, s);
    start_product<Number, C>(dq, ds, k);
    wait_product<C>(dq, ds);
    tell_emptied(barriers, step);
  }
  __syncthreads();  // all warps have finished with the block's own rows, whose memory is reused
  Number* to = dqkv + ((size_t)text * T + first + row) * columns + head * C;
  put_band<Number, C, TURN>(to, columns, (const float(*)[4])dq, scale, q + row % 64 * C, first + row, T, cosine, sine);
}

// dk and dv. Launch the grid of `keys` with 2 ROWS threads and 64 ROWS more bytes of shared memory than above, for lse
// and delta: each warp copies these for itself, one step ahead, so that it need not wait for the other warps.
template <class Number, int C, int ROWS, int STAGES, int BLOCKS, bool TURN>
__global__ void __launch_bounds__(2 * ROWS, BLOCKS)
attention_backward_keys_hopper(const __grid_constant__ TensorMap map, const __grid_constant__ TensorMap map_dout,
                               const Number* __restrict__ qkv, const Number* __restrict__ dout,
                               const float* __restrict__ lse, const float* __restrict__ delta,
                               Number* __restrict__ dqkv, const float* __restrict__ cosine,
                               const float* __restrict__ sine, int pairs, int T, int heads, int groups, float scale) {
  constexpr int TILE = 64 * C, BYTES = TILE * (int)sizeof(Number);
  extern __shared__ __align__(1024) unsigned memory[];
  __shared__ Barriers<STAGES> barriers;
  int pair = blockIdx.z * gridDim.x + blockIdx.x, group = pair % groups, text = pair / groups;
  int first = blockIdx.y * ROWS;  // the longest rows first
  if (pair >= pairs) return;
  int lane = lane_of(), row = threadIdx.x / 32 * 16;  // row: of this warp
  int columns = (heads + 2 * groups) * C, key = (heads + group) * C, first_head = group * (heads / groups);
  int each = (T - first + 63) / 64, steps = heads / groups * each;  // each: steps per head, from the first key on
  Number *own = (Number*)memory, *tiles = own + 2 * ROWS * C;  // own: k, v of each warpgroup; tiles: q, dout, q, dout
  Number *k = own + row / 64 * 2 * TILE, *v = k + TILE;
  float* numbers = (float*)(tiles + 2 * STAGES * TILE) + 16 * row;  // of this warp: lse, delta, lse, delta
  start(barriers);
  auto fetch = [&](int step) {
    if (step >= steps || !may_copy(barriers, step, 2 * BYTES + (step == 0 ? ROWS / 32 * BYTES : 0))) return;
    int head = (first_head + step / each) * C, query = first + step % each * 64;
    unsigned long long* filled = &barriers.filled[step % STAGES];
    Number* tile = tiles + step % STAGES * 2 * TILE;
    for (int r = 0; r < ROWS && step == 0; r += 64) {
      copy_boxes<Number, C>(own + 2 * r * C, map, qkv, columns, key, first + r, text, T, filled);
      copy_boxes<Number, C>(own + 2 * r * C + TILE, map, qkv, columns, key + groups * C, first + r, text, T, filled);
    }
    copy_boxes<Number, C>(tile, map, qkv, columns, head, query, text, T, filled);
    copy_boxes<Number, C>(tile + TILE, map_dout, dout, heads * C, head, query, text, T, filled);
  };
  auto fetch_numbers = [&](int step) {
    if (step == steps) return;
    int query = first + step % each * 64;
    size_t at = ((size_t)text * heads + first_head + step / each) * T + query;
#pragma unroll
    for (int i = lane; i < 128; i += 32) {
      bool there = query + i % 64 < T;
      copy_async<4>(numbers + step % 2 * 128 + i, (i < 64 ? lse : delta) + at + (there ? i % 64 : 0), there ? 4 : 0);
    }
    copy_async_commit();
  };
  for (int step = 0; step < STAGES - 1; step++) fetch(step);
  fetch_numbers(0);

  float dk[C / 2] = {}, dv[C / 2] = {}, power = scale * LOG2_E;
  unsigned p[4][4], ds[4][4];
  for (int step = 0; step < steps; step++) {
    const Number *q = tiles + step % STAGES * 2 * TILE, *slope = q + TILE;
    const float *base = numbers + step % 2 * 128 + 2 * (lane % 4), *mean = base + 64;
    int ahead = step % each * 64 - row / 64 * 64;  // position of the first query minus the warpgroup's first key's
    copy_async_wait<0>();
    wait_filled(barriers, step);
    fetch_numbers(step + 1);
    if (ahead < 0) {  // all queries come before the keys
      tell_emptied(barriers, step);
      continue;
    }
    float s[32], dp[32];
    start_scores<Number, C>(s, k, q);
    start_scores<Number, C>(dp, v, slope);
    fetch(step + STAGES - 1);
    wait_scores<1>(s);
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      float2 less = two(base + 2 * (i - i % 4));
      s[i] = fast_exp2(s[i] * power - LOG2_E * less.x);
      s[i + 1] = fast_exp2(s[i + 1] * power - LOG2_E * less.y);
    }
    if (ahead == 0)
#pragma unroll
      for (int i = 0; i < 32; i++)
        if (column_minus_row(i / 4, i % 4) < row % 64) s[i] = 0;
    as_factors<Number>(p, s);
    start_product<Number, C>(dv, p, slope);
    wait_scores<1>(dp);
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      float2 its = two(mean + 2 * (i - i % 4));
      s[i] *= dp[i] - its.x;
      s[i + 1] *= dp[i + 1] - its.y;
    }
    as_factors<Number>(ds, s);
    start_product<Number, C>(dk, ds, q);
    wait_product<C>(dk, ds);
    wait_product<C>(dv, p);
    tell_emptied(barriers, step);
  }
  __syncthreads();  // all warps have finished with the block's own rows, whose memory is reused
  Number* to = dqkv + ((size_t)text * T + first + row) * columns + key;
  put_band<Number, C, TURN>(to, columns, (const float(*)[4])dk, scale, k + row % 64 * C, first + row, T, cosine, sine);
  put_band<Number, C, false>(to + groups * C, columns, (const float(*)[4])dv, 1.0f, v + row % 64 * C, first + row, T,
                             cosine, sine);
}

// ---- around the atomic form -----------------------------------------------------------------------------------------

// Before `keys`: compute delta and set dq to 0. A warp handles one row of a head; launch any number of whole warps.
template <class Number, int C>
__global__ void attention_backward_delta(const Number* __restrict__ out, const Number* __restrict__ dout,
                                         float* __restrict__ delta, float* __restrict__ dq, int texts, int T,
                                         int heads) {
  int lane = lane_of(), warps = gridDim.x * (blockDim.x / 32);
  for (size_t row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; row < (size_t)texts * T * heads; row += warps) {
    size_t position = row / heads, at = (position / T * heads + row % heads) * T + position % T;
    float sum = 0;
    for (int c = 2 * lane; c < C; c += 64) {
      float2 a = two(out + row * C + c), b = two(dout + row * C + c);
      sum += a.x * b.x + a.y * b.y;
      put_two(dq + at * C + c, 0, 0);
    }
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (lane == 0) delta[at] = sum;
  }
}

// After `keys`: write dq, scaled and rotated back, to its place in dqkv. Launch any number of threads.
template <class Number, int C, bool TURN>
__global__ void attention_backward_finish(const float* __restrict__ dq, Number* __restrict__ dqkv,
                                          const float* __restrict__ cosine, const float* __restrict__ sine, int texts,
                                          int T, int heads, int groups, float scale) {
  constexpr int PAIRS = C / 4;  // threads per row, each with two pairs
  size_t stride = (size_t)(heads + 2 * groups) * C, all = (size_t)texts * T * heads * PAIRS;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += (size_t)gridDim.x * blockDim.x) {
    size_t row = i / PAIRS, position = row / heads, head = row % heads;
    int j = i % PAIRS * 2, angle = (int)(position % T) * (C / 2) + j;
    const float* from = dq + ((position / T * heads + head) * T + position % T) * C + j;
    float2 x = two(from), y = two(from + C / 2);
    x = make_float2(scale * x.x, scale * x.y), y = make_float2(scale * y.x, scale * y.y);
    if (TURN) turn_back(x, y, cosine + angle, sine + angle);
    Number* to = dqkv + position * stride + head * C + j;
    put_two(to, x.x, x.y);
    put_two(to + C / 2, y.x, y.y);
  }
}
