// what: the last warp of a tree is unrolled without __syncwarp, as before Volta
// array x: normal(256)
// array y: zeros(1)
// launch: total<<<1, 128>>>(x, y)
// finds: race | s[
extern "C" __global__ void total(const float* x, float* y) {
  __shared__ float s[128];
  int t = threadIdx.x;
  s[t] = x[t] + x[t + 128];
  __syncthreads();
  if (t < 64) s[t] += s[t + 64];
  __syncthreads();
  if (t < 32) {
    s[t] += s[t + 32];  // HERE
    s[t] += s[t + 16];  // HERE
    s[t] += s[t + 8];  // HERE
    s[t] += s[t + 4];  // HERE
    s[t] += s[t + 2];  // HERE
    s[t] += s[t + 1];  // HERE
  }
  if (t == 0) *y = s[0];
}
