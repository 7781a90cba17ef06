// y = x transposed; x: [rows, columns], y: [columns, rows]. Its backward is itself. Chapter 23.

// One element a thread. Neighbouring threads read neighbours, and write `rows` elements apart: one sector each.
// Launch a thread for every element, columns along x.
extern "C" __global__ void transpose_plain(const float* __restrict__ x, float* __restrict__ y, int rows, int columns) {
  int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row < rows && column < columns) y[(size_t)column * rows + row] = x[(size_t)row * columns + column];
}

// Through a tile in shared memory, which is read by columns and written by rows: both sides of global memory see
// neighbours. A row of the tile has 33 places, so that the 32 elements of a column lie in 32 banks.
// Launch blocks of (32, any up to 32), one for each tile of 32 x 32, tiles of a row along x.
#define TILE 32
extern "C" __global__ void transpose_tiled(const float* __restrict__ x, float* __restrict__ y, int rows, int columns) {
  __shared__ float tile[TILE][TILE + 1];
  int column = blockIdx.x * TILE + threadIdx.x, row0 = blockIdx.y * TILE;
  for (int j = threadIdx.y; j < TILE; j += blockDim.y)
    if (row0 + j < rows && column < columns) tile[j][threadIdx.x] = x[(size_t)(row0 + j) * columns + column];
  __syncthreads();
  int row = row0 + threadIdx.x, column0 = blockIdx.x * TILE;  // now the threads of a warp lie along y's rows
  for (int j = threadIdx.y; j < TILE; j += blockDim.y)
    if (row < rows && column0 + j < columns) y[(size_t)(column0 + j) * rows + row] = tile[threadIdx.x][j];
}
