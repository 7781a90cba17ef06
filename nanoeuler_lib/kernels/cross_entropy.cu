// Softmax cross-entropy, a row of V logits at a time. logits: [gridDim.x, V]; targets: [gridDim.x], -1 costs nothing;
// losses: [gridDim.x], in nats. ops/reference.py, chapter 24. One block a row, its size a multiple of 32.
#include <reduce.cuh>

// The largest logit of the row, and the sum of exp(logit - largest), which cannot overflow.
__device__ __forceinline__ void softmax_terms(const float* row, int V, float& largest, float& sum) {
  float mine = row[threadIdx.x < V ? threadIdx.x : 0];
  for (int i = threadIdx.x; i < V; i += blockDim.x) mine = fmaxf(mine, row[i]);
  largest = block_max(mine);
  float terms = 0;
  for (int i = threadIdx.x; i < V; i += blockDim.x) terms += __expf(row[i] - largest);
  sum = block_sum(terms);
}

extern "C" __global__ void cross_entropy_forward(const float* __restrict__ logits, const int* __restrict__ targets,
                                                 float* __restrict__ losses, int V) {
  const float* row = logits + (size_t)blockIdx.x * V;
  int target = targets[blockIdx.x];
  float largest, sum;
  softmax_terms(row, V, largest, sum);
  if (threadIdx.x == 0) losses[blockIdx.x] = target < 0 ? 0.0f : logf(sum) + largest - row[target];
}

// The losses, and in place of the logits their gradient: (softmax - one at the target) * dlosses.
// dlosses: [gridDim.x], the gradient of the whole loss with respect to each row's.
extern "C" __global__ void cross_entropy_backward(float* __restrict__ logits, const int* __restrict__ targets,
                                                  const float* __restrict__ dlosses, float* __restrict__ losses,
                                                  int V) {
  float* row = logits + (size_t)blockIdx.x * V;
  int target = targets[blockIdx.x];
  float largest, sum;
  softmax_terms(row, V, largest, sum);
  if (threadIdx.x == 0) losses[blockIdx.x] = target < 0 ? 0.0f : logf(sum) + largest - row[target];
  __syncthreads();  // the target's logit has been read; now it is overwritten
  float scale = target < 0 ? 0.0f : dlosses[blockIdx.x];
  for (int i = threadIdx.x; i < V; i += blockDim.x)
    row[i] = scale * (__expf(row[i] - largest) / sum - (i == target ? 1.0f : 0.0f));
}
