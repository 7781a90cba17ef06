// what: a persistent block takes the next tile while others still read the last
// array x: normal(16, 64)
// array y: zeros(64, 16)
// launch: turn<<<1, (16, 16)>>>(x, y, 64)
// finds: race | tile
extern "C" __global__ void turn(const float* x, float* y, int columns) {
  __shared__ float tile[16][17];
  for (int c0 = 0; c0 < columns; c0 += 16) {
    tile[threadIdx.y][threadIdx.x] = x[threadIdx.y * columns + c0 + threadIdx.x];  // HERE
    __syncthreads();
    y[(c0 + threadIdx.y) * 16 + threadIdx.x] = tile[threadIdx.x][threadIdx.y];  // HERE
  }
}
