// what: two extern __shared__ arrays are taken for two places
// array x: normal(32)
// array y: zeros(32)
// launch: both<<<1, 32, 256>>>(x, y)
// unseen: 6
// finds: order
extern "C" __global__ void both(const float* x, float* y) {
  extern __shared__ float values[];
  extern __shared__ int order[];
  int t = threadIdx.x;
  values[t] = x[t];
  order[t] = 31 - t;
  y[order[t]] = values[t];
}
