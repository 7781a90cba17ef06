// what: 100 numbers in blocks of 32, and 100 / 32 blocks
// array x: normal(100)
// launch: negate<<<3, 32>>>(x, 100)
// unseen: 1
// finds: x
extern "C" __global__ void negate(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = -x[i];
}
