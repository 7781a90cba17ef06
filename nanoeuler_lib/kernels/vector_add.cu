// c = a + b, one element a thread. The gradient of c is that of a and of b: there is no backward kernel. Chapter 23.
// a, b, c: [n]. Launch at least n threads.
extern "C" __global__ void vector_add(const float* __restrict__ a, const float* __restrict__ b,
                                      float* __restrict__ c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];  // the last block may reach beyond the end
}
