// y = x transposed; x: [rows, columns], y: [columns, rows]. The backward pass is a transpose too. Chapter 23.

// One element per thread. Neighbouring threads read neighbouring elements but write elements `rows` apart, one sector
// each. Launch one thread for each element, columns along x.
extern "C" __global__ void
transpose_plain(const float* __restrict__ x, float* __restrict__ y,
                int rows, int columns) {
  int column = blockIdx.x * blockDim.x + threadIdx.x;
  int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row < rows && column < columns)
    y[(size_t)column * rows + row] = x[(size_t)row * columns + column];
}

// The same through a tile in shared memory, written by rows and read by columns, so that neighbouring threads access
// neighbouring global memory both times. A row of the tile has 33 places, so a column's 32 elements are in 32 banks.
// Launch blocks of (32, at most 32), one for each tile of 32 x 32, with tiles of a row along x.
#define TILE 32
extern "C" __global__ void transpose_tiled(const float* __restrict__ x, float* __restrict__ y, int rows, int columns) {
  __shared__ float tile[TILE][TILE + 1];
  int column = blockIdx.x * TILE + threadIdx.x, row0 = blockIdx.y * TILE;
  for (int j = threadIdx.y; j < TILE; j += blockDim.y)
    if (row0 + j < rows && column < columns) tile[j][threadIdx.x] = x[(size_t)(row0 + j) * columns + column];
  __syncthreads();
  int row = row0 + threadIdx.x, column0 = blockIdx.x * TILE;  // now a warp runs along a row of y
  for (int j = threadIdx.y; j < TILE; j += blockDim.y)
    if (row < rows && column0 + j < columns) y[(size_t)(column0 + j) * rows + row] = tile[threadIdx.x][j];
}

// The same in tiles of 64 x 64. Each thread has all its loads, SIDE / 32 * SIDE / HEIGHT, in flight together, so the
// compiler must know the block's height. A row of a tile is 256 bytes, both for reading and writing.
// Launch blocks of (32, HEIGHT), one for each tile of SIDE x SIDE, with tiles of a row along x.
#ifndef SIDE
#define SIDE 64
#endif
#ifndef HEIGHT
#define HEIGHT 8
#endif
extern "C" __global__ void __launch_bounds__(32 * HEIGHT)
transpose_wide(const float* __restrict__ x, float* __restrict__ y, int rows, int columns) {
  __shared__ float tile[SIDE][SIDE + 1];
  if (blockDim.x != 32 || blockDim.y != HEIGHT) __trap();  // the block must be 32 x HEIGHT
  int row0 = blockIdx.y * SIDE, column0 = blockIdx.x * SIDE;
  float mine[SIDE / HEIGHT][SIDE / 32];
#pragma unroll
  for (int j = 0; j < SIDE / HEIGHT; j++)
#pragma unroll
    for (int k = 0; k < SIDE / 32; k++) {
      int row = row0 + threadIdx.y + j * HEIGHT, column = column0 + threadIdx.x + 32 * k;
      mine[j][k] = row < rows && column < columns ? x[(size_t)row * columns + column] : 0.0f;
    }
#pragma unroll
  for (int j = 0; j < SIDE / HEIGHT; j++)
#pragma unroll
    for (int k = 0; k < SIDE / 32; k++) tile[threadIdx.y + j * HEIGHT][threadIdx.x + 32 * k] = mine[j][k];
  __syncthreads();
#pragma unroll
  for (int j = 0; j < SIDE / HEIGHT; j++)
#pragma unroll
    for (int k = 0; k < SIDE / 32; k++) {  // now a warp runs along a row of y
      int column = column0 + threadIdx.y + j * HEIGHT, row = row0 + threadIdx.x + 32 * k;
      if (row < rows && column < columns)
        y[(size_t)column * rows + row] = tile[threadIdx.x + 32 * k][threadIdx.y + j * HEIGHT];
    }
}
