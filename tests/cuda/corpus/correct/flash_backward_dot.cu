// what: D = rowsum(dO * O), eight lanes a row
// array dout: normal(10, 32)
// array out: normal(10, 32)
// array d: zeros(10)
// launch: dots<<<3, (8, 4)>>>(dout, out, d, 10)
// gives d ~ 1e-4: (dout * out).sum(1)
extern "C" __global__ void dots(const float4* dout, const float4* out, float* d, int rows) {
  int row = blockIdx.x * 4 + threadIdx.y;
  float sum = 0;
  if (row < rows) {
    float4 a = dout[row * 8 + threadIdx.x], b = out[row * 8 + threadIdx.x];
    sum = a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
  }
  for (int step = 4; step; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step, 8);
  if (row < rows && threadIdx.x == 0) d[row] = sum;
}
