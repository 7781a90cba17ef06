// attention.cuh: common parts of FlashAttention's kernels: tiles in shared memory, mma fragments, powers of two.
// Chapters 27 and 28. Include fours.cuh and hopper.cuh before it.
//
// Number: __nv_bfloat16, __half or float. MODE: how to multiply. CORES: on tensor cores, float rounded to TF32. SPLIT:
// float on tensor cores in float's precision, by three products of TF32. PLAIN: float without tensor cores, on any GPU.
// A tile is ROWS rows of C numbers. A row is divided into pieces of 16 bytes. Piece p of row r is stored at the place
// of piece p ^ (r % 8), so that the pieces p of eight rows, which ldmatrix reads together, are in 32 different banks.
// (If a row has only four pieces, two rows fill the banks, and the place is p ^ (r / 2 % 4).)
#pragma once
#include <nanoeuler.cuh>

enum Mode { PLAIN, CORES, SPLIT };
template <class Number, Mode MODE> constexpr bool ROUNDED = MODE == CORES && sizeof(Number) == 4;  // round to TF32

template <class Number, int C> constexpr int PIECES = C * (int)sizeof(Number) / 16;  // pieces per row
template <class Number> constexpr int PER_PIECE = 16 / (int)sizeof(Number);          // numbers per piece
template <class Number, int C> constexpr int STEPS = PIECES<Number, C> / 2;  // mma steps along a row, two pieces each

// The index in its tile at which a piece of a row begins, counted in numbers.
template <class Number, int C> __device__ __forceinline__ int place(int row, int piece) {
  static_assert(PIECES<Number, C> % 4 == 0, "a row is 64 bytes, or a multiple");
  return row * C + (piece ^ (PIECES<Number, C> == 4 ? row / 2 % 4 : row % 8)) * PER_PIECE<Number>;
}

// ---- from global to shared memory -----------------------------------------------------------------------------

// Start to copy a tile, with THREADS threads. Row r begins at `from + r pitch`; rows from `given` on become 0.
template <class Number, int C, int ROWS, int THREADS>
__device__ __forceinline__ void load_tile(Number* tile, const Number* from, size_t pitch, int given) {
  constexpr int P = PIECES<Number, C>;
  static_assert(ROWS * P % THREADS == 0 && THREADS % P == 0, "every thread copies as many pieces, all of one column");
  int piece = threadIdx.x % P;
#pragma unroll
  for (int i = 0; i < ROWS * P / THREADS; i++) {
    int row = threadIdx.x % THREADS / P + i * (THREADS / P);
    copy_async_cg<16>(tile + place<Number, C>(row, piece), from + row * pitch + piece * PER_PIECE<Number>,
                      row < given ? 16 : 0);
  }
}

// The same for the queries of `packed` heads that share keys, position by position. Row r belongs to position
// r / packed and head r % packed, and begins at `from + (r / packed) pitch + (r % packed) width`. The tile starts with
// row `first`; rows from `limit` on become 0.
template <class Number, int C, int ROWS, int THREADS>
__device__ __forceinline__ void load_packed_tile(Number* tile, const Number* from, size_t pitch, int width, int packed,
                                                 int first, int limit) {
  constexpr int P = PIECES<Number, C>;
  static_assert(ROWS * P % THREADS == 0 && THREADS % P == 0, "every thread copies as many pieces, all of one column");
  int piece = threadIdx.x % P;
#pragma unroll
  for (int i = 0; i < ROWS * P / THREADS; i++) {
    int row = threadIdx.x / P + i * (THREADS / P), r = first + row;
    copy_async_cg<16>(tile + place<Number, C>(row, piece),
                      from + r / packed * pitch + r % packed * width + piece * PER_PIECE<Number>, r < limit ? 16 : 0);
  }
}

// Round the numbers that this thread copied by load_tile to TF32 in place, once for all warps that read them.
template <int C, int ROWS, int THREADS> __device__ __forceinline__ void round_tile(float* tile) {
  constexpr int P = PIECES<float, C>;
#pragma unroll
  for (int i = 0; i < ROWS * P / THREADS; i++) {
    uint4* p = (uint4*)(tile + place<float, C>(threadIdx.x / P + i * (THREADS / P), threadIdx.x % P));
    float4 x = *(float4*)p;
    *p = make_uint4(to_tf32(x.x), to_tf32(x.y), to_tf32(x.z), to_tf32(x.w));
  }
}

// ---- fragments (matrix.cuh lists which lane holds which numbers) -------------------------------------------------
// The argument `row` is the first of 16 rows of a tile, a multiple of 16, so that a lane's address is the one in the
// first 16 rows plus a constant.

__device__ __forceinline__ int lane_of() { return threadIdx.x % 32; }
template <class Number> __device__ __forceinline__ Number as_number(unsigned bits) { return __uint_as_float(bits); }

// d + a b without tensor cores: each lane gets its rows and columns from other lanes by shuffles. Not inlined, to keep
// the kernels' code short.
static __device__ __noinline__ float4 multiply_plain(float4 d, uint4 a, uint2 b) {
  int row = lane_of() / 4 * 4, column = lane_of() % 4 * 8;  // the lanes that hold the row, the first of two columns
#pragma unroll
  for (int k = 0; k < 8; k++) {
    float up = __uint_as_float(__shfl_sync(~0u, k < 4 ? a.x : a.z, row + k % 4));
    float down = __uint_as_float(__shfl_sync(~0u, k < 4 ? a.y : a.w, row + k % 4));
    float left = __uint_as_float(__shfl_sync(~0u, k < 4 ? b.x : b.y, column + k % 4));
    float right = __uint_as_float(__shfl_sync(~0u, k < 4 ? b.x : b.y, column + 4 + k % 4));
    d.x += up * left, d.y += up * right, d.z += down * left, d.w += down * right;
  }
  return d;
}

// Write each of N floats as the sum of two TF32s, `high` and `low`. (low may have one bit too many, the float's last.
// mma ignores it.)
template <int N> __device__ __forceinline__ void split(unsigned* high, unsigned* low, const unsigned* x) {
#pragma unroll
  for (int i = 0; i < N; i++) {
    high[i] = (x[i] + 0x1000) & 0xffffe000;
    low[i] = __float_as_uint(__uint_as_float(x[i]) - __uint_as_float(high[i]));
  }
}

// d += a b.
template <class Number, Mode MODE>
__device__ __forceinline__ void multiply(float* d, const unsigned* a, const unsigned* b) {
  if constexpr (MODE == PLAIN) {
    float4 sum = make_float4(d[0], d[1], d[2], d[3]);
    sum = multiply_plain(sum, make_uint4(a[0], a[1], a[2], a[3]), make_uint2(b[0], b[1]));
    d[0] = sum.x, d[1] = sum.y, d[2] = sum.z, d[3] = sum.w;
  } else if constexpr (sizeof(Number) == 2) {
    mma<Number>(d, a, b);
  } else if constexpr (MODE == SPLIT) {
    unsigned a_high[4], a_low[4], b_high[2], b_low[2];
    split<4>(a_high, a_low, a);
    split<2>(b_high, b_low, b);
    // The sum starts at 0, not at d: tensor cores seem to truncate (chapter 26), so the error of a long sum would grow.
    // The product of the low parts is missing: it is at most 2^-22 of the whole.
    float sum[4] = {};
    mma<tf32>(sum, a_low, b_high);
    mma<tf32>(sum, a_high, b_low);
    mma<tf32>(sum, a_high, b_high);
#pragma unroll
    for (int i = 0; i < 4; i++) d[i] += sum[i];
  } else {
    mma<tf32>(d, a, b);
  }
}

// Load rows `row` to row + 15 of a tile as fragments: a[step] has two pieces of each row. ROUNDED: to TF32.
template <class Number, Mode MODE, int C>
__device__ __forceinline__ void load_rows(unsigned (*a)[4], const Number* tile, int row) {
  int lane = lane_of();
#pragma unroll
  for (int step = 0; step < STEPS<Number, C>; step++) {
    ldmatrix<4>(a[step], tile + place<Number, C>(lane % 16, 2 * step + lane / 16) + row * C);
    if constexpr (ROUNDED<Number, MODE>)
#pragma unroll
      for (int i = 0; i < 4; i++) a[step][i] = to_tf32(as_number<Number>(a[step][i]));
  }
}

// Load two pieces of rows `row` to row + 15 of a tile as the columns of b, for a product with the tile's transpose such
// as q k^T; b[0], b[1] hold the first eight rows, b[2], b[3] the last eight.
template <class Number, int C>
__device__ __forceinline__ void load_transposed(unsigned* b, const Number* tile, int row, int step) {
  int lane = lane_of();
  ldmatrix<4>(b, tile + place<Number, C>(lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2) + row * C);
}

// as_factor rounds 16 x 16 sums, as mma leaves them (s[0]: columns 0 to 7, s[1]: 8 to 15), to the fragment a of the
// next product. add_product computes it: sum += a b, b being rows `row` to row + 15 of a tile, transposed by ldmatrix.
//
// ldmatrix cannot transpose float. But the rows of b may be in any order if the columns of a are in the same one, and
// the columns of b in any order that the function storing the sums takes into account:
//   slot t of eight rows is row 2 t, slot t + 4 is row 2 t + 1, so the sums form a fragment a without being moved;
//   slot n of sum[4 i], ..., sum[4 i + 3] is columns 32 i + 4 n, ..., 32 i + 4 n + 3, so a lane reads 16 bytes for four
//   products, and sum[4 i][j], ..., sum[4 i + 3][j] are columns 32 i + 8 (lane % 4) + 4 (j % 2), ..., + 3.
template <class Number, Mode MODE> __device__ __forceinline__ void as_factor(unsigned (*a)[4], const float (*s)[4]) {
  if constexpr (sizeof(Number) == 2) {
#pragma unroll
    for (int i = 0; i < 4; i++) a[0][i] = pack(Number(), s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]);
  } else {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        Number x = s[n][i % 2 * 2 + i / 2];
        if constexpr (MODE == CORES) a[n][i] = to_tf32(x);
        else a[n][i] = __float_as_uint(x);
      }
  }
}

template <class Number, Mode MODE, int C, int BANDS>
__device__ __forceinline__ void add_product(float (*sum)[C / 8][4], const unsigned (*a)[sizeof(Number) / 2][4],
                                            const Number* tile, int row) {
  int lane = lane_of();
  if constexpr (sizeof(Number) == 2) {
#pragma unroll
    for (int n = 0; n < C / 8; n += 2) {
      unsigned b[4];
      ldmatrix_trans<4>(b, tile + place<Number, C>(lane % 16, n + lane / 16) + row * C);
#pragma unroll
      for (int band = 0; band < BANDS; band++) {
        multiply<Number, MODE>(sum[band][n], a[band][0], b);
        multiply<Number, MODE>(sum[band][n + 1], a[band][0], b + 2);
      }
    }
  } else {
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int n = 0; n < C / 8; n += 4) {
        const Number* from = tile + row * C + 8 * half * C;
        uint4 low = *(const uint4*)(from + place<Number, C>(lane % 4 * 2, 2 * n + lane / 4));
        uint4 high = *(const uint4*)(from + place<Number, C>(lane % 4 * 2 + 1, 2 * n + lane / 4));
        unsigned b[4][2] = {{low.x, high.x}, {low.y, high.y}, {low.z, high.z}, {low.w, high.w}};
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
          for (int band = 0; band < BANDS; band++) multiply<Number, MODE>(sum[band][n + j], a[band][half], b[j]);
      }
  }
}

// ---- Hopper: four warps multiply 64 rows together ------------------------------------------------------------------
// wgmma reads tiles of 64 columns, so a wider tile consists of several, one after the other. The products go on while
// the warps compute. On other GPUs, and in the checker, each warp multiplies its 16 rows by mma, at once.

constexpr int COLUMNS = 64;

// Start s = own tile^T: the warpgroup's 64 rows of a tile of ROWS, from `own` on, and the KEYS rows of another tile.
template <class Number, int C, int KEYS = 64, int ROWS = 64>
__device__ __forceinline__ void start_scores(float* s, const Number* own, const Number* tile) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < C / 16; step++)
    wgmma<KEYS, Number>(s, wgmma_tile(own + step / 4 * ROWS * COLUMNS) + step % 4 * 2,
                        wgmma_tile(tile + step / 4 * KEYS * COLUMNS) + step % 4 * 2, step > 0);
  wgmma_commit();
#else
  unsigned a[4], b[4];
  int lane = lane_of();
  for (int n = 0; n < KEYS; n += 16) {
    for (int i = 0; i < 8; i++) s[n / 2 + i] = 0;
    for (int step = 0; step < C / 16; step++) {
      const Number* rows = own + step / 4 * ROWS * COLUMNS + threadIdx.x / 32 % 4 * 16 * COLUMNS;
      ldmatrix<4>(a, rows + place<Number, COLUMNS>(lane % 16, step % 4 * 2 + lane / 16));
      load_transposed<Number, COLUMNS>(b, tile + step / 4 * KEYS * COLUMNS, n, step % 4);
      mma<Number>(s + n / 2, a, b);
      mma<Number>(s + n / 2 + 4, a, b + 2);
    }
  }
#endif
}

// Start sum += a tile: a in registers, KEYS rows of C columns in the tile.
template <class Number, int C, int KEYS = 64>
__device__ __forceinline__ void start_product(float* sum, unsigned (*a)[4], const Number* tile) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  wgmma_hold<C / 2>(sum);
  wgmma_hold<KEYS / 4>(a[0]);
  wgmma_fence();
#pragma unroll
  for (int n = 0; n < KEYS / 16; n++)
#pragma unroll
    for (int c = 0; c < C; c += COLUMNS)
      wgmma_of_registers<Number>(sum + c / 2, a[n], wgmma_tile(tile + KEYS * c) + 128 * n);
  wgmma_commit();
#else
  for (int c = 0; c < C; c += COLUMNS)
    for (int n = 0; n < KEYS / 16; n++)
      add_product<Number, CORES, COLUMNS, 1>((float(*)[COLUMNS / 8][4])(sum + c / 2), (unsigned(*)[1][4])a[n],
                                             tile + KEYS * c, 16 * n);
#endif
}

// Wait for the scores, or for all products; PENDING: groups of products started after the scores that may go on.
template <int PENDING, int KEYS = 64> __device__ __forceinline__ void wait_scores(float* s) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  wgmma_wait<PENDING>();
  wgmma_hold<KEYS / 2>(s);
#endif
}
template <int C, int KEYS = 64> __device__ __forceinline__ void wait_product(float* sum, unsigned (*a)[4]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  wgmma_wait<0>();
  wgmma_hold<C / 2>(sum);
  wgmma_hold<KEYS / 4>(a[0]);
#endif
}

// Round KEYS columns of a warp's sums to the fragments of the next product.
template <class Number, int KEYS = 64> __device__ __forceinline__ void as_factors(unsigned (*a)[4], const float* s) {
#pragma unroll
  for (int n = 0; n < KEYS / 16; n++) as_factor<Number, CORES>(a + n, (const float(*)[4])(s + 8 * n));
}

// 2^x with an error of at most two units in the last place; 0 if the result would be denormal.
__device__ __forceinline__ float fast_exp2(float x) {
#ifdef __CUDACC__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

// x / y with an error of at most two units in the last place.
__device__ __forceinline__ float fast_divide(float x, float y) {
#ifdef __CUDACC__
  return __fdividef(x, y);
#else
  return x / y;
#endif
}

// log2(x) with an absolute error below 1e-6, for x from 0.5 on.
__device__ __forceinline__ float fast_log2(float x) {
#ifdef __CUDACC__
  return __log2f(x);
#else
  return log2f(x);
#endif
}
