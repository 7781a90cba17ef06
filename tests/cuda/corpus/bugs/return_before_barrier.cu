// what: threads past the end return, the others go on to a barrier
// array x: normal(50)
// array y: zeros(50)
// launch: reverse<<<1, 64>>>(x, y, 50)
// finds: barrier | left
extern "C" __global__ void reverse(const float* x, float* y, int n) {
  extern __shared__ float unused[];
  __shared__ float s[64];
  int i = threadIdx.x;
  if (i >= n) return;
  s[i] = x[i];
  __syncthreads();  // HERE
  y[i] = s[n - 1 - i];
}
