// what: bins in shared memory, cleared and given out in strided loops
// array x: rng.integers(0, 256, 900).astype(np.uint8)
// array h: np.zeros(256, np.uint32)
// launch: hist<<<3, 64>>>(x, h, 900)
// gives h: np.bincount(x, minlength=256)
#define BINS 256
extern "C" __global__ void hist(const unsigned char* x, unsigned* h, size_t n) {
  __shared__ unsigned bins[BINS];
  for (int b = threadIdx.x; b < BINS; b += blockDim.x) bins[b] = 0;
  __syncthreads();
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) atomicAdd(bins + x[i], 1u);
  __syncthreads();
  for (int b = threadIdx.x; b < BINS; b += blockDim.x)
    if (bins[b]) atomicAdd(h + b, bins[b]);
}
