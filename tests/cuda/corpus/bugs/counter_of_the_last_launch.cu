// what: a __device__ counter is not set back between two launches
// array y: np.zeros(2, np.int32)
// launch: count<<<1, 8>>>(y, 0)
// launch: count<<<1, 8>>>(y, 1)
// unseen: 2
// finds: seen
__device__ int seen;
extern "C" __global__ void count(int* y, int k) {
  if (threadIdx.x % 2) atomicAdd(&seen, 1);
  __syncthreads();
  if (threadIdx.x == 0) y[k] = atomicAdd(&seen, 0);
}
