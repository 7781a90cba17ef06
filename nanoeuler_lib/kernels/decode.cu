// One to ROWS more tokens of one text through a model, five launches a layer: `project` (queries, keys, values), `attend`,
// `project` (output), `project_glu`, `project` (down). engine.Decoder; ops/reference.py has the mathematics, chapter 14.
//
// So little is multiplied here that reading the weights is the work. They lie transposed, [outputs, inputs], the gain of
// RMSNorm multiplied into them: a warp makes one output, and reads its row once for all tokens. What is added to a sum,
// and in which order, does not depend on how many tokens there are. Number: float or __nv_bfloat16, of weights and of the
// cache of keys and values; everything else is float. All widths are multiples of 8, arrays begin at multiples of 16
// bytes.
//
// A launch lets the next one begin at once (`launch_dependents`), which asks for its weights, or for keys and values of
// earlier tokens, and waits for the end of the one before (`grid_dependency_wait`) before it touches anything else.
#include <cuda_bf16.h>
#include <nanoeuler.cuh>
#include <reduce.cuh>

#define WARPS 8          // of a block that multiplies
#define ATTEND_WARPS 16  // of a block of `attend`
#define AHEAD 8          // pieces of eight weights that a thread asks for before it needs the first
#define OF_EACH 4        // and of the gates' weights and of the others, where it needs both
#define KEYS 8           // and of keys, and of values
#define ROWS_AT_MOST 8

struct Eight {
  float4 low, high;
};
__device__ __forceinline__ float4 two_pairs(unsigned a, unsigned b) {  // a bfloat16 is the first half of a float
  return make_float4(__uint_as_float(a << 16), __uint_as_float(a & 0xffff0000u), __uint_as_float(b << 16),
                     __uint_as_float(b & 0xffff0000u));
}
// Eight numbers as they lie in memory: asked for early, they are made floats when they are needed.
__device__ __forceinline__ Eight fetch(const float* p) { return {((const float4*)p)[0], ((const float4*)p)[1]}; }
__device__ __forceinline__ uint4 fetch(const __nv_bfloat16* p) { return *(const uint4*)p; }
__device__ __forceinline__ Eight eight(Eight v) { return v; }
__device__ __forceinline__ Eight eight(uint4 v) { return {two_pairs(v.x, v.y), two_pairs(v.z, v.w)}; }
template <class Number> struct As {  // what `fetch` returns
  typedef Eight fetched;
};
template <> struct As<__nv_bfloat16> {
  typedef uint4 fetched;
};
__device__ __forceinline__ float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
__device__ __forceinline__ float dot(Eight a, Eight b) { return dot(a.low, b.low) + dot(a.high, b.high); }
__device__ __forceinline__ float4 plus(float4 a, float s, float4 b) {
  return make_float4(a.x + s * b.x, a.y + s * b.y, a.z + s * b.z, a.w + s * b.w);
}
__device__ __forceinline__ void write(float* p, float v) { *p = v; }
__device__ __forceinline__ void write(__nv_bfloat16* p, float v) { *p = __float2bfloat16(v); }
__device__ __forceinline__ float as_float(float v) { return v; }
__device__ __forceinline__ float as_float(__nv_bfloat16 v) { return __bfloat162float(v); }

// Eight numbers of a row of `copy`, the i-th and those behind it. The row lies there in two halves, first fours 0, 2, 4, ...
// of the numbers, then 1, 3, 5, ...: so eight neighbours among the threads read 128 bytes in one piece, from all banks.
__device__ __forceinline__ Eight eight_of(const float* copy, int i, int I) {
  const float4* fours = (const float4*)copy;
  return {fours[i / 8], fours[i / 8 + I / 8]};
}

// The block's copy of x: [rows, I] in shared memory, as `eight_of` reads it, and with NORM in rstd[row] what RMSNorm divides
// it by, else 1. All rows at once: there are as many waits as for one.
template <int ROWS, bool NORM>
__device__ __forceinline__ void load_rows(float* copy, float* rstd, const float* x, int rows, int I, float eps) {
  __shared__ float4 part[ROWS][WARPS / 4];  // of each row the sum of squares of each warp
  float squares[ROWS] = {};
  for (int four = threadIdx.x; four < I / 4; four += blockDim.x) {
    float4 v[ROWS];
#pragma unroll
    for (int row = 0; row < ROWS; row++)
      if (row < rows) v[row] = ((const float4*)(x + (size_t)row * I))[four];
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
      if (row >= rows) continue;
      ((float4*)(copy + row * I))[four / 2 + four % 2 * (I / 8)] = v[row];
      squares[row] += dot(v[row], v[row]);
    }
  }
#pragma unroll
  for (int row = 0; row < ROWS; row++) {
    if (!NORM || row >= rows) continue;
    squares[row] = warp_sum(squares[row]);
    if (threadIdx.x % 32 == 0) ((float*)part[row])[threadIdx.x / 32] = squares[row];
  }
  __syncthreads();
#pragma unroll
  for (int row = 0; row < ROWS; row++) {
    rstd[row] = 1;
    if (!NORM || row >= rows) continue;
    float sum = 0;
#pragma unroll
    for (int k = 0; k < WARPS / 4; k++) sum += part[row][k].x + part[row][k].y + part[row][k].z + part[row][k].w;
    rstd[row] = rsqrtf(sum / I + eps);
  }
}

// Ask for the first numbers of a row of I weights, as this lane of the warp will need them.
template <int COUNT, class Fetched, class Number>
__device__ __forceinline__ void ask(Fetched (&ahead)[COUNT], const Number* w, int I) {
#pragma unroll
  for (int k = 0; k < COUNT; k++) {
    int i = 8 * (threadIdx.x % 32) + 256 * k;
    if (i < I) ahead[k] = fetch(w + i);
  }
}

// sum[row] = x[row] . w for a row of I weights, of which `ahead` has been asked for; the same in all lanes of the warp. x is
// the block's copy.
template <class Number, int ROWS, int COUNT, class Fetched>
__device__ __forceinline__ void multiply_row(float* sum, const float* x, const Fetched (&ahead)[COUNT], const Number* w,
                                             int rows, int I) {
#pragma unroll
  for (int row = 0; row < ROWS; row++) sum[row] = 0;
#pragma unroll
  for (int k = 0; k < COUNT; k++) {
    int i = 8 * (threadIdx.x % 32) + 256 * k;
    if (i >= I) continue;
    Eight v = eight(ahead[k]);
#pragma unroll
    for (int row = 0; row < ROWS; row++)
      if (row < rows) sum[row] += dot(v, eight_of(x + row * I, i, I));
  }
#pragma unroll 4
  for (int i = 8 * (threadIdx.x % 32) + 256 * COUNT; i < I; i += 256) {
    Eight v = eight(fetch(w + i));
#pragma unroll
    for (int row = 0; row < ROWS; row++)
      if (row < rows) sum[row] += dot(v, eight_of(x + row * I, i, I));
  }
#pragma unroll
  for (int row = 0; row < ROWS; row++)
    if (row < rows) sum[row] = warp_sum(sum[row]);
}

// out (+)= norm(x) w^T: with NORM x divided by its root mean square, with ADD added to out. x: [rows, I], rows up to ROWS;
// w: [O, I]; out: [rows, O]. Any number of blocks of 256 threads, 4 * rows * I bytes of shared memory.
template <class Number, int ROWS, bool NORM, bool ADD>
__global__ void __launch_bounds__(32 * WARPS)
project(const float* __restrict__ x, const Number* __restrict__ w, float* __restrict__ out, int rows, int I, int O,
        float eps) {
  extern __shared__ float4 fours[];
  float *copy = (float*)fours, rstd[ROWS], sum[ROWS], before = 0;
  typename As<Number>::fetched ahead[NORM ? AHEAD / 2 : AHEAD];  // what is normed is shorter
  int first = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
  launch_dependents();
  if (first < O) ask(ahead, w + (size_t)first * I, I);  // they come while the launch before ends and x is normed
  grid_dependency_wait();
  if (ADD && first < O && lane < rows) before = out[(size_t)lane * O + first];  // of row `lane`
  load_rows<ROWS, NORM>(copy, rstd, x, rows, I, eps);
  for (int o = first; o < O; o += gridDim.x * WARPS) {
    if (o > first) ask(ahead, w + (size_t)o * I, I);
    if (ADD && o > first && lane < rows) before = out[(size_t)lane * O + o];
    multiply_row<Number, ROWS>(sum, copy, ahead, w + (size_t)o * I, rows, I);
#pragma unroll
    for (int row = 0; row < ROWS; row++)
      if (row < rows && lane == row) out[(size_t)row * O + o] = before + sum[row] * rstd[row];
  }
}

// hidden = silu(gate) up with gate and up = norm(x) w^T. w: [2F, I], the gates first; hidden: [rows, F]. As `project`.
template <class Number, int ROWS>
__global__ void __launch_bounds__(32 * WARPS)
project_glu(const float* __restrict__ x, const Number* __restrict__ w, float* __restrict__ hidden, int rows, int I,
            int F, float eps) {
  extern __shared__ float4 fours[];
  float *copy = (float*)fours, rstd[ROWS], gate[ROWS], up[ROWS];
  typename As<Number>::fetched of_gate[OF_EACH], of_up[OF_EACH];
  int first = blockIdx.x * WARPS + threadIdx.x / 32;
  launch_dependents();
  if (first < F) ask(of_gate, w + (size_t)first * I, I), ask(of_up, w + (size_t)(F + first) * I, I);
  grid_dependency_wait();
  load_rows<ROWS, true>(copy, rstd, x, rows, I, eps);
  for (int o = first; o < F; o += gridDim.x * WARPS) {
    if (o > first) ask(of_gate, w + (size_t)o * I, I), ask(of_up, w + (size_t)(F + o) * I, I);
    multiply_row<Number, ROWS>(gate, copy, of_gate, w + (size_t)o * I, rows, I);
    multiply_row<Number, ROWS>(up, copy, of_up, w + (size_t)(F + o) * I, rows, I);
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
      if (row >= rows || threadIdx.x % 32 != row) continue;
      float g = gate[row] * rstd[row];
      hidden[(size_t)row * F + o] = g / (1.0f + __expf(-g)) * (up[row] * rstd[row]);
    }
  }
}

// Number j of a head at a position, turned by RoPE. head: its C numbers; cosine, sine: [context, C/2].
__device__ __forceinline__ float turned(const float* head, const float* cosine, const float* sine, int position, int j,
                                        int C) {
  int half = C / 2, angle = position * half + j % half;
  float c = cosine[angle], s = sine[angle];
  return j < half ? head[j] * c - head[j + half] * s : head[j] * c + head[j - half] * s;
}

// A part of a softmax over keys: the largest score, the sum of exp(score - largest), and eight numbers of the sum of those
// times the values.
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

// Attention of one more token, row blockIdx.y, of query head blockIdx.x, over the tokens before it and itself.
// qkv: [rows, (H + 2G) C], not turned; cache: [2 G, context, C], keys, then values, of which the first position[0]
// places are filled, and here the `rows` next ones are; out: [rows, H C]. Keys and values of the tokens that come in the
// same launch are made from qkv by each block that reads them, so no block waits for another. C/8 lanes share a key, each
// with eight of its numbers; a thread asks for KEYS of them at a time, first of all, and keeps a softmax of its own over
// its keys (chapter 27). Which thread adds what, and in which order, hangs on a token's place alone. Grid (H, rows up to
// ROWS_AT_MOST), blocks of 512 threads, 4 (33 C + 32) bytes of shared memory.
template <class Number>
__global__ void __launch_bounds__(32 * ATTEND_WARPS)
attend(const float* __restrict__ qkv, const float* __restrict__ cosine, const float* __restrict__ sine, Number* cache,
       const int* __restrict__ position, float* __restrict__ out, int H, int G, int C, int context) {
  const int threads = 32 * ATTEND_WARPS;
  const float lowest = -3.4e38f;
  launch_dependents();
  extern __shared__ float4 fours[];
  float *q = (float*)fours, *keys = q + C, *values = keys + ROWS_AT_MOST * C;  // those of this launch: [rows, C]
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
    Number key, value;  // rounded as the cache has them, so that sums are the same in a later launch
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
      if (t - mine > at) continue;  // no thread has a key here
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
