// what: blocks share the depth and add with atomics
// array a: ints(-5, 6, 8, 64).astype(np.float32)
// array b: ints(-5, 6, 64, 8).astype(np.float32)
// array c: zeros(8, 8)
// launch: gemm<<<(1, 1, 4), (8, 8)>>>(a, b, c, 64)
// gives c: a @ b
extern "C" __global__ void gemm(const float* a, const float* b, float* c, int k) {
  int part = k / gridDim.z, r = threadIdx.y, col = threadIdx.x;
  float sum = 0;
  for (int i = blockIdx.z * part; i < (blockIdx.z + 1) * part; ++i) sum += a[r * k + i] * b[i * 8 + col];
  atomicAdd(&c[r * 8 + col], sum);
}
