// Process 1 to ROWS more tokens of one text, five launches per layer: `project` (queries, keys, values), `attend`,
// `project` (output), `project_glu`, `project` (down). engine.Decoder; chapter 14; ops/reference.py in NumPy.
//
// With so few tokens, most of the time goes into reading the weights. They are stored transposed, [outputs, inputs],
// with the gain of RMSNorm multiplied in. A block computes eight outputs at a time and reads their rows once for all
// tokens. The number of tokens does not change the order of any sum. Number: type of the weights and of the key-value
// cache, float, __nv_bfloat16 or __half; everything else is float. All widths are multiples of 8, and arrays are
// aligned to 16 bytes.
//
// A launch lets the next one begin at once (`launch_dependents`). The next one loads its weights, or keys and values of
// earlier tokens, then waits for the end of the launch before (`grid_dependency_wait`), then reads everything else.
#include <fours.cuh>
#include <nanoeuler.cuh>
#include <reduce.cuh>

#define WARPS 8          // warps per block of `project` and `project_glu`
#define ATTEND_WARPS 16  // warps per block of `attend`
#define AHEAD 8          // pieces of eight weights that a thread loads before it needs the first one
#define KEYS 8           // the same for keys and for values
#define ROWS_AT_MOST 8

struct Eight {
  float4 low, high;
};
// Eight numbers in the format of memory: they are fetched early and converted to float only when they are needed.
__device__ __forceinline__ Eight fetch(const float* p) { return {((const float4*)p)[0], ((const float4*)p)[1]}; }
template <class Number> struct Bits {
  uint4 v;
};
template <class Number> __device__ __forceinline__ Bits<Number> fetch(const Number* p) { return {*(const uint4*)p}; }
__device__ __forceinline__ Eight eight(Eight v) { return v; }
template <class Number> __device__ __forceinline__ Eight eight(Bits<Number> b) {
  return {unpack(Number(), b.v.x, b.v.y), unpack(Number(), b.v.z, b.v.w)};
}
template <class Number> struct As {  // the type that `fetch` returns
  typedef Bits<Number> fetched;
};
template <> struct As<float> {
  typedef Eight fetched;
};
// Explicit fmaf, because otherwise the compiler decides which product is rounded, and did so differently per instance.
__device__ __forceinline__ float dot(float4 a, float4 b) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, a.x * b.x)));
}
__device__ __forceinline__ float dot(Eight a, Eight b) { return dot(a.low, b.low) + dot(a.high, b.high); }
__device__ __forceinline__ void write(float* p, float v) { *p = v; }
__device__ __forceinline__ void write(__nv_bfloat16* p, float v) { *p = __float2bfloat16(v); }
__device__ __forceinline__ void write(__half* p, float v) { *p = __float2half(v); }
__device__ __forceinline__ float as_float(float v) { return v; }
__device__ __forceinline__ float as_float(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ __forceinline__ float as_float(__half v) { return __half2float(v); }

// The block's copy of x in shared memory, in rows of float4 with one of padding, so that two rows read by a warp are in
// different banks. For float and float16 weights it is x itself: they are multiplied as floats, as a float16 cannot
// hold every x. Tensor cores multiply bfloat16 weights only by bfloat16, so each number is stored as two: rounded, and
// the rounded remainder, with a relative error of 2^-17. A float4 becomes: first two rounded, their remainders, last
// two rounded, their remainders.
template <int I> constexpr int pitch = I / 4 + 1;
template <class Number> __device__ __forceinline__ float4 as_multiplied(float4 v, const Number*) { return v; }
__device__ __forceinline__ float4 as_multiplied(float4 v, const __nv_bfloat16*) {
  __nv_bfloat16 type;
  unsigned low = pack(type, v.x, v.y), high = pack(type, v.z, v.w);
  float4 of = unpack(type, low, high);
  return make_float4(__uint_as_float(low), __uint_as_float(pack(type, v.x - of.x, v.y - of.y)), __uint_as_float(high),
                     __uint_as_float(pack(type, v.z - of.z, v.w - of.w)));
}

// Copy x: [rows, I]; with NORM also write each warp's sum of squares of each row. All rows are loaded together, so
// there are no more waits than for one row. The caller must call the barrier afterwards.
template <class Number, int ROWS, int I, bool NORM>
__device__ __forceinline__ void load_rows(float4* copy, float (*squares)[WARPS], const float* x, int rows) {
  float sum[ROWS] = {};
#pragma unroll
  for (int k = 0; k < (I / 4 + 32 * WARPS - 1) / (32 * WARPS); k++) {
    int four = 32 * WARPS * k + threadIdx.x;
    if (four >= I / 4) continue;
    float4 v[ROWS];
#pragma unroll
    for (int row = 0; row < ROWS; row++)
      if (row < rows) v[row] = ((const float4*)(x + (size_t)row * I))[four];
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
      if (row >= rows) continue;
      copy[row * pitch<I> + four] = as_multiplied(v[row], (const Number*)0);
      sum[row] += dot(v[row], v[row]);
    }
  }
#pragma unroll
  for (int row = 0; row < ROWS; row++) {
    if (!NORM || row >= rows) continue;
    sum[row] = warp_sum(sum[row]);
    if (threadIdx.x % 32 == 0) squares[row][threadIdx.x / 32] = sum[row];
  }
}

// The factor by which RMSNorm multiplies a row.
template <int I> __device__ __forceinline__ float rstd_of(const float* squares, float eps) {
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < WARPS; warp++) sum += squares[warp];
  return rsqrtf(fmaf(sum, 1.0f / I, eps));
}

// How a block's threads share eight rows of I weights: the warps take 32 numbers each in turn, PIECES times. Of 32
// numbers, lane 4n + t has numbers 8t to 8t + 7 of row n; `number_of_piece` is the first of them.
template <int I> constexpr int PIECES = (I + 32 * WARPS - 1) / (32 * WARPS);
__device__ __forceinline__ int number_of_piece(int k) {
  return 32 * WARPS * k + threadIdx.x / 32 * 32 + threadIdx.x % 4 * 8;
}
template <int I> __device__ __forceinline__ bool has_piece(int k) {
  return 32 * WARPS * (k + 1) <= I || number_of_piece(k) < I;
}

// Start to load a lane's first pieces. w: where its row begins.
template <int I, class Fetched, class Number>
__device__ __forceinline__ void ask(Fetched (&ahead)[AHEAD], const Number* w) {
#pragma unroll
  for (int k = 0; k < AHEAD && k < PIECES<I>; k++)
    if (has_piece<I>(k)) ahead[k] = fetch(w + number_of_piece(k));
}

// A warp's part of the product of rows of x and eight rows of weights. `add` takes a piece of the weights and the
// matching float4 of the copy of x; `give` writes the sums as [rows][8].
template <class Number, int ROWS, int I> struct Sums {
  float sum[ROWS] = {};  // this lane's sums, for row n of the weights

  __device__ __forceinline__ void add(int, typename As<Number>::fetched piece, const float4* x, int rows) {
    Eight w = eight(piece);
#pragma unroll
    for (int row = 0; row < ROWS; row++)
      if (row < rows) sum[row] += dot(w, {x[row * pitch<I>], x[row * pitch<I> + 1]});
  }

  __device__ __forceinline__ void give(float (*part)[8], int rows) {
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
      if (row >= rows) continue;
      sum[row] += __shfl_xor_sync(0xffffffffu, sum[row], 1);
      sum[row] += __shfl_xor_sync(0xffffffffu, sum[row], 2);
      if (threadIdx.x % 4 == 0) part[row][threadIdx.x % 32 / 4] = sum[row];
    }
  }
};

// The same with `mma`. Rows 0 to 7 of its first matrix are the rounded x, rows 8 to 15 their remainders, missing rows
// are 0. Any 16 of the 32 numbers may form a step if both matrices agree; here it is those that a lane holds.
template <int ROWS, int I> struct Sums<__nv_bfloat16, ROWS, I> {
  float sum[4][4] = {};  // row n of x times rows 2t and 2t + 1 of the weights: rounded part and remainder. There are
                         // four, because an `mma` waits for the previous one that adds to the same sum

  __device__ __forceinline__ void add(int k, Bits<__nv_bfloat16> piece, const float4* x, int rows) {
    uint4 w = piece.v;
    int row = threadIdx.x % 32 / 4;
    uint4 low = {0, 0, 0, 0}, high = {0, 0, 0, 0};
    if (row < rows) low = ((const uint4*)x)[row * pitch<I>], high = ((const uint4*)x)[row * pitch<I> + 1];
    mma<__nv_bfloat16>(sum[k % 2], &low.x, &w.x);
    mma<__nv_bfloat16>(sum[2 + k % 2], &high.x, &w.z);
  }

  __device__ __forceinline__ void give(float (*part)[8], int rows) {
    int row = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float all[4];
#pragma unroll
    for (int i = 0; i < 4; i++) all[i] = (sum[0][i] + sum[1][i]) + (sum[2][i] + sum[3][i]);
    if (row < rows) *(float2*)&part[row][2 * t] = make_float2(all[0] + all[2], all[1] + all[3]);
  }
};

// sums += the block's copy of x times eight rows of weights, whose first pieces, `ahead`, are already loading.
template <class Number, int ROWS, int I, class Fetched>
__device__ __forceinline__ void multiply(Sums<Number, ROWS, I>& sums, const float4* copy, const Fetched (&ahead)[AHEAD],
                                         const Number* w, int rows) {
#pragma unroll
  for (int k = 0; k < PIECES<I>; k++) {
    Fetched piece = {};
    if (k < AHEAD && has_piece<I>(k)) piece = ahead[k < AHEAD ? k : 0];
    if (k >= AHEAD && has_piece<I>(k)) piece = fetch(w + number_of_piece(k));
    sums.add(k, piece, copy + (has_piece<I>(k) ? number_of_piece(k) / 4 : 0), rows);
  }
}

// The sum over all warps for thread 8 row + n: the n-th output of its row.
template <int ROWS> __device__ __forceinline__ float joined(const float (*part)[ROWS][8]) {
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < WARPS; warp++) sum += part[warp][threadIdx.x / 8][threadIdx.x % 8];
  return sum;
}

// out = norm(x) w^T (if NORM, else x w^T); ADD: add it to out. x: [rows, I], rows up to ROWS; w: [O, I]; out: [rows,
// O]. Launch any number of blocks of 256 threads, with rows * (4 I + 16) bytes of shared memory.
template <class Number, int ROWS, int I, bool NORM, bool ADD>
__global__ void __launch_bounds__(32 * WARPS)
project(const float* x, const Number* w, float* out, int rows, int O, float eps) {
  extern __shared__ float4 copy[];
  __shared__ float part[2][WARPS][ROWS][8], squares[ROWS][WARPS];  // two parts in turn need only one barrier per loop
  typename As<Number>::fetched ahead[AHEAD];
  int row = threadIdx.x / 8, n = threadIdx.x % 8, lane = threadIdx.x % 32, first = 8 * blockIdx.x, turn = 0;
  launch_dependents();
  if (first < O) ask<I>(ahead, w + (size_t)(first + lane / 4) * I);  // loads overlap the end of the launch before
  grid_dependency_wait();
  float before = 0;
  if (ADD && first < O && row < rows) before = out[(size_t)row * O + first + n];
  load_rows<Number, ROWS, I, NORM>(copy, squares, x, rows);
  __syncthreads();
  for (int o = first; o < O; o += 8 * gridDim.x, turn = 1 - turn) {
    const Number* its = w + (size_t)(o + lane / 4) * I;
    if (o > first) ask<I>(ahead, its);
    if (ADD && o > first && row < rows) before = out[(size_t)row * O + o + n];
    Sums<Number, ROWS, I> sums;
    multiply(sums, copy, ahead, its, rows);
    sums.give(part[turn][threadIdx.x / 32], rows);
    __syncthreads();
    if (row < rows)
      out[(size_t)row * O + o + n] = before + joined(part[turn]) * (NORM ? rstd_of<I>(squares[row], eps) : 1);
  }
}

// hidden = silu(gate) up, [gate, up] = norm(x) w^T. w: [2F, I], gates first; hidden: [rows, F]. Launch as `project`.
template <class Number, int ROWS, int I>
__global__ void __launch_bounds__(32 * WARPS)
project_glu(const float* x, const Number* w, float* hidden, int rows, int F,
            float eps) {
  extern __shared__ float4 copy[];
  __shared__ float of_gates[2][WARPS][ROWS][8], of_ups[2][WARPS][ROWS][8], squares[ROWS][WARPS];
  typename As<Number>::fetched gates[AHEAD], ups[AHEAD];
  int row = threadIdx.x / 8, n = threadIdx.x % 8, lane = threadIdx.x % 32, first = 8 * blockIdx.x, turn = 0;
  const Number* its = w + (size_t)(first + lane / 4) * I;
  launch_dependents();
  if (first < F) ask<I>(gates, its), ask<I>(ups, its + (size_t)F * I);
  grid_dependency_wait();
  load_rows<Number, ROWS, I, true>(copy, squares, x, rows);
  __syncthreads();
  for (int o = first; o < F; o += 8 * gridDim.x, turn = 1 - turn) {
    its = w + (size_t)(o + lane / 4) * I;
    if (o > first) ask<I>(gates, its), ask<I>(ups, its + (size_t)F * I);
    Sums<Number, ROWS, I> gate, up;
    multiply(gate, copy, gates, its, rows);
    multiply(up, copy, ups, its + (size_t)F * I, rows);
    gate.give(of_gates[turn][threadIdx.x / 32], rows);
    up.give(of_ups[turn][threadIdx.x / 32], rows);
    __syncthreads();
    if (row >= rows) continue;
    float rstd = rstd_of<I>(squares[row], eps), g = joined(of_gates[turn]) * rstd, u = joined(of_ups[turn]) * rstd;
    hidden[(size_t)row * F + o + n] = g / (1.0f + __expf(-g)) * u;
  }
}

// Number j of a head after its rotation by RoPE. head: its C numbers; cosine, sine: [context, C/2].
__device__ __forceinline__ float turned(const float* head, const float* cosine, const float* sine, int position, int j,
                                        int C) {
  int half = C / 2, angle = position * half + j % half;
  float c = cosine[angle], s = sine[angle];
  return j < half ? head[j] * c - head[j + half] * s : head[j] * c + head[j - half] * s;
}

// Part of a softmax over some of the keys: the largest score, the sum of exp(score - largest), and eight numbers of the
// values' sum weighted by these terms.
struct Part {
  float largest, terms, mean[8];
};
__device__ __forceinline__ void join(Part& a, const Part& b) {
  float largest = fmaxf(a.largest, b.largest), of_a = __expf(a.largest - largest), of_b = __expf(b.largest - largest);
  a.largest = largest;
  a.terms = of_a * a.terms + of_b * b.terms;
#pragma unroll
  for (int e = 0; e < 8; e++) a.mean[e] = of_a * a.mean[e] + of_b * b.mean[e];
}
__device__ __forceinline__ Part of_lane_across(const Part& a, int distance) {
  Part b;
  b.largest = __shfl_xor_sync(0xffffffffu, a.largest, distance);
  b.terms = __shfl_xor_sync(0xffffffffu, a.terms, distance);
#pragma unroll
  for (int e = 0; e < 8; e++) b.mean[e] = __shfl_xor_sync(0xffffffffu, a.mean[e], distance);
  return b;
}

// Attention of new token blockIdx.y for query head blockIdx.x, over all earlier tokens and itself. qkv: [rows, (H + 2G)
// C], before RoPE; cache: [2 G, context, C], keys, then values, with position[0] filled places; this launch fills the
// next `rows`; out: [rows, H C]. Each block computes the keys and values of the new tokens that it needs from qkv, so
// no block waits for another. C/8 lanes share a key, each with eight of its numbers. A thread loads KEYS keys at a
// time, the first before anything else, and keeps its own softmax over its keys (chapter 27). The order of the sums
// depends only on a token's position. Launch a grid of (H, rows up to ROWS_AT_MOST), blocks of 512 threads, 4 (33 C +
// 32) bytes of shared memory.
template <class Number>
__global__ void __launch_bounds__(32 * ATTEND_WARPS)
attend(const float* qkv, const float* cosine, const float* sine, Number* cache,
       const int* position, float* out, int H, int G, int C, int context) {
  const int threads = 32 * ATTEND_WARPS;
  const float lowest = -3.4e38f;
  launch_dependents();
  extern __shared__ float4 fours[];
  float *q = (float*)fours, *keys = q + C, *values = keys + ROWS_AT_MOST * C;  // of this launch's tokens: [rows, C]
  float *means = values + ROWS_AT_MOST * C, *largest = means + ATTEND_WARPS * C, *terms = largest + ATTEND_WARPS;
  int head = blockIdx.x, row = blockIdx.y, group = head / (H / G), start = position[0], at = start + row;
  if (blockDim.x != threads || row >= ROWS_AT_MOST || at >= context) __trap();
  int pitch = (H + 2 * G) * C;
  Number *key_cache = cache + (size_t)group * context * C, *value_cache = key_cache + (size_t)G * context * C;
  int lanes = C / 8, together = threads / lanes, mine = threadIdx.x / lanes, j = 8 * (threadIdx.x % lanes);
  typename As<Number>::fetched some_keys[KEYS], some_values[KEYS];
#pragma unroll
  for (int k = 0; k < KEYS; k++) {
    if (mine + k * together >= start) continue;
    some_keys[k] = fetch(key_cache + (size_t)(mine + k * together) * C + j);
    some_values[k] = fetch(value_cache + (size_t)(mine + k * together) * C + j);
  }
  grid_dependency_wait();
  for (int i = threadIdx.x; i < (row + 1) * C; i += threads) {
    int r = i / C, n = i % C;
    const float* of = qkv + (size_t)r * pitch;
    Number key, value;  // rounded as in the cache, so that a later launch gets the same sums
    write(&key, turned(of + (H + group) * C, cosine, sine, start + r, n, C));
    write(&value, of[(H + G + group) * C + n]);
    keys[i] = as_float(key);
    values[i] = as_float(value);
    if (r < row) continue;
    q[n] = turned(of + head * C, cosine, sine, at, n, C) * rsqrtf((float)C);
    if (head % (H / G) == 0) {
      key_cache[(size_t)at * C + n] = key;
      value_cache[(size_t)at * C + n] = value;
    }
  }
  __syncthreads();
  Eight query = eight(fetch(q + j));
  Part part = {lowest, 0, {}};
  for (int first = mine; first - mine <= at; first += KEYS * together) {
#pragma unroll
    for (int k = 0; k < KEYS; k++) {
      if (first == mine || first + k * together >= start) continue;
      some_keys[k] = fetch(key_cache + (size_t)(first + k * together) * C + j);
      some_values[k] = fetch(value_cache + (size_t)(first + k * together) * C + j);
    }
    float score[KEYS], most = part.largest;
#pragma unroll
    for (int k = 0; k < KEYS; k++) {
      int t = first + k * together;
      score[k] = lowest;
      if (t - mine > at) continue;  // no thread has a key at this index
      float sum = 0;
      if (t <= at) sum = dot(query, t < start ? eight(some_keys[k]) : eight(fetch(keys + (t - start) * C + j)));
      for (int distance = lanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
      if (t <= at) score[k] = sum;
      most = fmaxf(most, score[k]);
    }
    join(part, {most, 0, {}});
#pragma unroll
    for (int k = 0; k < KEYS; k++) {
      int t = first + k * together;
      if (t > at) continue;
      float weight = __expf(score[k] - most);
      Eight v = t < start ? eight(some_values[k]) : eight(fetch(values + (t - start) * C + j));
      float number[8] = {v.low.x, v.low.y, v.low.z, v.low.w, v.high.x, v.high.y, v.high.z, v.high.w};
      part.terms += weight;
#pragma unroll
      for (int e = 0; e < 8; e++) part.mean[e] += weight * number[e];
    }
  }
  for (int distance = 16; distance >= lanes; distance /= 2) join(part, of_lane_across(part, distance));
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane < lanes) {
#pragma unroll
    for (int e = 0; e < 8; e++) means[warp * C + j + e] = part.mean[e];
    if (lane == 0) largest[warp] = part.largest, terms[warp] = part.terms;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < C; i += threads) {
    float most = lowest, sum = 0, mean = 0;
#pragma unroll
    for (int w = 0; w < ATTEND_WARPS; w++) most = fmaxf(most, largest[w]);
#pragma unroll
    for (int w = 0; w < ATTEND_WARPS; w++) {
      float share = __expf(largest[w] - most);
      sum += share * terms[w];
      mean += share * means[w * C + i];
    }
    out[(size_t)row * H * C + head * C + i] = mean / sum;
  }
}
