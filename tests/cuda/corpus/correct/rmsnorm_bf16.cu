// what: 16-bit rows, float sums
// array x: bf16(normal(4, 64))
// array y: bf16(normal(4, 64))
// launch: norm<<<4, 64>>>(x, y)
// gives y: bf16(widen(x) * (1 / np.sqrt((widen(x) ** 2).mean(1, keepdims=True, dtype=np.float64) + 1e-5)).astype(f32))
#include <cuda_bf16.h>
extern "C" __global__ void norm(const __nv_bfloat16* x, __nv_bfloat16* y) {
  __shared__ double total[2];
  int i = blockIdx.x * 64 + threadIdx.x;
  float v = __bfloat162float(x[i]);
  double s = (double)v * v;
  for (int d = 16; d; d /= 2) s += __shfl_xor_sync(~0u, s, d);
  if (threadIdx.x % 32 == 0) total[threadIdx.x / 32] = s;
  __syncthreads();
  float r = (float)(1 / sqrt((total[0] + total[1]) / 64 + 1e-5));
  y[i] = __float2bfloat16(v * r);
}
