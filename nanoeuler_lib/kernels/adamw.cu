// AdamW with clipping by the global norm, for all parameters at once, in three kernels: `squares`, `clip_factor`,
// `adamw`. All numbers that change from step to step are in device memory, so captured launches can be replayed and the
// host never waits. ops/reference.py, model/optim.py; Loshchilov and Hutter 2019, algorithm 2.
#include <adamw.cuh>
#include <reduce.cuh>
#include <wide.cuh>

#define AT_ONCE 4  // float4 loads that each thread has in flight together

// part[block] = the sum of g^2 over that block's part of g. g: [n]; part: [gridDim.x]. Block size: a multiple of 32.
extern "C" __global__ void squares(const float* __restrict__ g, float* __restrict__ part, int n) {
  int me = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x, fours = whole_fours(n, g);
  float sum = 0;
  for (int first = me; first < fours; first += AT_ONCE * threads) {
    float4 v[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      int i = first + k * threads;
      v[k] = i < fours ? ((const float4*)g)[i] : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) sum += v[k].x * v[k].x + v[k].y * v[k].y + v[k].z * v[k].z + v[k].w * v[k].w;
  }
  for (int i = 4 * fours + me; i < n; i += threads) sum += g[i] * g[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) part[blockIdx.x] = sum;
}

// factor[0] = limit / norm if the norm exceeds the limit, else 1; factor[1] = norm. With limit 0, nothing is clipped.
// part: [parts], from `squares`; factor: [2]. Launch one block of a multiple of 32 threads.
extern "C" __global__ void clip_factor(const float* __restrict__ part, float* __restrict__ factor, int parts,
                                       float limit) {
  if (gridDim.x > 1) __trap();  // the grid must be one block, which adds all parts
  float sum = 0;
  for (int i = threadIdx.x; i < parts; i += blockDim.x) sum += part[i];
  float norm = sqrtf(block_sum(sum));
  if (threadIdx.x > 0) return;
  factor[0] = limit > 0 && norm > limit ? limit / norm : 1.0f;
  factor[1] = norm;
}

// One step of AdamW. p, g, m, v: [n]; weight decay applies to the first `decayed` numbers, the matrices, not to the
// gains after them. factor: [2] from `clip_factor`; if the norm is not finite, nothing changes. step: [3], the learning
// rate, 1 / (1 - beta1^t) and 1 / (1 - beta2^t) for step t. Launch any number of threads.
extern "C" __global__ void adamw(float* __restrict__ p, const float* __restrict__ g, float* __restrict__ m,
                                 float* __restrict__ v, const float* __restrict__ factor,
                                 const float* __restrict__ step, int n, int decayed, float beta1, float beta2,
                                 float eps, float decay) {
  if (!(factor[1] <= 3.4e38f)) return;  // the norm is infinite or NaN
  Step s = {factor[0], step[0], step[1], step[2], beta1, beta2, eps, decay};
  int me = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  int fours = whole_fours(n, p, g, m, v);
  for (int i = me; i < fours; i += threads) {
    float4 a = ((float4*)p)[i], b = ((const float4*)g)[i], c = ((float4*)m)[i], d = ((float4*)v)[i];
    update(a.x, b.x, c.x, d.x, s, 4 * i < decayed);
    update(a.y, b.y, c.y, d.y, s, 4 * i + 1 < decayed);
    update(a.z, b.z, c.z, d.z, s, 4 * i + 2 < decayed);
    update(a.w, b.w, c.w, d.w, s, 4 * i + 3 < decayed);
    ((float4*)p)[i] = a;
    ((float4*)m)[i] = c;
    ((float4*)v)[i] = d;
  }
  for (int i = 4 * fours + me; i < n; i += threads) update(p[i], g[i], m[i], v[i], s, i < decayed);
}
