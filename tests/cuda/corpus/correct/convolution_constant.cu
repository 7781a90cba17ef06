// what: a filter in __constant__ memory, with halos
// array x: normal(70)
// array y: zeros(70)
// launch: blur<<<3, 32>>>(x, y, 70)
// gives y ~ 1e-5: np.convolve(np.pad(x, 2), [0.1, 0.2, 0.4, 0.2, 0.1], "valid")
#define R 2
__constant__ float weight[2 * R + 1] = {0.1f, 0.2f, 0.4f, 0.2f, 0.1f};
extern "C" __global__ void blur(const float* x, float* y, int n) {
  extern __shared__ float none[];
  __shared__ float s[32 + 2 * R];
  int first = blockIdx.x * 32 - R;
  for (int i = threadIdx.x; i < 32 + 2 * R; i += 32) s[i] = first + i >= 0 && first + i < n ? x[first + i] : 0.f;
  __syncthreads();
  int i = first + R + threadIdx.x;
  if (i < n) {
    float sum = 0;
#pragma unroll
    for (int k = -R; k <= R; ++k) sum += weight[R + k] * s[threadIdx.x + R + k];
    y[i] = sum;
  }
}
