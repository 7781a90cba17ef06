// One to ROWS more tokens of one text through a model, five launches a layer: `project` (queries, keys, values), `attend`,
// `project` (output), `project_glu`, `project` (down). engine.Decoder; ops/reference.py has the mathematics, chapter 14.
//
// So little is multiplied here that reading the weights is the work. They lie transposed, [outputs, inputs], the gain of
// RMSNorm multiplied into them: a warp makes one output, and reads its row once for all tokens. What is added to a sum,
// and in which order, does not depend on how many tokens there are. Number: float or __nv_bfloat16, of weights and of the
// cache of keys and values; everything else is float. All widths are multiples of 8, arrays begin at multiples of 16
// bytes.
#include <cuda_bf16.h>
#include <reduce.cuh>

#define WARPS 8  // of a block

struct Eight {
  float4 low, high;
};
__device__ __forceinline__ Eight read_eight(const float* p) { return {((const float4*)p)[0], ((const float4*)p)[1]}; }
__device__ __forceinline__ float4 two_pairs(unsigned a, unsigned b) {  // a bfloat16 is the first half of a float
  return make_float4(__uint_as_float(a << 16), __uint_as_float(a & 0xffff0000u), __uint_as_float(b << 16),
                     __uint_as_float(b & 0xffff0000u));
}
__device__ __forceinline__ Eight read_eight(const __nv_bfloat16* p) {
  uint4 v = *(const uint4*)p;
  return {two_pairs(v.x, v.y), two_pairs(v.z, v.w)};
}
__device__ __forceinline__ float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
__device__ __forceinline__ float dot(Eight a, Eight b) { return dot(a.low, b.low) + dot(a.high, b.high); }
__device__ __forceinline__ void write(float* p, float v) { *p = v; }
__device__ __forceinline__ void write(__nv_bfloat16* p, float v) { *p = __float2bfloat16(v); }
__device__ __forceinline__ float as_float(float v) { return v; }
__device__ __forceinline__ float as_float(__nv_bfloat16 v) { return __bfloat162float(v); }

// The block's copy of x: [rows, I] in shared memory, and with NORM in rstd[row] what RMSNorm divides it by, else 1.
template <int ROWS, bool NORM>
__device__ __forceinline__ void load_rows(float* copy, float* rstd, const float* x, int rows, int I, float eps) {
#pragma unroll
  for (int row = 0; row < ROWS; row++) {
    if (row >= rows) break;
    float squares = 0;
    for (int i = 4 * threadIdx.x; i < I; i += 4 * blockDim.x) {
      float4 v = *(const float4*)(x + row * I + i);
      *(float4*)(copy + row * I + i) = v;
      squares += dot(v, v);
    }
    rstd[row] = 1;
    if (NORM) rstd[row] = rsqrtf(block_sum(squares) / I + eps);
  }
  __syncthreads();
}

// sum[row] = x[row] . w for a row of I weights, the same in all lanes of the warp.
template <class Number, int ROWS>
__device__ __forceinline__ void multiply_row(float* sum, const float* x, const Number* w, int rows, int I) {
#pragma unroll
  for (int row = 0; row < ROWS; row++) sum[row] = 0;
  for (int i = 8 * (threadIdx.x % 32); i < I; i += 256) {
    Eight v = read_eight(w + i);
#pragma unroll
    for (int row = 0; row < ROWS; row++)
      if (row < rows) sum[row] += dot(v, read_eight(x + row * I + i));
  }
#pragma unroll
  for (int row = 0; row < ROWS; row++) sum[row] = warp_sum(sum[row]);
}

// out (+)= norm(x) w^T: with NORM x divided by its root mean square, with ADD added to out. x: [rows, I], rows up to ROWS;
// w: [O, I]; out: [rows, O]. Any number of blocks of 256 threads, 4 * rows * I bytes of shared memory.
template <class Number, int ROWS, bool NORM, bool ADD>
__global__ void __launch_bounds__(32 * WARPS)
project(const float* __restrict__ x, const Number* __restrict__ w, float* __restrict__ out, int rows, int I, int O,
        float eps) {
  extern __shared__ float4 fours[];
  float *copy = (float*)fours, rstd[ROWS], sum[ROWS];
  load_rows<ROWS, NORM>(copy, rstd, x, rows, I, eps);
  for (int o = blockIdx.x * WARPS + threadIdx.x / 32; o < O; o += gridDim.x * WARPS) {
    multiply_row<Number, ROWS>(sum, copy, w + (size_t)o * I, rows, I);
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
      if (row >= rows || threadIdx.x % 32 != 0) continue;
      float* to = out + (size_t)row * O + o;
      *to = (ADD ? *to : 0.0f) + sum[row] * rstd[row];
    }
  }
}

// hidden = silu(gate) up with gate and up = norm(x) w^T. w: [2F, I], the gates first; hidden: [rows, F]. As `project`.
template <class Number, int ROWS>
__global__ void __launch_bounds__(32 * WARPS)
project_glu(const float* __restrict__ x, const Number* __restrict__ w, float* __restrict__ hidden, int rows, int I,
            int F, float eps) {
  extern __shared__ float4 fours[];
  float *copy = (float*)fours, rstd[ROWS], gate[ROWS], up[ROWS];
  load_rows<ROWS, true>(copy, rstd, x, rows, I, eps);
  for (int o = blockIdx.x * WARPS + threadIdx.x / 32; o < F; o += gridDim.x * WARPS) {
    multiply_row<Number, ROWS>(gate, copy, w + (size_t)o * I, rows, I);
    multiply_row<Number, ROWS>(up, copy, w + (size_t)(F + o) * I, rows, I);
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
      if (row >= rows || threadIdx.x % 32 != 0) continue;
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

// Attention of one more token, row blockIdx.y, of query head blockIdx.x, over the tokens before it and itself.
// qkv: [rows, (H + 2G) C], not turned; cache: [2 G, context, C], keys, then values, of which the first position[0]
// places are filled, and here the `rows` next ones are; out: [rows, H C]. A token reads those before it that come in the
// same launch from qkv, so no block waits for another. Grid (H, rows), blocks of 128 threads, 4 (context + 2 C + 128)
// bytes of shared memory.
template <class Number>
__global__ void __launch_bounds__(128)
attend(const float* __restrict__ qkv, const float* __restrict__ cosine, const float* __restrict__ sine, Number* cache,
       const int* __restrict__ position, float* __restrict__ out, int H, int G, int C, int context) {
  extern __shared__ float4 fours[];
  float *q = (float*)fours, *mine = q + C, *part = mine + C, *score = part + 128;  // mine: this row's key, turned
  int head = blockIdx.x, row = blockIdx.y, group = head / (H / G), start = position[0], at = start + row;
  if (blockDim.x != 128 || at >= context) __trap();  // 128 threads, and a place in the cache
  int pitch = (H + 2 * G) * C;
  const float *keys = qkv + (H + group) * C, *values = keys + G * C;
  Number *key_cache = cache + (size_t)group * context * C, *value_cache = key_cache + (size_t)G * context * C;
  for (int j = threadIdx.x; j < C; j += 128) {
    q[j] = turned(qkv + (size_t)row * pitch + head * C, cosine, sine, at, j, C) * rsqrtf((float)C);
    mine[j] = turned(keys + (size_t)row * pitch, cosine, sine, at, j, C);
    if (head % (H / G) == 0) {
      write(key_cache + (size_t)at * C + j, mine[j]);
      write(value_cache + (size_t)at * C + j, values[(size_t)row * pitch + j]);
    }
  }
  __syncthreads();
  float largest = -3.4e38f;
  for (int t = threadIdx.x; t <= at; t += 128) {
    float sum = 0;
    for (int j = 0; j < C; j += 8) {
      Eight k;
      if (t < start) {
        k = read_eight(key_cache + (size_t)t * C + j);
      } else {
        float other[8];
        for (int e = 0; e < 8; e++) {
          Number rounded;  // as the cache has it, so that the sum is the same in a later launch
          write(&rounded, t == at ? mine[j + e] : turned(keys + (size_t)(t - start) * pitch, cosine, sine, t, j + e, C));
          other[e] = as_float(rounded);
        }
        k = {make_float4(other[0], other[1], other[2], other[3]), make_float4(other[4], other[5], other[6], other[7])};
      }
      sum += dot(k, read_eight(q + j));
    }
    score[t] = sum;
    largest = fmaxf(largest, sum);
  }
  largest = block_max(largest);
  float terms = 0;
  for (int t = threadIdx.x; t <= at; t += 128) {
    score[t] = __expf(score[t] - largest);
    terms += score[t];
  }
  terms = block_sum(terms);  // its barriers stand between the scores' writes and the reads below, too
  int sharers = 128 / C, j = threadIdx.x % C, first = threadIdx.x / C;  // threads that share a number of the output
  float sum = 0;
  for (int t = first; t <= at; t += sharers) {
    Number v;
    if (t < start) v = value_cache[(size_t)t * C + j];
    else write(&v, values[(size_t)(t - start) * pitch + j]);
    sum += score[t] * as_float(v);
  }
  part[threadIdx.x] = sum;
  __syncthreads();
  if (first > 0) return;
  for (int k = 1; k < sharers; k++) sum += part[k * C + j];
  out[(size_t)row * H * C + head * C + j] = sum / terms;
}
