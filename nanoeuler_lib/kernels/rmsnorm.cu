// RMSNorm: y = x / sqrt(mean(x^2) + eps) * gain, a row of D numbers at a time. ops/reference.py, chapters 08 and 24.
// Blocks are one-dimensional, their size a multiple of 32 up to 512, and D at most KEEP times it: each thread reads its
// share of a row once, all loads on their way together, and keeps it in registers until the sum over the row is known.
// (With 1024 threads a block, registers for KEEP numbers and more would be too few: 64 a thread.)
#include <reduce.cuh>

#ifndef KEEP
#define KEEP 8
#endif

// A row wider than the block can keep would be normed in part, without a word: stop there.
__device__ __forceinline__ void expect_fit(int D) {
  if (D > KEEP * (int)blockDim.x) __trap();  // a row is wider than the block can keep
}

// x, y: [gridDim.x, D]; gain: [D]; rstd: [gridDim.x], kept for the backward pass. One block a row.
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

// x += delta, the residual connection, and then y = rmsnorm(x), with one read of x less than two kernels.
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

// dx += the gradient through the norm: dx holds what arrives past the norm, through the residual connection.
// dgain_part: [gridDim.x, D], each block's share of dgain over the rows it takes; `column_sums` adds the shares.
// dy, x, dx: [rows, D]. Any number of blocks up to rows.
extern "C" __global__ void __launch_bounds__(512)
rmsnorm_backward(const float* __restrict__ dy, const float* __restrict__ x, const float* __restrict__ gain,
                 const float* __restrict__ rstd, float* __restrict__ dx, float* __restrict__ dgain_part, int rows,
                 int D) {
  expect_fit(D);
  float share[KEEP], g[KEEP];  // g: the gain, the same for every row
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
