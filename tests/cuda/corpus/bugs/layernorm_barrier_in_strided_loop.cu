// what: threads of the tail go round a loop with a barrier less often
// array x: normal(100)
// array y: zeros(100)
// launch: center<<<1, 64>>>(x, y, 100)
// finds: barrier
extern "C" __global__ void center(const float* x, float* y, int n) {
  __shared__ float s[64];
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    s[threadIdx.x] = x[i];
    __syncthreads();  // HERE
    y[i] = x[i] - s[0];
    __syncthreads();  // HERE
  }
}
