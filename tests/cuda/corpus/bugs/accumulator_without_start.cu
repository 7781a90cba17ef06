// what: the registers of a tiled product are never set to 0
// array a: normal(8, 4)
// array y: zeros(8)
// launch: rows<<<1, 8>>>(a, y)
// unseen: 2
// finds: value
extern "C" __global__ void rows(const float* a, float* y) {
  float sum[4];
  for (int k = 0; k < 4; k++) sum[k] += a[threadIdx.x * 4 + k];  // HERE
  y[threadIdx.x] = sum[0] + sum[1] + sum[2] + sum[3];
}
