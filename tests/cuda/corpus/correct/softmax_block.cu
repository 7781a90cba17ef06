// what: scratch used twice, with the barrier between
// array x: normal(2, 150)
// array y: zeros(2, 150)
// launch: softmax<<<2, 96>>>(x, y, 150)
// gives y ~ 1e-5: np.exp(x) / np.exp(x).sum(1, keepdims=True)
#include <math_constants.h>
template <class Op> __device__ float across(float v, float* scratch, float none, Op op) {
  int warps = blockDim.x / 32, lane = threadIdx.x % 32;
  for (int d = 16; d; d /= 2) v = op(v, __shfl_xor_sync(~0u, v, d));
  if (lane == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  v = none;
  for (int w = 0; w < warps; w++) v = op(v, scratch[w]);
  __syncthreads();
  return v;
}
extern "C" __global__ void softmax(const float* x, float* y, int n) {
  __shared__ float scratch[32];
  const float* row = x + (size_t)blockIdx.x * n;
  float m = -CUDART_INF_F, l = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) m = fmaxf(m, row[i]);
  m = across(m, scratch, -CUDART_INF_F, [](float a, float b) { return fmaxf(a, b); });
  for (int i = threadIdx.x; i < n; i += blockDim.x) l += __expf(row[i] - m);
  l = across(l, scratch, 0.0f, [](float a, float b) { return a + b; });
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = __expf(row[i] - m) / l;
}
