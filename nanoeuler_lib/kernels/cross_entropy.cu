// Softmax cross-entropy of rows of V logits. logits: [gridDim.x, V]; targets: [gridDim.x], -1 for no target (loss 0);
// losses: [gridDim.x], in nats. ops/reference.py, chapter 24. Launch one block per row, its size a multiple of 32.
#include <reduce.cuh>
#include <wide.cuh>

#define AT_ONCE 4           // loads that each thread has in flight; with one, it would mostly wait
#define LOWEST (-3.4e38f)  // below every logit, and finite

// The largest logit of a row, and the sum of exp(logit - largest), which cannot overflow. One pass over memory is
// enough, because the sum so far is rescaled whenever a larger logit appears.
__device__ __forceinline__ void softmax_terms(const float* row, int V, float& largest, float& sum) {
  float mine = LOWEST, terms = 0;
  for (int first = threadIdx.x; first < V; first += AT_ONCE * blockDim.x) {
    float logit[AT_ONCE], larger = mine;
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      int i = first + k * blockDim.x;
      logit[k] = i < V ? row[i] : LOWEST;
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) larger = fmaxf(larger, logit[k]);
    terms *= __expf(mine - larger);
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) terms += __expf(logit[k] - larger);
    mine = larger;
  }
  largest = block_max(mine);
  sum = block_sum(terms * __expf(mine - largest));
}

extern "C" __global__ void cross_entropy_forward(const float* __restrict__ logits, const int* __restrict__ targets,
                                                 float* __restrict__ losses, int V) {
  const float* row = logits + (size_t)blockIdx.x * V;
  int target = targets[blockIdx.x];
  float largest, sum;
  softmax_terms(row, V, largest, sum);
  if (threadIdx.x == 0) losses[blockIdx.x] = target < 0 ? 0.0f : logf(sum) + largest - row[target];
}

// Compute the losses, and overwrite the logits with their gradient: (softmax - one-hot target) * dlosses.
// dlosses: [gridDim.x], the gradient of the total loss with respect to each row's loss.
extern "C" __global__ void cross_entropy_backward(float* __restrict__ logits, const int* __restrict__ targets,
                                                  const float* __restrict__ dlosses, float* __restrict__ losses,
                                                  int V) {
  float* row = logits + (size_t)blockIdx.x * V;
  int target = targets[blockIdx.x];
  float largest, sum;
  softmax_terms(row, V, largest, sum);
  if (threadIdx.x == 0) losses[blockIdx.x] = target < 0 ? 0.0f : logf(sum) + largest - row[target];
  __syncthreads();  // the target's logit has been read and may be overwritten
  float scale = target < 0 ? 0.0f : dlosses[blockIdx.x], share = scale / sum;  // one division per row
  for (int first = threadIdx.x; first < V; first += AT_ONCE * blockDim.x) {
    float logit[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      int i = first + k * blockDim.x;
      logit[k] = i < V ? row[i] : LOWEST;
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      int i = first + k * blockDim.x;
      if (i < V) row[i] = __expf(logit[k] - largest) * share - (i == target ? scale : 0.0f);
    }
  }
}

// The same for V up to KEEP * blockDim.x. Each thread keeps its part of the row in registers, so a row is read once,
// each exponential is computed once, and no thread reads what another one writes. If V is a multiple of 4 and the
// logits are aligned to 16 bytes, they are read and written 16 bytes at a time. KEEP must be a multiple of 4.
#ifndef KEEP
#define KEEP 16
#endif
static_assert(KEEP % 4 == 0, "a thread keeps fours");

// The index of this thread's k-th logit. With FOURS a thread has groups of four neighbours, else every blockDim.x-th.
template <bool FOURS> __device__ __forceinline__ int place(int k) {
  return FOURS ? 4 * (threadIdx.x + k / 4 * blockDim.x) + k % 4 : threadIdx.x + k * blockDim.x;
}

template <bool FOURS>
__device__ __forceinline__ void backward_kept(float* row, int target, float dloss, float& loss, int V) {
  float mine[KEEP], largest = LOWEST, own = 0, sum = 0;  // own: the target's logit, in its thread only
#pragma unroll
  for (int k = 0; k < KEEP; k += FOURS ? 4 : 1) {
    int i = place<FOURS>(k);
    float4 v = make_float4(LOWEST, LOWEST, LOWEST, LOWEST);
    if constexpr (FOURS) {
      if (i < V) v = *(const float4*)(row + i);
      mine[k] = v.x, mine[k + 1] = v.y, mine[k + 2] = v.z, mine[k + 3] = v.w;
    } else {
      mine[k] = i < V ? row[i] : LOWEST;
    }
  }
#pragma unroll
  for (int k = 0; k < KEEP; k++) largest = fmaxf(largest, mine[k]);
  largest = block_max(largest);
#pragma unroll
  for (int k = 0; k < KEEP; k++) {
    if (place<FOURS>(k) == target) own = mine[k];
    mine[k] = __expf(mine[k] - largest);
    sum += mine[k];
  }
  sum = block_sum(sum);
  float scale = target < 0 ? 0.0f : dloss, share = scale / sum;
#pragma unroll
  for (int k = 0; k < KEEP; k++) {
    mine[k] *= share;
    if (place<FOURS>(k) != target) continue;
    mine[k] -= scale;
    loss = logf(sum) + largest - own;
  }
#pragma unroll
  for (int k = 0; k < KEEP; k += FOURS ? 4 : 1) {
    int i = place<FOURS>(k);
    if (i >= V) continue;
    if constexpr (FOURS) *(float4*)(row + i) = make_float4(mine[k], mine[k + 1], mine[k + 2], mine[k + 3]);
    else row[i] = mine[k];
  }
  if (target < 0 && threadIdx.x == 0) loss = 0;
}

extern "C" __global__ void __launch_bounds__(512)
cross_entropy_backward_kept(float* __restrict__ logits, const int* __restrict__ targets,
                            const float* __restrict__ dlosses, float* __restrict__ losses, int V) {
  if (V > KEEP * (int)blockDim.x) __trap();  // a row is wider than the block can keep
  float* row = logits + (size_t)blockIdx.x * V;
  int target = targets[blockIdx.x];
  if (V % 4 == 0 && whole_fours(V, logits))
    backward_kept<true>(row, target, dlosses[blockIdx.x], losses[blockIdx.x], V);
  else
    backward_kept<false>(row, target, dlosses[blockIdx.x], losses[blockIdx.x], V);
}
