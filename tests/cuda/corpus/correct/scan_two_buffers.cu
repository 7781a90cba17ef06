// what: Hillis-Steele with two buffers and one barrier a step
// array x: ints(0, 100, 90)
// array y: np.zeros(90, np.int32)
// launch: scan<<<1, 96, 768>>>(x, y, 90)
// gives y: np.cumsum(x)
extern "C" __global__ void scan(const int* x, int* y, int n) {
  extern __shared__ int both[];
  int *from = both, *to = both + blockDim.x, t = threadIdx.x;
  from[t] = t < n ? x[t] : 0;
  __syncthreads();
  for (int d = 1; d < blockDim.x; d <<= 1) {
    to[t] = from[t] + (t >= d ? from[t - d] : 0);
    int* swap = from;
    from = to;
    to = swap;
    __syncthreads();
  }
  if (t < n) y[t] = from[t];
}
