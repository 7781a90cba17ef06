// what: a sum by grid-stride loops, shuffles and one atomic a block
// array x: normal(1000)
// array y: zeros(1)
// launch: total<<<3, 96>>>(x, y, 1000)
// gives y ~ 1e-4: x.sum(keepdims=True)
template <class T> __device__ T warp_sum(T v) {
#pragma unroll
  for (int d = warpSize / 2; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
  return v;
}
extern "C" __global__ void __launch_bounds__(96) total(const float* __restrict__ x, float* y, int n) {
  __shared__ float s[32];
  float v = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) v += x[i];
  v = warp_sum(v);
  if ((threadIdx.x & 31) == 0) s[threadIdx.x >> 5] = v;
  __syncthreads();
  if (threadIdx.x < 32) {
    v = warp_sum(threadIdx.x < blockDim.x / 32 ? s[threadIdx.x] : 0.0f);
    if (threadIdx.x == 0) atomicAdd(y, v);
  }
}
