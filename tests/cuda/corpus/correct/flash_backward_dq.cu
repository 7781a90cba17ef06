// what: dQ by atomics from blocks that own keys
// array ds: ints(-3, 4, 16, 16).astype(np.float32)
// array k: ints(-3, 4, 16, 8).astype(np.float32)
// array dq: zeros(16, 8)
// launch: back<<<4, (8, 16)>>>(ds, k, dq)
// gives dq: ds @ k
extern "C" __global__ void back(const float* ds, const float* k, float* dq) {
  __shared__ float tile[4][8];
  int c = threadIdx.x, row = threadIdx.y, first = blockIdx.x * 4;
  if (row < 4) tile[row][c] = k[(first + row) * 8 + c];
  __syncthreads();
  float sum = 0;
  for (int j = 0; j < 4; j++) sum += ds[row * 16 + first + j] * tile[j][c];
  atomicAdd(dq + row * 8 + c, sum);
}
