// what: a tile without padding whose columns are exchanged by xor with the row
// array x: normal(32, 32)
// array y: zeros(32, 32)
// launch: turn<<<1, (32, 32)>>>(x, y)
// gives y: x.T
extern "C" __global__ void turn(const float* x, float* y) {
  __shared__ float tile[32 * 32];
  unsigned c = threadIdx.x, r = threadIdx.y;
  tile[r * 32 + (c ^ r)] = x[r * 32 + c];
  __syncthreads();
  y[r * 32 + c] = tile[c * 32 + (r ^ c)];
}
