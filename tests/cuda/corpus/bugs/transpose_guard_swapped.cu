// what: the guard of the store compares rows with columns
// array x: normal(20, 40)
// array y: zeros(40, 20)
// launch: turn<<<(3, 2), (16, 16)>>>(x, y, 20, 40)
// finds: out of bounds | y
extern "C" __global__ void turn(const float* x, float* y, int rows, int columns) {
  __shared__ float tile[16][17];
  int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y;
  tile[threadIdx.y][threadIdx.x] = r < rows && c < columns ? x[r * columns + c] : 0;
  __syncthreads();
  c = blockIdx.y * 16 + threadIdx.x;
  r = blockIdx.x * 16 + threadIdx.y;
  if (r < 48 && c < columns) y[r * rows + c] = tile[threadIdx.x][threadIdx.y];  // HERE
}
