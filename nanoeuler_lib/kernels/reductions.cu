// Sums, in an order that does not depend on timing: the same bits in every run. Chapter 24.
#include <reduce.cuh>

// part[block] = the sum of that block's share of x. A second launch with one block sums the parts.
// x: [n]; part: [gridDim.x]. The block's size is a power of two, at most 1024.
extern "C" __global__ void sum_tree(const float* __restrict__ x, float* __restrict__ part, int n) {
  __shared__ float s[1024];
  int t = threadIdx.x;
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + t; i < n; i += gridDim.x * blockDim.x) sum += x[i];
  s[t] = sum;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (t < half) s[t] += s[t + half];
    __syncthreads();  // outside the branch: every thread of the block comes here
  }
  if (t == 0) part[blockIdx.x] = s[0];
}

// The same with shuffles, which need no barrier inside a warp. The block's size is a multiple of 32.
extern "C" __global__ void sum_shuffle(const float* __restrict__ x, float* __restrict__ part, int n) {
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) part[blockIdx.x] = sum;
}

// Backward of a sum: every element receives the sum's gradient. dx: [n]; dsum: [1].
extern "C" __global__ void sum_backward(const float* __restrict__ dsum, float* __restrict__ dx, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) dx[i] = *dsum;
}

// y[column] = the sum of a column, from top to bottom. x: [rows, columns]; y: [columns], a thread each.
extern "C" __global__ void column_sums(const float* __restrict__ x, float* __restrict__ y, int rows, int columns) {
  int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  float sum = 0;
  for (int row = 0; row < rows; row++) sum += x[(size_t)row * columns + column];
  y[column] = sum;
}
