// reduce.cuh: sums and maxima over the 32 lanes of a warp or all threads of a block. Chapter 24.
#pragma once

__device__ __forceinline__ float warp_sum(float v) {
  for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(0xffffffffu, v, distance);
  return v;  // every lane has the sum
}

__device__ __forceinline__ float warp_max(float v) {
  for (int distance = 16; distance > 0; distance /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, distance));
  return v;
}

// The sum of v over the block; every thread gets it. The block must be one-dimensional, its size a multiple of 32.
__device__ __forceinline__ float block_sum(float v) {
  if (blockDim.x % 32 || blockDim.y * blockDim.z > 1) __trap();  // the block must be whole warps along x
  __shared__ float part[32];  // one number per warp
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  v = warp_sum(v);
  __syncthreads();  // a slower warp may still read part from the previous call
  if (lane == 0) part[warp] = v;
  __syncthreads();
  return warp_sum(lane < blockDim.x / 32 ? part[lane] : 0.0f);
}

__device__ __forceinline__ float block_max(float v) {
  if (blockDim.x % 32 || blockDim.y * blockDim.z > 1) __trap();  // the block must be whole warps along x
  __shared__ float part[32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  v = warp_max(v);
  __syncthreads();
  if (lane == 0) part[warp] = v;
  __syncthreads();
  return warp_max(lane < blockDim.x / 32 ? part[lane] : part[0]);
}
