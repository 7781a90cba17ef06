// what: private bins in shared memory that nobody clears
// array x: ints(0, 32, 500)
// array h: np.zeros(32, np.int32)
// launch: hist<<<2, 64>>>(x, h, 500)
// finds: bins
extern "C" __global__ void hist(const int* x, int* h, int n) {
  __shared__ int bins[32];
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&bins[x[i]], 1);  // HERE
  __syncthreads();
  if (threadIdx.x < 32) atomicAdd(&h[threadIdx.x], bins[threadIdx.x]);
}
