// what: a stencil over the same array that it writes
// array u: normal(34)
// launch: smooth<<<2, 16>>>(u, 34)
// finds: race | u
extern "C" __global__ void smooth(float* u, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x + 1;
  if (i < n - 1) {
    float v = 0.5f * (u[i - 1] + u[i + 1]);  // HERE
    u[i] = v;  // HERE
  }
}
