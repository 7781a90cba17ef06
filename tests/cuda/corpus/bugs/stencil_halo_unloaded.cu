// what: only the right halo of the tile is loaded
// array x: normal(64)
// array y: zeros(64)
// launch: mean<<<2, 32>>>(x, y, 64)
// finds: tile[0]
extern "C" __global__ void mean(const float* __restrict__ x, float* __restrict__ y, int n) {
  __shared__ float tile[34];
  int i = blockIdx.x * 32 + threadIdx.x, t = threadIdx.x + 1;
  tile[t] = x[i];
  if (threadIdx.x == 31) tile[33] = i + 1 < n ? x[i + 1] : 0;
  __syncthreads();
  y[i] = (tile[t - 1] + tile[t] + tile[t + 1]) / 3;  // HERE
}
