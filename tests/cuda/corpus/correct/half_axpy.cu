// what: y += a x in __half with a float inside
// array x: normal(50).astype(np.float16)
// array y: normal(50).astype(np.float16)
// launch: axpy<<<2, 32>>>(50, 0.5, x, y)
// gives y: (f32(0.5) * x.astype(f32) + y.astype(f32)).astype(np.float16)
#include <cuda_fp16.h>
extern "C" __global__ void axpy(int n, float a, const __half* __restrict__ x, __half* __restrict__ y) {
  if (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n) y[i] = __float2half(a * __half2float(x[i]) + __half2float(y[i]));
}
