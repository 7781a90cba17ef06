// what: a bitonic sort in shared memory
// array x: ints(-1000, 1000, 128)
// launch: sort<<<1, 128>>>(x)
// gives x: np.sort(x)
extern "C" __global__ void sort(int* x) {
  __shared__ int s[128];
  unsigned t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  for (unsigned k = 2; k <= 128; k <<= 1)
    for (unsigned j = k >> 1; j > 0; j >>= 1) {
      unsigned o = t ^ j;
      if (o > t && (s[t] > s[o]) == ((t & k) == 0)) {
        int v = s[t];
        s[t] = s[o];
        s[o] = v;
      }
      __syncthreads();
    }
  x[t] = s[t];
}
