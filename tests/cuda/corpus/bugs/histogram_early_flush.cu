// what: bins are given out before all warps have counted
// array x: ints(0, 64, 700)
// array h: np.zeros(64, np.int32)
// launch: hist<<<2, 128>>>(x, h, 700)
// finds: race | bins
extern "C" __global__ void hist(const int* x, int* h, int n) {
  __shared__ int bins[64];
  if (threadIdx.x < 64) bins[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&bins[x[i]], 1);  // HERE
  if (threadIdx.x < 64) atomicAdd(&h[threadIdx.x], bins[threadIdx.x]);  // HERE
}
