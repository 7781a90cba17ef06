// matmul.cuh: the parts of a tiled product of float32 matrices, C = A B with A: [M, K], B: [K, N]. Chapter 25.
#pragma once
#include <nanoeuler.cuh>

// A block computes BM x BN numbers of C, in steps of BK along K, and each warp WARP_M x WARP_N of them. A warp has
// LANES_M x LANES_N lanes. Each computes ROWS x COLUMNS numbers, in pieces of 4 x 4, with other lanes' pieces between.
#ifndef BM
#define BM 128
#define BN 128
#define BK 16
#define WARP_M 32
#define WARP_N 64
#define LANES_M 4
#endif
#define LANES_N (32 / LANES_M)
#define ROWS (WARP_M / LANES_M)
#define COLUMNS (WARP_N / LANES_N)
#define THREADS (32 * (BM / WARP_M) * (BN / WARP_N))

struct Tile {
  float a[BK][BM + 4];  // transposed: the numbers of one k are adjacent; 4 more to avoid most bank conflicts of writes
  float b[BK][BN];
};

// Start to copy a tile that lies completely inside the matrices; the rows of B must be aligned to 16 bytes. a, b: the
// tile's first numbers; N, K: columns of B and of A.
__device__ __forceinline__ void copy_tile(Tile& to, const float* a, const float* b, int N, int K) {
  int t = threadIdx.x, k = t % BK, row = t / BK, column = t % (BN / 4) * 4, down = t / (BN / 4);
#pragma unroll
  for (int i = 0; i < BM; i += THREADS / BK) copy_async<4>(&to.a[k][row + i], a + (size_t)(row + i) * K + k);
#pragma unroll
  for (int i = 0; i < BK; i += THREADS * 4 / BN)
    copy_async<16>(&to.b[down + i][column], b + (size_t)(down + i) * N + column);
}

// The same for a tile that may cross the edges. `high` rows of A, `wide` columns of B and `deep` numbers along K remain
// from the tile's first numbers on; everything beyond them becomes 0.
__device__ __forceinline__ void copy_ragged_tile(Tile& to, const float* a, const float* b, int N, int K, int high,
                                                 int wide, int deep) {
  int k = threadIdx.x % BK, column = threadIdx.x % BN;
#pragma unroll 1
  for (int i = threadIdx.x / BK; i < BM; i += THREADS / BK)
    copy_async<4>(&to.a[k][i], a + (size_t)i * K + k, i < high && k < deep ? 4 : 0);
#pragma unroll 1
  for (int i = threadIdx.x / BN; i < BK; i += THREADS / BN)
    copy_async<4>(&to.b[i][column], b + (size_t)i * N + column, i < deep && column < wide ? 4 : 0);
}

// to[0 .. 3] = from[0 .. 3], in one load.
__device__ __forceinline__ void load_four(float* to, const float* from) {
  float4 v = *(const float4*)from;
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

// sum += this thread's part of the tile's product. row, column: the position of its first piece in the tile.
__device__ __forceinline__ void multiply_tile(float (&sum)[ROWS][COLUMNS], const Tile& tile, int row, int column) {
#pragma unroll
  for (int k = 0; k < BK; k++) {
    float a[ROWS], b[COLUMNS];
#pragma unroll
    for (int i = 0; i < ROWS; i += 4) load_four(&a[i], &tile.a[k][row + i * LANES_M]);
#pragma unroll
    for (int j = 0; j < COLUMNS; j += 4) load_four(&b[j], &tile.b[k][column + j * LANES_N]);
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
      for (int step = 0; step < COLUMNS; step++) {
        int j = i % 2 ? COLUMNS - 1 - step : step;  // back and forth, so each product shares a factor with the last one
        sum[i][j] += a[i] * b[j];
      }
  }
}

// Write the sums to C. From the tile's first number c on, `high` rows and `wide` columns remain. INSIDE: the whole tile
// lies inside C and is written four numbers at a time.
template <bool INSIDE>
__device__ __forceinline__ void write_sums(float* c, const float (&sum)[ROWS][COLUMNS], int N, int high, int wide,
                                           int row, int column) {
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    int y = row + i / 4 * 4 * LANES_M + i % 4;
#pragma unroll
    for (int j = 0; j < COLUMNS; j += 4) {
      int x = column + j * LANES_N;
      float* to = c + (size_t)y * N + x;
      if (INSIDE) *(float4*)to = make_float4(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]);
      else
#pragma unroll
        for (int e = 0; e < 4; e++)
          if (y < high && x + e < wide) to[e] = sum[i][j + e];
    }
  }
}
