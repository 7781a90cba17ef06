// AdamW with clipping by the global norm: `squares` for each tensor's gradient, `clip_factor` once, then `adamw` for
// each tensor. ops/reference.py, optim.py; Loshchilov and Hutter 2019, algorithm 2.
// The block's size of `squares` and `clip_factor` is a multiple of 32.
#include <reduce.cuh>

// part[block] = the sum of g^2 over that block's share. g: [n]; part: [gridDim.x], a stretch of the list of all parts.
extern "C" __global__ void squares(const float* __restrict__ g, float* __restrict__ part, int n) {
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += g[i] * g[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) part[blockIdx.x] = sum;
}

// factor[0] = limit / norm if the norm passes the limit, else 1; factor[1] = norm. A limit of 0 never clips.
// part: [parts]; factor: [2]. One block.
extern "C" __global__ void clip_factor(const float* __restrict__ part, float* __restrict__ factor, int parts,
                                       float limit) {
  float sum = 0;
  for (int i = threadIdx.x; i < parts; i += blockDim.x) sum += part[i];
  float norm = sqrtf(block_sum(sum));
  if (threadIdx.x > 0) return;
  factor[0] = limit > 0 && norm > limit ? limit / norm : 1.0f;
  factor[1] = norm;
}

// p, g, m, v: [n]; factor: [2] from `clip_factor`, so that the host need not wait for the norm; correction1 and
// correction2: 1 - beta1^step, 1 - beta2^step. Any number of threads.
extern "C" __global__ void adamw(float* __restrict__ p, const float* __restrict__ g, float* __restrict__ m,
                                 float* __restrict__ v, const float* __restrict__ factor, int n, float rate,
                                 float beta1, float beta2, float eps, float decay, float correction1,
                                 float correction2) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    float gradient = g[i] * factor[0];
    m[i] += (1.0f - beta1) * (gradient - m[i]);
    v[i] += (1.0f - beta2) * (gradient * gradient - v[i]);
    float step = m[i] / correction1 / (sqrtf(v[i] / correction2) + eps);
    p[i] -= rate * (decay * p[i] + step);
  }
}
