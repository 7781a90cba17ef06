// what: no barrier between clearing the root and the first step down
// array x: ints(0, 9, 64)
// launch: scan<<<1, 32>>>(x)
// finds: race | s[
extern "C" __global__ void scan(int* x) {
  __shared__ int s[64];
  int t = threadIdx.x, offset = 1;
  s[2 * t] = x[2 * t];
  s[2 * t + 1] = x[2 * t + 1];
  for (int d = 32; d > 0; d >>= 1, offset *= 2) {
    __syncthreads();
    if (t < d) s[offset * (2 * t + 2) - 1] += s[offset * (2 * t + 1) - 1];
  }
  __syncthreads();
  if (t == 31) s[63] = 0;  // HERE
  for (int d = 1; d < 64; d *= 2) {
    offset >>= 1;
    if (t < d) {
      int a = offset * (2 * t + 1) - 1, b = offset * (2 * t + 2) - 1;
      int old = s[a];
      s[a] = s[b];  // HERE
      s[b] += old;
    }
    __syncthreads();
  }
  x[2 * t] = s[2 * t];
  x[2 * t + 1] = s[2 * t + 1];
}
