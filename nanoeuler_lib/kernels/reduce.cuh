// reduce.cuh: one number from the 32 lanes of a warp, or from all threads of a block. Chapter 24.
#pragma once

__device__ __forceinline__ float warp_sum(float v) {
  for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(0xffffffffu, v, distance);
  return v;  // every lane has the sum
}

__device__ __forceinline__ float warp_max(float v) {
  for (int distance = 16; distance > 0; distance /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, distance));
  return v;
}

// The block is one-dimensional, its size a multiple of 32. Every thread gets the result.
__device__ __forceinline__ float block_sum(float v) {
  if (blockDim.x % 32 || blockDim.y * blockDim.z > 1) __trap();  // the block is whole warps, along x alone
  __shared__ float part[32];  // one number a warp
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  v = warp_sum(v);
  __syncthreads();  // a slower warp may still read what the call before left in part
  if (lane == 0) part[warp] = v;
  __syncthreads();
  return warp_sum(lane < blockDim.x / 32 ? part[lane] : 0.0f);
}

__device__ __forceinline__ float block_max(float v) {
  if (blockDim.x % 32 || blockDim.y * blockDim.z > 1) __trap();  // the block is whole warps, along x alone
  __shared__ float part[32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  v = warp_max(v);
  __syncthreads();
  if (lane == 0) part[warp] = v;
  __syncthreads();
  return warp_max(lane < blockDim.x / 32 ? part[lane] : part[0]);
}
