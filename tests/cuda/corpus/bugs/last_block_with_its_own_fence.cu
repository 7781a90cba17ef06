// what: the parts of a sum are counted as done after a fence that covers only the block
// array x: normal(256)
// array part: zeros(4)
// array done: np.zeros(1, np.uint32)
// array out: zeros(1)
// launch: total<<<4, 64>>>(x, part, done, out)
// finds: race | part
extern "C" __global__ void total(const float* x, float* part, unsigned* done, float* out) {
  __shared__ float s[64];
  int t = threadIdx.x;
  s[t] = x[blockIdx.x * 64 + t];
  __syncthreads();
  for (int half = 32; half; half /= 2) {
    if (t < half) s[t] += s[t + half];
    __syncthreads();
  }
  if (t == 0) {
    part[blockIdx.x] = s[0];  // HERE
    __threadfence_block();
    if (atomicInc(done, gridDim.x - 1) == gridDim.x - 1) {
      float sum = 0;
      for (int b = 0; b < gridDim.x; b++) sum += part[b];  // HERE
      *out = sum;
    }
  }
}
