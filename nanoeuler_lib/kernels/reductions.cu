// Sums whose order does not depend on timing, so that every run gives bitwise identical results. Chapter 24.
#include <reduce.cuh>
#include <wide.cuh>

#define AT_ONCE 4  // loads that each thread has in flight together

// part[block] = the sum of that block's part of x. A second launch with one block sums these parts.
// x: [n]; part: [gridDim.x]. The block's size must be a power of two, at most 1024.
extern "C" __global__ void
sum_tree(const float* __restrict__ x, float* __restrict__ part, int n) {
  if (blockDim.x & (blockDim.x - 1)) __trap();  // the block must be a power of two
  __shared__ float s[1024];
  int t = threadIdx.x;
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + t; i < n; i += gridDim.x * blockDim.x)
    sum += x[i];
  s[t] = sum;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (t < half) s[t] += s[t + half];
    __syncthreads();  // outside the branch, because every thread must reach it
  }
  if (t == 0) part[blockIdx.x] = s[0];
}

// The same with shuffles, which need no barrier inside a warp. The block's size must be a multiple of 32.
extern "C" __global__ void sum_shuffle(const float* __restrict__ x, float* __restrict__ part, int n) {
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) part[blockIdx.x] = sum;
}

// The same with four float4 loads in flight per thread. The library uses this version.
extern "C" __global__ void
sum_wide(const float* __restrict__ x, float* __restrict__ part, int n) {
  int me = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  int fours = whole_fours(n, x);
  float sum = 0;
  for (int first = me; first < fours; first += AT_ONCE * threads) {
    float4 v[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {  // no load waits for another one
      int i = first + k * threads;
      v[k] = i < fours ? ((const float4*)x)[i] : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) sum += v[k].x + v[k].y + v[k].z + v[k].w;
  }
  for (int i = 4 * fours + me; i < n; i += threads) sum += x[i];  // the rest
  sum = block_sum(sum);
  if (threadIdx.x == 0) part[blockIdx.x] = sum;
}

// The backward pass of a sum: every element gets the sum's gradient. dx: [n]; dsum: [1]. Launch any number of threads.
extern "C" __global__ void sum_backward(const float* __restrict__ dsum, float* __restrict__ dx, int n) {
  int me = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x, fours = whole_fours(n, dx);
  float d = *dsum;
  for (int i = me; i < fours; i += threads) ((float4*)dx)[i] = make_float4(d, d, d, d);
  for (int i = 4 * fours + me; i < n; i += threads) dx[i] = d;
}

// y[b, column] = the sum of a column over the rows that belong to blockIdx.y = b. Each thread adds every (gridDim.y *
// blockDim.y)-th row, then a tree adds the threads along y. x: [rows, columns]; y: [gridDim.y, columns]. For a tall x,
// a second launch with gridDim.y = 1 adds the parts. Launch blocks of (columns, a power of two), such as (32, 8).
extern "C" __global__ void column_sums(const float* __restrict__ x, float* __restrict__ y, int rows, int columns) {
  if (blockDim.y & (blockDim.y - 1)) __trap();  // the block's height must be a power of two
  __shared__ float s[1024];
  int column = blockIdx.x * blockDim.x + threadIdx.x, t = threadIdx.y * blockDim.x + threadIdx.x;
  int step = gridDim.y * blockDim.y;
  float sum = 0;
  for (int first = blockIdx.y * blockDim.y + threadIdx.y; first < rows; first += 2 * AT_ONCE * step) {
    float v[2 * AT_ONCE];
#pragma unroll
    for (int k = 0; k < 2 * AT_ONCE; k++) {
      int row = first + k * step;
      v[k] = row < rows && column < columns ? x[(size_t)row * columns + column] : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < 2 * AT_ONCE; k++) sum += v[k];
  }
  s[t] = sum;
  __syncthreads();
  for (int half = blockDim.y / 2; half > 0; half /= 2) {
    if (threadIdx.y < half) s[t] += s[t + half * blockDim.x];
    __syncthreads();
  }
  if (threadIdx.y == 0 && column < columns) y[(size_t)blockIdx.y * columns + column] = s[t];
}
