// what: the block's place in the result is read before thread 0 has fetched it
// array x: normal(128)
// array y: zeros(128)
// array length: np.zeros(1, np.int32)
// launch: keep<<<2, 64>>>(x, y, length)
// finds: base
extern "C" __global__ void keep(const float* x, float* y, int* length) {
  __shared__ int count, base;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  float v = x[blockIdx.x * 64 + threadIdx.x];
  int mine = v > 0 ? atomicAdd(&count, 1) : -1;
  __syncthreads();
  if (threadIdx.x == 63) base = atomicAdd(length, count);
  if (mine >= 0) y[base + mine] = v;  // HERE
}
