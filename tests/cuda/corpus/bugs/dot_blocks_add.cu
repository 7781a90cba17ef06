// what: each block adds its part to the result with +=
// array x: normal(512)
// array y: normal(512)
// array out: zeros(1)
// launch: dot<<<4, 128>>>(x, y, out)
// finds: race | out
extern "C" __global__ void dot(const float* x, const float* y, float* out) {
  __shared__ float s[4];
  int i = blockIdx.x * 128 + threadIdx.x;
  float v = x[i] * y[i];
  for (int d = 16; d; d >>= 1) v += __shfl_down_sync(~0u, v, d);
  if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x == 0) *out += s[0] + s[1] + s[2] + s[3];  // HERE
}
