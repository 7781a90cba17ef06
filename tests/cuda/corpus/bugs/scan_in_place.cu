// what: a Hillis-Steele scan in one buffer, one barrier a step
// array x: normal(100)
// array y: zeros(100)
// launch: scan<<<1, 128>>>(x, y, 100)
// finds: race | s[
extern "C" __global__ void scan(const float* x, float* y, int n) {
  __shared__ float s[128];
  int t = threadIdx.x;
  s[t] = t < n ? x[t] : 0.0f;
  __syncthreads();
  for (int d = 1; d < 128; d *= 2) {
    if (t >= d) s[t] += s[t - d];  // HERE
    __syncthreads();
  }
  if (t < n) y[t] = s[t];
}
