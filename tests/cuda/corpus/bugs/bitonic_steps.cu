// what: a bitonic sort has its barrier outside of the inner loop
// array x: ints(0, 1000, 128)
// launch: sort<<<1, 128>>>(x)
// finds: race | s[
extern "C" __global__ void sort(int* x) {
  __shared__ int s[128];
  unsigned t = threadIdx.x;
  s[t] = x[t];
  for (unsigned k = 2; k <= 128; k <<= 1) {
    __syncthreads();
    for (unsigned j = k >> 1; j > 0; j >>= 1) {
      unsigned o = t ^ j;
      if (o > t && (s[t] > s[o]) == ((t & k) == 0)) {  // HERE
        int v = s[t];
        s[t] = s[o];  // HERE
        s[o] = v;  // HERE
      }
    }
  }
  __syncthreads();
  x[t] = s[t];
}
