// c = a b^T on tensor cores: y = x W^T of a linear layer with weights [outputs, inputs]. Chapter 26. a: [M, K]; b: [N,
// K]; c: [M, N]. T, the type of a and b, is __nv_bfloat16, __half, or float, which is rounded to TF32 (10 mantissa
// bits). Sums are float. Out, the type of c, is float or T, rounded once. M and N are arbitrary; rows of a and b must
// be multiples of 16 bytes, and both arrays aligned to 16 bytes.
//
// matmul16_plain   fragments gathered number by number from padded rows
// matmul16         swizzled tiles, ldmatrix, asynchronous copies STAGES - 1 tiles ahead
// matmul16_wgmma   for sm_90a: TMA copies, two warpgroups multiply by wgmma; elsewhere an emulation, for the checker
//
// cuda/matmul16.py launches them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <hopper.cuh>
#include <named_barrier.cuh>
#include <nanoeuler.cuh>

#define ROW 128  // bytes per row of a tile: 64 numbers of 16 bits, or 32 of TF32
#ifndef DEEP
#define DEEP 8  // tiles of a column that run one after another, so that their rows of b stay in the L2 cache
#endif

// ---- helpers of all versions

template <class T> struct Multiplied { typedef T type; };
template <> struct Multiplied<float> { typedef tf32 type; };

__device__ __forceinline__ void put(float* to, float x) { *to = x; }
__device__ __forceinline__ void put(__nv_bfloat16* to, float x) { *to = __float2bfloat16(x); }
__device__ __forceinline__ void put(__half* to, float x) { *to = __float2half(x); }
__device__ __forceinline__ void put_pair(float* to, float x, float y) { *(float2*)to = make_float2(x, y); }
__device__ __forceinline__ void put_pair(__nv_bfloat16* to, float x, float y) {
  *(__nv_bfloat162*)to = __floats2bfloat162_rn(x, y);
}
__device__ __forceinline__ void put_pair(__half* to, float x, float y) { *(__half2*)to = __floats2half2_rn(x, y); }

// Store two neighbours of a row, if inside c. (If N is odd, pairs are not aligned, so single numbers are written.)
template <class Out>
__device__ __forceinline__ void store_pair(Out* c, int row, int column, int M, int N, float x, float y) {
  if (row >= M || column >= N) return;
  Out* to = c + (size_t)row * N + column;
  if (N % 2 == 0) {
    put_pair(to, x, y);
  } else {
    put(to, x);
    if (column + 1 < N) put(to + 1, y);
  }
}

// Transpose 4 x 4 words among four neighbouring lanes (word i of lane q <-> word q of lane i) by swaps in 2 x 2 blocks.
__device__ __forceinline__ void turn(unsigned* word) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    int bit = i < 2 ? 1 : 2, low = i < 2 ? 2 * i : i - 2;
    bool upper = threadIdx.x & bit;
    unsigned got = __shfl_xor_sync(0xffffffffu, upper ? word[low] : word[low + bit], bit);
    if (upper) word[low] = got;
    else word[low + bit] = got;
  }
}

// Store 32 columns of a row, held by four lanes as mma leaves them: x[4 i] and x[4 i + 1] are columns 8 i + 2 (lane %
// 4) and the next. 16-bit numbers are exchanged first, so that each lane writes 16 bytes and two lanes fill a sector.
template <class Out>
__device__ __forceinline__ void store_strip(Out* c, int row, int column, int M, int N, const float* x) {
  int quarter = threadIdx.x % 4;
  if (sizeof(Out) == 2 && N % 8 == 0) {
    __align__(16) Out pairs[8];
#pragma unroll
    for (int i = 0; i < 4; i++) put_pair(&pairs[2 * i], x[4 * i], x[4 * i + 1]);
    turn((unsigned*)pairs);
    column += 8 * quarter;
    if (row < M && column < N) *(uint4*)(c + (size_t)row * N + column) = *(uint4*)pairs;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; i++) store_pair(c, row, column + 8 * i + 2 * quarter, M, N, x[4 * i], x[4 * i + 1]);
}

template <class T> __device__ __forceinline__ void expect_whole_pieces(const T* a, const T* b, int K) {
  if (K * sizeof(T) % 16) __trap();  // rows of a and b must be multiples of 16 bytes
  if ((size_t)a % 16 || (size_t)b % 16) __trap();  // a and b must be aligned to 16 bytes
}

// ---- v1: fragments as the figures of the PTX ISA show them

#define PAD 40  // numbers from one row of a tile to the next: 20 words, so that 8 rows of 4 words are in 32 banks

// Launch blocks of 128 threads, one per tile of 64 x 64, tiles of a row along x. Each of the four warps takes 32 x 32.
template <class T, class Out> __global__ void __launch_bounds__(128)
matmul16_plain(const T* __restrict__ a, const T* __restrict__ b, Out* __restrict__ c, int M, int N, int K) {
  __shared__ __align__(16) T as[64][PAD], bs[64][PAD];
  expect_whole_pieces(a, b, K);
  int lane = threadIdx.x % 32, top = threadIdx.x / 64 * 32, left = threadIdx.x / 32 % 2 * 32;
  int row0 = blockIdx.y * 64, column0 = blockIdx.x * 64;
  float sum[2][4][4] = {};
  for (int k = 0; k < K; k += 32) {
    for (int i = threadIdx.x; i < 64 * 4; i += 128) {
      int row = i / 4, column = i % 4 * 8;
      bool inside = k + column < K;
      bool in_a = inside && row0 + row < M, in_b = inside && column0 + row < N;
      copy_async<16>(&as[row][column], in_a ? &a[(size_t)(row0 + row) * K + k + column] : a, in_a ? 16 : 0);
      copy_async<16>(&bs[row][column], in_b ? &b[(size_t)(column0 + row) * K + k + column] : b, in_b ? 16 : 0);
    }
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 32; j += 16) {
      unsigned fa[2][4], fb[4][2];
#pragma unroll
      for (int i = 0; i < 8; i++)  // two neighbours of a row form one register
        fa[i / 4][i % 4] =
            *(unsigned*)&as[top + i / 4 * 16 + lane / 4 + 8 * (i % 2)][j + 2 * (lane % 4) + 8 * (i / 2 % 2)];
#pragma unroll
      for (int i = 0; i < 8; i++)
        fb[i / 2][i % 2] = *(unsigned*)&bs[left + i / 2 * 8 + lane / 4][j + 2 * (lane % 4) + 8 * (i % 2)];
#pragma unroll
      for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 4; n++) mma<T>(sum[m][n], fa[m], fb[n]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; i++)
    store_strip(c, row0 + top + i / 2 * 16 + lane / 4 + 8 * (i % 2), column0 + left, M, N, &sum[i / 2][0][2 * (i % 2)]);
}

// ---- v2: swizzled tiles, ldmatrix, a pipeline of copies

// The address of piece c (16 bytes) of a tile's row. Pieces of the same column in eight rows, which ldmatrix reads
// together, and eight pieces of one row, which a copy writes, are each in all 32 banks.
__device__ __forceinline__ unsigned char* piece(unsigned char* tile, int row, int c) {
  return tile + row * ROW + ((c ^ row % 8) << 4);
}

// Copy part `part` of PARTS of a tile of ROWS rows, eight threads per row. from: this thread's first piece, in row
// `row` and column `column` of a matrix of `rows` rows and K columns; the function advances it. Zeros beyond the edges.
template <int ROWS, int THREADS, int PARTS, class T>
__device__ __forceinline__ void copy_rows(unsigned char* tile, const T*& from, int row, int rows, int column, int K,
                                          int part) {
  static_assert(THREADS % 64 == 0 && ROWS / PARTS % (THREADS / 8) == 0, "whole rows, 8 or more at a time");
  size_t stride = (size_t)THREADS / 8 * K;
  unsigned char* to = piece(tile, threadIdx.x % THREADS / 8, threadIdx.x % 8);  // c ^ row % 8 repeats every 8 rows
#pragma unroll
  for (int r = part * ROWS / PARTS; r < (part + 1) * ROWS / PARTS; r += THREADS / 8) {
    int given = row + r < rows && column < K ? 16 : 0;
    copy_async_cg<16>(to + r * ROW, from, given);
    from += stride;
  }
}

// The first row and column of tile `number`. Tiles are numbered in strips: DEEP tiles down, then the next column.
template <int BM, int BN> __device__ __forceinline__ int2 tile_at(int number, int M, int N) {
  int down = (M + BM - 1) / BM, across = (N + BN - 1) / BN;
  int first = number / (DEEP * across) * DEEP, height = min(DEEP, down - first), inside = number % (DEEP * across);
  return make_int2((first + inside % height) * BM, inside / height * BN);
}

// The operands of one step of a warp: 64 rows of a and 64 of b, 32 bytes of each row.
struct Fragments {
  unsigned a[4][4], b[16];
};

__device__ __forceinline__ void load_fragments(Fragments& f, unsigned char* tile_a, unsigned char* tile_b, int j) {
  int lane = threadIdx.x % 32;
  unsigned char* rows_a = piece(tile_a, lane % 16, 2 * j + lane / 16);
  unsigned char* rows_b = piece(tile_b, lane % 8 + lane / 16 * 8, 2 * j + lane / 8 % 2);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    ldmatrix<4>(f.a[i], rows_a + 16 * i * ROW);
    ldmatrix<4>(&f.b[4 * i], rows_b + 16 * i * ROW);
  }
}

// sum += the product of the fragments, as 4 x 8 blocks of 16 x 8.
template <class T> __device__ __forceinline__ void multiply_fragments(float (*sum)[8][4], Fragments& f) {
  if (sizeof(T) == 4)  // rounding right after the load would wait for each load
#pragma unroll
    for (int i = 0; i < 16; i++) {
      f.a[i / 4][i % 4] = to_tf32(__uint_as_float(f.a[i / 4][i % 4]));
      f.b[i] = to_tf32(__uint_as_float(f.b[i]));
    }
#pragma unroll
  for (int i = 0; i < 32; i++) mma<typename Multiplied<T>::type>(sum[i / 8][i % 8], f.a[i / 8], &f.b[i % 8 * 2]);
}

// Launch one block per tile of BM x BN, along x, with one warp for each 64 x 64 of the tile, and STAGES * (BM + BN) *
// ROW bytes of shared memory.
template <class T, class Out, int BM, int BN, int STAGES>
__global__ void __launch_bounds__(BM / 64 * (BN / 64) * 32)
matmul16(const T* __restrict__ a, const T* __restrict__ b, Out* __restrict__ c, int M, int N, int K) {
  constexpr int THREADS = BM / 64 * (BN / 64) * 32, WIDTH = ROW / sizeof(T), STAGE = (BM + BN) * ROW;
  extern __shared__ __align__(1024) unsigned char stages[];
  expect_whole_pieces(a, b, K);
  int2 at = tile_at<BM, BN>(blockIdx.x, M, N);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, top = warp / (BN / 64) * 64, left = warp % (BN / 64) * 64;
  int steps = (K + WIDTH - 1) / WIDTH;
  int row = threadIdx.x / 8, column = threadIdx.x % 8 * 16 / (int)sizeof(T);  // place of this thread's first piece
  const T *from_a = a + (size_t)(at.x + row) * K + column, *from_b = b + (size_t)(at.y + row) * K + column;
  auto copy = [&](int step, int stage, int part) {  // zeros after the last step keep the number of groups constant
    int k = column + step * WIDTH;
    copy_rows<BM, THREADS, 4>(stages + stage, from_a, at.x + row, M, k, K, part);
    copy_rows<BN, THREADS, 4>(stages + stage + BM * ROW, from_b, at.y + row, N, k, K, part);
    if (part < 3) return;
    copy_async_commit();
    from_a += WIDTH - (long long)BM * K;  // to the next columns of the first row
    from_b += WIDTH - (long long)BN * K;
  };
  float sum[4][8][4] = {};
  Fragments f[2];  // one is multiplied while the other is loaded
  unsigned char *rows_a = stages + top * ROW, *rows_b = stages + (BM + left) * ROW;
  int read = 0, written = (STAGES - 1) * STAGE;  // offsets of the stages that are read and written
  for (int i = 0; i < 4 * (STAGES - 1); i++) copy(i / 4, i / 4 * STAGE, i % 4);
  copy_async_wait<STAGES - 2>();
  __syncthreads();
  load_fragments(f[0], rows_a, rows_b, 0);
#pragma unroll 1
  for (int step = 0; step < steps; step++) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      copy(step + STAGES - 1, written, j);  // a quarter at a time, between the products
      if (j == 3) {  // wait until the next stage has arrived and all threads have read this one
        copy_async_wait<STAGES - 2>();
        __syncthreads();
        written = read;
        read = read + STAGE < STAGES * STAGE ? read + STAGE : 0;
      }
      load_fragments(f[(j + 1) % 2], rows_a + read, rows_b + read, (j + 1) % 4);
      multiply_fragments<T>(sum, f[j % 2]);
    }
  }
  copy_async_wait<0>();  // for the zeros after the last step as well
#pragma unroll
  for (int i = 0; i < 16; i++) {
    int down = i / 4, half = i / 2 % 2, strip = i % 2;
    int r = at.x + top + 16 * down + 8 * half + lane / 4;
    store_strip(c, r, at.y + left + 32 * strip, M, N, &sum[down][4 * strip][2 * half]);
  }
}

// ---- v3: a warpgroup that copies and two that multiply, 64 rows of a tile of 128 x BN each

// These functions pass the stages between the warpgroups. Each has two versions: for sm_90a, and an emulation, in which
// named barriers replace those in shared memory, copies by all threads replace TMA, and mma replaces wgmma.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <int STAGES> __device__ __forceinline__ void start(unsigned long long* filled, unsigned long long* emptied) {
  if (threadIdx.x < STAGES) {
    mbarrier_init(&filled[threadIdx.x], 1);
    mbarrier_init(&emptied[threadIdx.x], 8);  // one lane of each multiplying warp arrives
  }
  fence_async();
  __syncthreads();
}
template <int STAGES> __device__ __forceinline__ void wait_filled(unsigned long long* filled, int step) {
  mbarrier_wait(&filled[step % STAGES], step / STAGES % 2);
}
template <int STAGES> __device__ __forceinline__ void tell_emptied(unsigned long long* emptied, int step) {
  if (threadIdx.x % 32 == 0) mbarrier_arrive(&emptied[step % STAGES]);
}

// One thread of the copying warpgroup fills a stage once its contents of `STAGES` steps ago are no longer needed.
template <class T, int BN, int STAGES>
__device__ __forceinline__ void fill(unsigned char* stage, unsigned long long* filled, unsigned long long* emptied,
                                     int step, const TensorMap& map_a, const TensorMap& map_b, const T*, const T*,
                                     int2 at, int k, int, int, int) {
  if (threadIdx.x != 0) return;
  if (step >= STAGES) mbarrier_wait(&emptied[step % STAGES], (step / STAGES + 1) % 2);
  unsigned long long* now = &filled[step % STAGES];
  mbarrier_expect(now, (128 + BN) * ROW);
  copy_tile(stage, &map_a, k, at.x, now);
  copy_tile(stage + 128 * ROW, &map_b, k, at.y, now);
}

// sum += 64 rows at tile_a times BN rows at tile_b, asynchronously; wait_products waits for the result.
template <class T, int BN>
__device__ __forceinline__ void multiply(float* sum, unsigned char* tile_a, unsigned char* tile_b) {
  unsigned long long x = wgmma_tile(tile_a), y = wgmma_tile(tile_b);
  wgmma_fence();
#pragma unroll
  for (int j = 0; j < 4; j++) wgmma<BN, typename Multiplied<T>::type>(sum, x + 2 * j, y + 2 * j);
  wgmma_commit();
}
template <int GROUPS> __device__ __forceinline__ void wait_products() { wgmma_wait<GROUPS>(); }

#else

template <int STAGES> __device__ __forceinline__ void start(unsigned long long*, unsigned long long*) {}
template <int STAGES> __device__ __forceinline__ void wait_filled(unsigned long long*, int step) {
  named_barrier_sync(1 + step % STAGES, 384);
}
template <int STAGES> __device__ __forceinline__ void tell_emptied(unsigned long long*, int step) {
  named_barrier_arrive(1 + STAGES + step % STAGES, 384);
}

template <class T, int BN, int STAGES>
__device__ __forceinline__ void fill(unsigned char* stage, unsigned long long*, unsigned long long*, int step,
                                     const TensorMap&, const TensorMap&, const T* a, const T* b, int2 at, int k, int M,
                                     int N, int K) {
  if (step >= STAGES) named_barrier_sync(1 + STAGES + step % STAGES, 384);
  int row = threadIdx.x / 8, column = k + threadIdx.x % 8 * 16 / (int)sizeof(T);
  const T *from_a = a + (size_t)(at.x + row) * K + column, *from_b = b + (size_t)(at.y + row) * K + column;
  copy_rows<128, 128, 1>(stage, from_a, at.x + row, M, column, K, 0);
  copy_rows<BN, 128, 1>(stage + 128 * ROW, from_b, at.y + row, N, column, K, 0);
  copy_async_commit();
  copy_async_wait<0>();
  named_barrier_arrive(1 + step % STAGES, 384);
}

template <class T, int BN>
__device__ __forceinline__ void multiply(float* sum, unsigned char* tile_a, unsigned char* tile_b) {
  int lane = threadIdx.x % 32, top = threadIdx.x / 32 % 4 * 16;
#pragma unroll
  for (int i = 0; i < 4 * (BN / 16); i++) {
    int j = i / (BN / 16), left = i % (BN / 16) * 16;
    unsigned x[4], y[4];
    ldmatrix<4>(x, piece(tile_a, top + lane % 16, 2 * j + lane / 16));
    ldmatrix<4>(y, piece(tile_b, left + lane % 8 + lane / 16 * 8, 2 * j + lane / 8 % 2));
    if (sizeof(T) == 4)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        x[e] = to_tf32(__uint_as_float(x[e]));
        y[e] = to_tf32(__uint_as_float(y[e]));
      }
    mma<typename Multiplied<T>::type>(&sum[left / 2], x, y);
    mma<typename Multiplied<T>::type>(&sum[left / 2 + 4], x, y + 2);
  }
}
template <int GROUPS> __device__ __forceinline__ void wait_products() {}

#endif

// Launch at most one block of 384 threads per multiprocessor; each computes tile after tile. map_a: a in boxes of 128
// rows of ROW bytes; map_b: b in boxes of BN rows. Shared memory: STAGES (at most 7) * (128 + BN) * ROW bytes.
template <class T, class Out, int BN, int STAGES>
__global__ void __launch_bounds__(384)
matmul16_wgmma(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
               const T* __restrict__ a, const T* __restrict__ b, Out* __restrict__ c, int M, int N, int K) {
  constexpr int WIDTH = ROW / sizeof(T), STAGE = (128 + BN) * ROW;
  extern __shared__ __align__(1024) unsigned char stages[];
  __shared__ unsigned long long filled[STAGES], emptied[STAGES];
  expect_whole_pieces(a, b, K);
  int group = threadIdx.x / 128, tiles = (M + 127) / 128 * ((N + BN - 1) / BN);
  int step = 0;  // counts this block's steps over all its tiles
  start<STAGES>(filled, emptied);
  if (group == 0) {
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      int2 at = tile_at<128, BN>(tile, M, N);
      for (int k = 0; k < K; k += WIDTH, step++)
        fill<T, BN, STAGES>(stages + step % STAGES * STAGE, filled, emptied, step, map_a, map_b, a, b, at, k, M, N, K);
    }
    return;
  }
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    float sum[BN / 2] = {};
    for (int k = 0; k < K; k += WIDTH, step++) {
      unsigned char* stage = stages + step % STAGES * STAGE;
      wait_filled<STAGES>(filled, step);
      multiply<T, BN>(sum, stage + (group - 1) * 64 * ROW, stage + 128 * ROW);
      wait_products<1>();  // wait for the previous step, whose stage may then be filled again
      if (k > 0) tell_emptied<STAGES>(emptied, step - 1);
    }
    wait_products<0>();
    tell_emptied<STAGES>(emptied, step - 1);
    int2 at = tile_at<128, BN>(tile, M, N);
    int lane = threadIdx.x % 32, row = at.x + (group - 1) * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < BN / 16; i++)
      store_strip(c, row + 8 * (i % 2), at.y + 32 * (i / 2), M, N, &sum[16 * (i / 2) + 2 * (i % 2)]);
  }
}
