// what: doubles begin after 50 16-bit numbers
// array x: np.arange(50, dtype=np.int16)
// array y: np.zeros(50)
// launch: widen<<<1, 50, 512>>>(x, y)
// finds: 8
extern "C" __global__ void widen(const short* x, double* y) {
  extern __shared__ unsigned char raw[];
  short* small = (short*)raw;
  double* big = (double*)(small + 50);
  int t = threadIdx.x;
  small[t] = x[t];
  __syncthreads();
  big[t] = small[49 - t];  // HERE
  __syncthreads();
  y[t] = big[t];
}
