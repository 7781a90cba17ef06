// what: a sum of half a warp copied to a whole one, mask and all
// array x: normal(32)
// array y: zeros(1)
// launch: total<<<1, 32>>>(x, y)
// finds: mask
extern "C" __global__ void total(const float* x, float* y) {
  float v = x[threadIdx.x];
  for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0x0000ffff, v, d);  // HERE
  if (threadIdx.x == 0) y[0] = v;
}
