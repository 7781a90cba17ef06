// what: the scratch of the maximum is overwritten by the sum's before all have read the maximum
// array x: normal(200)
// array y: zeros(200)
// launch: softmax<<<1, 128>>>(x, y, 200)
// finds: race | scratch
__device__ float warp_max(float v) {
  for (int d = 16; d; d /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, d));
  return v;
}
__device__ float warp_sum(float v) {
  for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
  return v;
}
extern "C" __global__ void softmax(const float* x, float* y, int n) {
  __shared__ float scratch[4];
  int t = threadIdx.x;
  float m = -3e38f, sum = 0;
  for (int i = t; i < n; i += 128) m = fmaxf(m, x[i]);
  m = warp_max(m);
  if (t % 32 == 0) scratch[t / 32] = m;
  __syncthreads();
  m = fmaxf(fmaxf(scratch[0], scratch[1]), fmaxf(scratch[2], scratch[3]));  // HERE
  for (int i = t; i < n; i += 128) sum += expf(x[i] - m);
  sum = warp_sum(sum);
  if (t % 32 == 0) scratch[t / 32] = sum;  // HERE
  __syncthreads();
  sum = scratch[0] + scratch[1] + scratch[2] + scratch[3];
  for (int i = t; i < n; i += 128) y[i] = expf(x[i] - m) / sum;
}
