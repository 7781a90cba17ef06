// what: a loop over a filter in __constant__ memory goes one step too far
// array x: normal(40)
// array y: zeros(36)
// launch: convolve<<<1, 36>>>(x, y)
// finds: out of bounds | weight
__constant__ float weight[5] = {0.1f, 0.2f, 0.4f, 0.2f, 0.1f};
extern "C" __global__ void convolve(const float* x, float* y) {
  float sum = 0;
  for (int k = 0; k <= 5; k++) sum += weight[k] * x[min(threadIdx.x + k, 39)];  // HERE
  y[threadIdx.x] = sum;
}
