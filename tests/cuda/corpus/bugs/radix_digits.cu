// what: the digits of a radix sort are counted with ++
// array keys: rng.integers(0, 1 << 32, 64).astype(np.uint32)
// array counts: np.zeros(16, np.int32)
// launch: digits<<<1, 64>>>(keys, counts, 4)
// finds: race | c[
extern "C" __global__ void digits(const unsigned* keys, int* counts, int shift) {
  __shared__ int c[16];
  if (threadIdx.x < 16) c[threadIdx.x] = 0;
  __syncthreads();
  c[keys[threadIdx.x] >> shift & 15]++;  // HERE
  __syncthreads();
  if (threadIdx.x < 16) counts[threadIdx.x] = c[threadIdx.x];
}
