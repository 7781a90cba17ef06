// RMSNorm of rows of D numbers: y = x / sqrt(mean(x^2) + eps) * gain. ops/reference.py, chapters 08 and 24. Blocks are
// one-dimensional, with a multiple of 32 threads, at most 512, and D is at most KEEP times as many. Each thread reads
// its part of a row once, with all loads in flight together, and keeps it in registers until the sum over the row is
// known. (With 1024 threads per block, a thread would have only 64 registers, too few for KEEP numbers.)
#include <reduce.cuh>

#ifndef KEEP
#define KEEP 8
#endif

// Stop if a row does not fit into the block's registers; otherwise only part of it would be normalised, unnoticed.
__device__ __forceinline__ void expect_fit(int D) {
  if (D > KEEP * (int)blockDim.x) __trap();  // a row is wider than the block can keep
}

// y = rmsnorm(x). x, y: [gridDim.x, D]; gain: [D]; rstd: [gridDim.x], kept for the backward pass. One block per row.
extern "C" __global__ void __launch_bounds__(512)
rmsnorm_forward(const float* __restrict__ x, const float* __restrict__ gain, float* __restrict__ y,
                float* __restrict__ rstd, int D, float eps) {
  expect_fit(D);
  size_t row = (size_t)blockIdx.x * D;
  float mine[KEEP], squares = 0;
#pragma unroll
  for (int k = 0; k < KEEP; k++) {
    int i = threadIdx.x + k * blockDim.x;
    mine[k] = i < D ? x[row + i] : 0.0f;
  }
#pragma unroll
  for (int k = 0; k < KEEP; k++) squares += mine[k] * mine[k];
  float r = rsqrtf(block_sum(squares) / D + eps);
#pragma unroll
  for (int k = 0; k < KEEP; k++) {
    int i = threadIdx.x + k * blockDim.x;
    if (i < D) y[row + i] = mine[k] * r * gain[i];
  }
  if (threadIdx.x == 0) rstd[blockIdx.x] = r;
}

// x += delta (the residual connection), then y = rmsnorm(x). This reads x once less than two kernels would.
extern "C" __global__ void __launch_bounds__(512)
add_rmsnorm_forward(float* __restrict__ x, const float* __restrict__ delta, const float* __restrict__ gain,
                    float* __restrict__ y, float* __restrict__ rstd, int D, float eps) {
  expect_fit(D);
  size_t row = (size_t)blockIdx.x * D;
  float mine[KEEP], squares = 0;
#pragma unroll
  for (int k = 0; k < KEEP; k++) {
    int i = threadIdx.x + k * blockDim.x;
    mine[k] = i < D ? x[row + i] + delta[row + i] : 0.0f;
  }
#pragma unroll
  for (int k = 0; k < KEEP; k++) {
    int i = threadIdx.x + k * blockDim.x;
    squares += mine[k] * mine[k];
    if (i < D) x[row + i] = mine[k];
  }
  float r = rsqrtf(block_sum(squares) / D + eps);
#pragma unroll
  for (int k = 0; k < KEEP; k++) {
    int i = threadIdx.x + k * blockDim.x;
    if (i < D) y[row + i] = mine[k] * r * gain[i];
  }
  if (threadIdx.x == 0) rstd[blockIdx.x] = r;
}

// dx += the gradient through the norm; dx already holds the gradient through the residual connection. dy, x, dx: [rows,
// D]; dgain_part: [gridDim.x, D], each block's part of dgain, summed over its rows; `column_sums` adds the parts.
// Launch any number of blocks up to rows.
extern "C" __global__ void __launch_bounds__(512)
rmsnorm_backward(const float* __restrict__ dy, const float* __restrict__ x, const float* __restrict__ gain,
                 const float* __restrict__ rstd, float* __restrict__ dx, float* __restrict__ dgain_part, int rows,
                 int D) {
  expect_fit(D);
  float share[KEEP], g[KEEP];  // share: this block's part of dgain; g: the gain
#pragma unroll
  for (int k = 0; k < KEEP; k++) {
    int i = threadIdx.x + k * blockDim.x;
    share[k] = 0;
    g[k] = i < D ? gain[i] : 0.0f;
  }
  for (int n = blockIdx.x; n < rows; n += gridDim.x) {
    size_t row = (size_t)n * D;
    float normed[KEEP], slope[KEEP], past[KEEP], r = rstd[n], along = 0;
#pragma unroll
    for (int k = 0; k < KEEP; k++) {
      int i = threadIdx.x + k * blockDim.x;
      normed[k] = i < D ? x[row + i] * r : 0.0f;
      slope[k] = i < D ? dy[row + i] : 0.0f;
      past[k] = i < D ? dx[row + i] : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < KEEP; k++) {
      share[k] += slope[k] * normed[k];
      slope[k] *= g[k];
      along += slope[k] * normed[k];
    }
    along = block_sum(along) / D;
#pragma unroll
    for (int k = 0; k < KEEP; k++) {
      int i = threadIdx.x + k * blockDim.x;
      if (i < D) dx[row + i] = past[k] + r * (slope[k] - normed[k] * along);
    }
  }
#pragma unroll
  for (int k = 0; k < KEEP; k++) {
    int i = threadIdx.x + k * blockDim.x;
    if (i < D) dgain_part[(size_t)blockIdx.x * D + i] = share[k];
  }
}
