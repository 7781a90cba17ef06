// The kernels between a training step's matrix products, with as few passes over memory as possible. engine/program.py.
//
// Number: the type that the products multiply, float, __nv_bfloat16 or __half. The residual stream, its gradient, gains
// and sums are float. Rows are read and written four numbers at a time: D, F, V and head widths are multiples of 8, and
// arrays are aligned to 16 bytes. A kernel with KEEP holds a row in the block's registers, KEEP float4 per thread, so a
// row has at most 4 KEEP blockDim.x numbers. The mathematics is in ops/reference.py, chapters 07 to 09 and 24.
#include <adamw.cuh>
#include <fours.cuh>
#include <reduce.cuh>
#include <wide.cuh>
#ifndef COPY
#define COPY __nv_bfloat16  // the type of the weights' copy that `adamw_and_copy` writes
#endif

// ---- arithmetic of float4 ----------------------------------------------------------------------------------------

__device__ __forceinline__ float4 times(float4 a, float4 b) {
  return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}
__device__ __forceinline__ float4 times(float4 a, float s) { return make_float4(a.x * s, a.y * s, a.z * s, a.w * s); }
__device__ __forceinline__ float4 minus(float4 a, float4 b) {
  return make_float4(a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w);
}
__device__ __forceinline__ float total(float4 v) { return (v.x + v.y) + (v.z + v.w); }
__device__ __forceinline__ float4 zeros() { return make_float4(0, 0, 0, 0); }

// `block_sum` of several numbers at once, for example one for each row.
template <int COUNT> __device__ __forceinline__ void block_sums(float (&v)[COUNT]) {
  __shared__ float part[COUNT][32];  // one number per warp
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();  // a slower warp may still read part from the previous call
#pragma unroll
  for (int n = 0; n < COUNT; n++) {
    v[n] = warp_sum(v[n]);
    if (lane == 0) part[n][warp] = v[n];
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < COUNT; n++) v[n] = warp_sum(lane < blockDim.x / 32 ? part[n][lane] : 0.0f);
}

// ---- residual add and RMSNorm, one block per row ------------------------------------------------------------------

// The backward pass of the norm needs only x rstd, which is y / gain. So y is kept, which the products need anyway, and
// x is not. That fails for a gain of 0, so gains near 0 are replaced by 2^-60, too small to affect any product. The
// smallest float16 is 2^-24, so there it is 2^-12, half of the rounding error of a y of size 1.
template <class Number> constexpr float LEAST_GAIN = 0x1p-60f;
template <> constexpr float LEAST_GAIN<__half> = 0x1p-12f;
template <class Number> __device__ __forceinline__ float apart(float gain) {
  return fabsf(gain) < LEAST_GAIN<Number> ? copysignf(LEAST_GAIN<Number>, gain) : gain;
}
template <class Number> __device__ __forceinline__ float4 apart(float4 g) {
  return make_float4(apart<Number>(g.x), apart<Number>(g.y), apart<Number>(g.z), apart<Number>(g.w));
}

// x = before + delta (if ADD), y = rmsnorm(x). before, x: [rows, D], may be the same array; delta, y: [rows, D]; gain:
// [D]; rstd: [rows]. Launch one block per row.
template <class Number, int KEEP, bool ADD>
__global__ void __launch_bounds__(512)
add_rmsnorm(const float* before, const Number* __restrict__ delta, const float* __restrict__ gain, float* x,
            Number* __restrict__ y, float* __restrict__ rstd, int D, float eps) {
  if (D > 4 * KEEP * (int)blockDim.x) __trap();  // a row is wider than the block can keep
  size_t row = (size_t)blockIdx.x * D;
  float4 mine[KEEP];
  float squares = 0;
#pragma unroll
  for (int k = 0; k < KEEP; k++) {
    int i = 4 * (threadIdx.x + k * blockDim.x);
    mine[k] = i < D ? read_four(before + row + i) : zeros();
    if (ADD && i < D) add_to(mine[k], read_four(delta + row + i));
    squares += total(times(mine[k], mine[k]));
  }
  float r = rsqrtf(block_sum(squares) / D + eps);
#pragma unroll
  for (int k = 0; k < KEEP; k++) {
    int i = 4 * (threadIdx.x + k * blockDim.x);
    if (i >= D) continue;
    if (ADD) write_four(x + row + i, mine[k]);
    write_four(y + row + i, times(times(mine[k], r), apart<Number>(read_four(gain + i))));
  }
  if (threadIdx.x == 0) rstd[blockIdx.x] = r;
}

// dx += the gradient through the norm; half = dx as Number, for products, unless Number is float. dy, y, dx, half:
// [rows, D]; part: [gridDim.x, D], each block's part of the gain's gradient, over its rows. Per row, dx += rstd (dy
// gain - (y / gain) mean(dy y)); the gain's gradient is the sum of dy y over all rows, divided by the gain.
template <class Number, int KEEP>
__global__ void __launch_bounds__(512)
add_rmsnorm_back(const Number* __restrict__ dy, const Number* __restrict__ y, const float* __restrict__ gain,
                 const float* __restrict__ rstd, float* dx, Number* half, float* __restrict__ part, int rows, int D) {
  if (D > 4 * KEEP * (int)blockDim.x) __trap();  // a row is wider than the block can keep
  constexpr int TURN = KEEP == 1 ? 2 : 1;  // rows that a block loads together
  float4 share[KEEP], g[KEEP], inverse[KEEP];
#pragma unroll
  for (int k = 0; k < KEEP; k++) {
    int i = 4 * (threadIdx.x + k * blockDim.x);
    share[k] = zeros();
    g[k] = i < D ? apart<Number>(read_four(gain + i)) : make_float4(1, 1, 1, 1);
    inverse[k] = make_float4(1 / g[k].x, 1 / g[k].y, 1 / g[k].z, 1 / g[k].w);
  }
  for (int first = TURN * blockIdx.x; first < rows; first += TURN * gridDim.x) {
    float4 slope[TURN][KEEP], out[TURN][KEEP], past[TURN][KEEP];
    float r[TURN], along[TURN];
#pragma unroll
    for (int n = 0; n < TURN; n++) {
      bool there = first + n < rows;
      size_t row = (size_t)(first + n) * D;
      r[n] = there ? rstd[first + n] : 0.0f;
#pragma unroll
      for (int k = 0; k < KEEP; k++) {
        int i = 4 * (threadIdx.x + k * blockDim.x);
        slope[n][k] = there && i < D ? read_four(dy + row + i) : zeros();
        out[n][k] = there && i < D ? read_four(y + row + i) : zeros();
        past[n][k] = there && i < D ? read_four(dx + row + i) : zeros();
      }
    }
#pragma unroll
    for (int n = 0; n < TURN; n++) {
      along[n] = 0;
#pragma unroll
      for (int k = 0; k < KEEP; k++) {
        float4 product = times(slope[n][k], out[n][k]);
        add_to(share[k], product);
        along[n] += total(product);
      }
    }
    block_sums(along);
#pragma unroll
    for (int n = 0; n < TURN; n++) {
      if (first + n >= rows) break;
      size_t row = (size_t)(first + n) * D;
#pragma unroll
      for (int k = 0; k < KEEP; k++) {
        int i = 4 * (threadIdx.x + k * blockDim.x);
        if (i >= D) continue;
        float4 normed = times(out[n][k], inverse[k]);
        add_to(past[n][k], times(minus(times(slope[n][k], g[k]), times(normed, along[n] / D)), r[n]));
        write_four(dx + row + i, past[n][k]);
        if (sizeof(Number) < sizeof(float)) write_four(half + row + i, past[n][k]);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < KEEP; k++) {
    int i = 4 * (threadIdx.x + k * blockDim.x);
    if (i < D) write_four(part + (size_t)blockIdx.x * D + i, times(share[k], inverse[k]));
  }
}

// y[column] = the sum of a column of x: [rows, columns], or += if `add`, in a fixed order: each threadIdx.y adds every
// 32nd row, then a warp adds the 32 sums. Launch blocks of (32, 32) threads, one for each 32 columns.
extern "C" __global__ void sum_parts(const float* __restrict__ x, float* __restrict__ y, int rows, int columns,
                                     int add) {
  __shared__ float s[32][33];
  if (blockDim.x != 32 || blockDim.y != 32) __trap();  // the block must be 32 x 32
  int column = blockIdx.x * 32 + threadIdx.x;
  float sum = 0;
  if (column < columns)
#pragma unroll 8
    for (int row = threadIdx.y; row < rows; row += 32) sum += x[(size_t)row * columns + column];
  s[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  sum = warp_sum(s[threadIdx.x][threadIdx.y]);  // a warp adds the 32 sums of one column
  column = blockIdx.x * 32 + threadIdx.y;
  if (threadIdx.x == 0 && column < columns) y[column] = add ? y[column] + sum : sum;
}

// ---- RoPE on packed q and k, in place -----------------------------------------------------------------------------

// qkv: [rows, pitch], of which the first heads * C columns are rotated; cosine, sine: [T, C/2]; a row's position is row
// % T. Each thread handles four pairs: launch at least rows * heads * C / 8 threads.
template <class Number>
__global__ void rope_packed(Number* __restrict__ qkv, const float* __restrict__ cosine,
                            const float* __restrict__ sine, int rows, int T, int heads, int C, int pitch) {
  int id = blockIdx.x * blockDim.x + threadIdx.x, each = C / 8, row = id / (heads * each), head = id / each % heads;
  if (row >= rows) return;
  int j = 4 * (id % each), half = C / 2;
  Number* at = qkv + (size_t)row * pitch + head * C + j;
  float4 c = read_four(cosine + row % T * half + j), s = read_four(sine + row % T * half + j);
  float4 a = read_four(at), b = read_four(at + half);
  write_four(at, minus(times(a, c), times(b, s)));
  float4 up = times(a, s);
  add_to(up, times(b, c));
  write_four(at + half, up);
}

// ---- SwiGLU on packed gate and up ---------------------------------------------------------------------------------

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }
__device__ __forceinline__ float4 sigmoid(float4 x) {
  return make_float4(sigmoid(x.x), sigmoid(x.y), sigmoid(x.z), sigmoid(x.w));
}

// hidden = gate sigmoid(gate) up. gate_up: [rows, 2F], first F columns gate; hidden: [rows, F]. Any number of threads.
template <class Number>
__global__ void swiglu_packed(const Number* __restrict__ gate_up, Number* __restrict__ hidden, int rows, int F) {
  constexpr int WIDE = 4 * Sixteen<Number>::FOURS;
  int each = F / WIDE, all = rows * each;
  for (int id = blockIdx.x * blockDim.x + threadIdx.x; id < all; id += gridDim.x * blockDim.x) {
    int row = id / each, i = WIDE * (id % each);
    const Number* at = gate_up + (size_t)row * 2 * F + i;
    Sixteen<Number> g = read_sixteen(at), up = read_sixteen(at + F);
#pragma unroll
    for (int k = 0; k < WIDE / 4; k++) g.four[k] = times(times(g.four[k], sigmoid(g.four[k])), up.four[k]);
    write_sixteen(hidden + (size_t)row * F + i, g);
  }
}

// dgate_up, the gradient for dhidden. dhidden: [rows, F]; gate_up, dgate_up: [rows, 2F]. Any number of threads.
template <class Number>
__global__ void swiglu_packed_back(const Number* __restrict__ dhidden, const Number* __restrict__ gate_up,
                                   Number* __restrict__ dgate_up, int rows, int F) {
  constexpr int WIDE = 4 * Sixteen<Number>::FOURS;
  int each = F / WIDE, all = rows * each;
  for (int id = blockIdx.x * blockDim.x + threadIdx.x; id < all; id += gridDim.x * blockDim.x) {
    int row = id / each, i = WIDE * (id % each);
    size_t at = (size_t)row * 2 * F + i;
    Sixteen<Number> g = read_sixteen(gate_up + at), up = read_sixteen(gate_up + at + F);
    Sixteen<Number> d = read_sixteen(dhidden + (size_t)row * F + i);
#pragma unroll
    for (int k = 0; k < WIDE / 4; k++) {
      float4 s = sigmoid(g.four[k]), silu = times(g.four[k], s), slope = s;  // slope of silu: s + silu (1 - s)
      add_to(slope, minus(silu, times(silu, s)));
      g.four[k] = times(times(d.four[k], up.four[k]), slope);
      up.four[k] = times(d.four[k], silu);
    }
    write_sixteen(dgate_up + at, g);
    write_sixteen(dgate_up + at + F, up);
  }
}

// ---- cross-entropy of all prediction heads -------------------------------------------------------------------------

#define LOWEST (-3.4e38f)  // below every logit, and finite

// The loss of each row of V logits, in nats; with GRADIENT, also overwrite the logits by the gradient of weight * loss.
// logits: [gridDim.x, V]; targets, losses: [gridDim.x], loss 0 where the target is -1; scale: [weights], of any sign,
// one weight per head or one per row: row r takes scale[r % weights]. Launch one block per row.
template <class Number, int KEEP, bool GRADIENT>
__global__ void __launch_bounds__(512)
heads_cross_entropy(Number* __restrict__ logits, const int* __restrict__ targets, const float* __restrict__ scale,
                    float* __restrict__ losses, int V, int weights) {
  if (V > 4 * KEEP * (int)blockDim.x) __trap();  // a row is wider than the block can keep
  Number* row = logits + (size_t)blockIdx.x * V;
  int target = targets[blockIdx.x];
  float4 mine[KEEP];
  float largest = LOWEST, sum = 0;
#pragma unroll
  for (int k = 0; k < KEEP; k++) {
    int i = 4 * (threadIdx.x + k * blockDim.x);
    mine[k] = i < V ? read_four(row + i) : make_float4(LOWEST, LOWEST, LOWEST, LOWEST);
    largest = fmaxf(fmaxf(largest, fmaxf(mine[k].x, mine[k].y)), fmaxf(mine[k].z, mine[k].w));
  }
  largest = block_max(largest);
  __shared__ float own;
  if (threadIdx.x == 0 && target < 0) losses[blockIdx.x] = 0;
#pragma unroll
  for (int k = 0; k < KEEP; k++) {
    int at = target - 4 * (threadIdx.x + k * blockDim.x);
    if (0 <= at && at < 4) own = at == 0 ? mine[k].x : at == 1 ? mine[k].y : at == 2 ? mine[k].z : mine[k].w;
    mine[k] = make_float4(__expf(mine[k].x - largest), __expf(mine[k].y - largest), __expf(mine[k].z - largest),
                          __expf(mine[k].w - largest));
    sum += total(mine[k]);
  }
  sum = block_sum(sum);  // its barriers also separate the write of `own` from the read below
  if (threadIdx.x == 0 && target >= 0) losses[blockIdx.x] = logf(sum) + largest - own;
  if (!GRADIENT) return;
  float weight = target < 0 ? 0.0f : scale[blockIdx.x % weights], share = weight / sum;
#pragma unroll
  for (int k = 0; k < KEEP; k++) {
    int i = 4 * (threadIdx.x + k * blockDim.x), at = target - i;
    if (i >= V) continue;
    float4 d = times(mine[k], share);
    if (at == 0) d.x -= weight;
    if (at == 1) d.y -= weight;
    if (at == 2) d.z -= weight;
    if (at == 3) d.w -= weight;
    write_four(row + i, d);
  }
}

// ---- the optimiser ------------------------------------------------------------------------------------------------

// The kernel `adamw` of adamw.cu, which also writes copy = p in 16 bits for the products. p, g, m, v, copy: [n]; n and
// `decayed` are multiples of 4.
extern "C" __global__ void adamw_and_copy(float* __restrict__ p, const float* __restrict__ g, float* __restrict__ m,
                                          float* __restrict__ v, COPY* __restrict__ copy,
                                          const float* __restrict__ factor, const float* __restrict__ step, int n,
                                          int decayed, float beta1, float beta2, float eps, float decay) {
  if (!(factor[1] <= 3.4e38f)) return;  // the norm is infinite or NaN
  if (n % 4 || decayed % 4 || whole_fours(n, p, g, m, v) != n / 4) __trap();  // lengths must be multiples of 4
  Step s = {factor[0], step[0], step[1], step[2], beta1, beta2, eps, decay};
  int me = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  for (int i = me; i < n / 4; i += threads) {
    float4 a = ((float4*)p)[i], b = ((const float4*)g)[i], c = ((float4*)m)[i], d = ((float4*)v)[i];
    bool decays = 4 * i < decayed;
    update(a.x, b.x, c.x, d.x, s, decays);
    update(a.y, b.y, c.y, d.y, s, decays);
    update(a.z, b.z, c.z, d.z, s, decays);
    update(a.w, b.w, c.w, d.w, s, decays);
    ((float4*)p)[i] = a;
    ((float4*)m)[i] = c;
    ((float4*)v)[i] = d;
    write_four(copy + 4 * (size_t)i, a);
  }
}

// Set factor[1], the gradient's norm, to NaN if one of the losses' sums is infinite or NaN, so that nothing is updated.
extern "C" __global__ void refuse(const float* __restrict__ sums, float* __restrict__ factor, int count) {
  if (blockIdx.x || threadIdx.x) return;
  for (int k = 0; k < count; k++)
    if (!(fabsf(sums[k]) <= 3.4e38f)) factor[1] = sums[k] - sums[k];
}

// Divide the gradient's norm in factor[1] by the loss scale, and set factor[0] to the number by which `adamw` has to
// multiply the scaled gradient: clipping's factor as in `clip_factor`, divided by the scale. step[3]: 1 / scale.
extern "C" __global__ void unscale(float* __restrict__ factor, const float* __restrict__ step, float limit) {
  if (blockIdx.x || threadIdx.x) return;
  float norm = factor[1] * step[3];
  factor[0] = (limit > 0 && norm > limit ? limit / norm : 1.0f) * step[3];
  factor[1] = norm;
}

// ---- copies -------------------------------------------------------------------------------------------------------

extern "C" __global__ void zero(float* __restrict__ x, int fours) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < fours; i += gridDim.x * blockDim.x) ((float4*)x)[i] = zeros();
}

template <class Number> __global__ void round_to(const float* __restrict__ x, Number* __restrict__ y, int fours) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < fours; i += gridDim.x * blockDim.x)
    write_four(y + 4 * (size_t)i, read_four(x + 4 * (size_t)i));
}
