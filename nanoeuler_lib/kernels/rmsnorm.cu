// RMSNorm: y = x / sqrt(mean(x^2) + eps) * gain, a row of D numbers at a time. ops/reference.py, chapters 08 and 24.
// Blocks are one-dimensional, their size a multiple of 32.
#include <reduce.cuh>

// x, y: [gridDim.x, D]; gain: [D]; rstd: [gridDim.x], kept for the backward pass. One block a row.
extern "C" __global__ void rmsnorm_forward(const float* __restrict__ x, const float* __restrict__ gain,
                                           float* __restrict__ y, float* __restrict__ rstd, int D, float eps) {
  size_t row = (size_t)blockIdx.x * D;
  float squares = 0;
  for (int i = threadIdx.x; i < D; i += blockDim.x) squares += x[row + i] * x[row + i];
  float r = rsqrtf(block_sum(squares) / D + eps);
  for (int i = threadIdx.x; i < D; i += blockDim.x) y[row + i] = x[row + i] * r * gain[i];
  if (threadIdx.x == 0) rstd[blockIdx.x] = r;
}

// x += delta, the residual connection, and then y = rmsnorm(x), with one read of x less than two kernels.
extern "C" __global__ void add_rmsnorm_forward(float* __restrict__ x, const float* __restrict__ delta,
                                               const float* __restrict__ gain, float* __restrict__ y,
                                               float* __restrict__ rstd, int D, float eps) {
  size_t row = (size_t)blockIdx.x * D;
  float squares = 0;
  for (int i = threadIdx.x; i < D; i += blockDim.x) {
    float sum = x[row + i] + delta[row + i];
    x[row + i] = sum;
    squares += sum * sum;
  }
  float r = rsqrtf(block_sum(squares) / D + eps);
  for (int i = threadIdx.x; i < D; i += blockDim.x) y[row + i] = x[row + i] * r * gain[i];
  if (threadIdx.x == 0) rstd[blockIdx.x] = r;
}

// dx += the gradient through the norm: dx holds what arrives past the norm, through the residual connection.
// dgain_part: [gridDim.x, D], each block's share of dgain over the rows it takes; `column_sums` adds the shares.
// dy, x, dx: [rows, D]. Any number of blocks up to rows.
extern "C" __global__ void rmsnorm_backward(const float* __restrict__ dy, const float* __restrict__ x,
                                            const float* __restrict__ gain, const float* __restrict__ rstd,
                                            float* __restrict__ dx, float* __restrict__ dgain_part, int rows, int D) {
  float* share = dgain_part + (size_t)blockIdx.x * D;
  for (int i = threadIdx.x; i < D; i += blockDim.x) share[i] = 0;
  for (int n = blockIdx.x; n < rows; n += gridDim.x) {
    size_t row = (size_t)n * D;
    float r = rstd[n], along = 0;
    for (int i = threadIdx.x; i < D; i += blockDim.x) along += dy[row + i] * gain[i] * x[row + i] * r;
    along = block_sum(along) / D;
    for (int i = threadIdx.x; i < D; i += blockDim.x) {
      float normed = x[row + i] * r;
      dx[row + i] += r * (dy[row + i] * gain[i] - normed * along);
      share[i] += dy[row + i] * normed;  // the same thread for every row: no other one touches this place
    }
  }
}
