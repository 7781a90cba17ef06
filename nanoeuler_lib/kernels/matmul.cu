// C = A B in float32; every sum is in the order of K. A: [M, K]; B: [K, N]; C: [M, N]; all sizes from 1. Chapter 25.
#include <matmul.cuh>

// Start to copy the next tile if `deep`, the remaining numbers along K, is positive.
template <bool INSIDE>
__device__ __forceinline__ void ask(Tile& to, const float* a, const float* b, int N, int K, int high, int wide,
                                    int deep) {
  if (deep <= 0) return;
  if (INSIDE) copy_tile(to, a, b, N, K);
  else copy_ragged_tile(to, a, b, N, K, high, wide, deep);
  copy_async_commit();
}

// Compute one tile of C. a, b, c: its first row of A, first column of B and first number of C; high, wide: the rows of
// A and columns of B from there on. While one of the two tiles in shared memory is multiplied, the other one is copied.
template <bool INSIDE>
__device__ __forceinline__ void make_tile(Tile* tiles, const float* a, const float* b, float* c, int N, int K, int high,
                                          int wide) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int row = warp / (BN / WARP_N) * WARP_M + lane / LANES_N * 4;
  int column = warp % (BN / WARP_N) * WARP_N + lane % LANES_N * 4;
  float sum[ROWS][COLUMNS] = {};
  ask<INSIDE>(tiles[0], a, b, N, K, high, wide, K);
  for (int k = 0, now = 0; k < K; k += BK, now = 1 - now) {
    copy_async_wait<0>();
    __syncthreads();  // this tile is complete, and no thread reads the last one any more
    a += BK, b += (size_t)BK * N;
    ask<INSIDE>(tiles[1 - now], a, b, N, K, high, wide, K - k - BK);
    multiply_tile(sum, tiles[now], row, column);
  }
  write_sums<INSIDE>(c, sum, N, high, wide, row, column);
}

// C = A B. Launch blocks of THREADS threads (256), one for each tile of BM x BN (128 x 128), with columns along x.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
matmul(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int M, int N, int K) {
  __shared__ __align__(16) Tile tiles[2];
  int row0 = blockIdx.y * BM, column0 = blockIdx.x * BN, high = M - row0, wide = N - column0;
  a += (size_t)row0 * K, b += column0, c += (size_t)row0 * N + column0;
  bool fours = N % 4 == 0 && ((size_t)b | (size_t)c) % 16 == 0;
  if (high >= BM && wide >= BN && K % BK == 0 && fours) make_tile<true>(tiles, a, b, c, N, K, high, wide);
  else make_tile<false>(tiles, a, b, c, N, K, high, wide);
}
