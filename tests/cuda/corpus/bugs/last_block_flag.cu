// what: the block's "I am last" flag is read without a barrier
// array part: normal(4)
// array done: np.zeros(1, np.uint32)
// array out: zeros(32)
// launch: finish<<<4, 64>>>(part, done, out)
// finds: last
extern "C" __global__ void finish(float* part, unsigned* done, float* out) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    part[blockIdx.x] *= 2;
    __threadfence();
    last = atomicAdd(done, 1) == gridDim.x - 1;  // HERE
  }
  if (last && threadIdx.x < 32) out[threadIdx.x] = part[threadIdx.x % 4];  // HERE
}
