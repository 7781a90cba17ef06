// what: a tile with a padded row, four rows per thread
// array x: normal(70, 45)
// array y: zeros(45, 70)
// launch: turn<<<(2, 3), (32, 8)>>>(x, y, 70, 45)
// gives y: x.T
constexpr int TILE = 32;
extern "C" __global__ void turn(const float* x, float* y, int rows, int columns) {
  __shared__ float tile[TILE][TILE + 1];
  int c = blockIdx.x * TILE + threadIdx.x;
  for (int j = threadIdx.y; j < TILE; j += blockDim.y) {
    int r = blockIdx.y * TILE + j;
    if (r < rows && c < columns) tile[j][threadIdx.x] = x[r * columns + c];
  }
  __syncthreads();
  int r = blockIdx.y * TILE + threadIdx.x;
  for (int j = threadIdx.y; j < TILE; j += blockDim.y) {
    c = blockIdx.x * TILE + j;
    if (r < rows && c < columns) y[c * rows + r] = tile[threadIdx.x][j];
  }
}
