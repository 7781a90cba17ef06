"""Kernels on tensor cores, for the tests that run them and the one that compiles them for every GPU."""

LOADS = r"""
#include <nanoeuler.cuh>

// x: 32 rows of 8 numbers; r: [32 lanes, N].
template <int N, bool TRANS> __global__ void loads(const unsigned short* x, unsigned* r) {
  __shared__ __align__(16) unsigned short s[32 * 8];
  for (int i = threadIdx.x; i < 32 * 8; i += 32) s[i] = x[i];
  __syncthreads();
  unsigned mine[N];
  if (TRANS) ldmatrix_trans<N>(mine, &s[threadIdx.x % (8 * N) * 8]);
  else ldmatrix<N>(mine, &s[threadIdx.x % (8 * N) * 8]);
  for (int i = 0; i < N; i++) r[threadIdx.x * N + i] = mine[i];
}
"""

PRODUCTS = r"""
#include <nanoeuler.cuh>

// The fragments put together by hand, as the PTX ISA prints them. a: [16, 16]; b: [16, 8]; d: [16, 8].
template <class T> __global__ void product16(const unsigned short* a, const unsigned short* b, float* d) {
  int group = threadIdx.x >> 2, member = threadIdx.x % 4;
  unsigned fa[4], fb[2];
  float sum[4];
  for (int i = 0; i < 8; i++) {
    int row = i < 2 || (4 <= i && i < 6) ? group : group + 8, column = member * 2 + (i & 1) + (i >= 4 ? 8 : 0);
    unsigned bits = a[row * 16 + column];
    fa[i / 2] = i % 2 ? fa[i / 2] | bits << 16 : bits;
  }
  for (int i = 0; i < 4; i++) {
    unsigned bits = b[(member * 2 + (i & 1) + (i >= 2 ? 8 : 0)) * 8 + group];
    fb[i / 2] = i % 2 ? fb[i / 2] | bits << 16 : bits;
  }
  for (int i = 0; i < 4; i++) sum[i] = d[(i < 2 ? group : group + 8) * 8 + member * 2 + (i & 1)];
  mma<T>(sum, fa, fb);
  for (int i = 0; i < 4; i++) d[(i < 2 ? group : group + 8) * 8 + member * 2 + (i & 1)] = sum[i];
}

// a: [16, 8]; b: [8, 8]; d: [16, 8].
extern "C" __global__ void product8(const float* a, const float* b, float* d) {
  int group = threadIdx.x >> 2, member = threadIdx.x % 4;
  unsigned fa[4], fb[2];
  float sum[4];
  for (int i = 0; i < 4; i++)
    fa[i] = to_tf32(a[(i % 2 ? group + 8 : group) * 8 + (i < 2 ? member : member + 4)]);
  for (int i = 0; i < 2; i++) fb[i] = to_tf32(b[(i ? member + 4 : member) * 8 + group]);
  for (int i = 0; i < 4; i++) sum[i] = d[(i < 2 ? group : group + 8) * 8 + member * 2 + (i & 1)];
  mma<tf32>(sum, fa, fb);
  for (int i = 0; i < 4; i++) d[(i < 2 ? group : group + 8) * 8 + member * 2 + (i & 1)] = sum[i];
}

extern "C" __global__ void rounds(const float* x, unsigned* y) {
  int i = blockIdx.x * 32 + threadIdx.x;
  y[i] = to_tf32(x[i]);
}
"""

FRAGMENTS = r"""
#include <nanoeuler.cuh>

// d = 2 (a b + c); the factors by rows or by columns, the sums by rows in memory, then by columns.
template <class T, class LayoutA, class LayoutB>
__global__ void fragments(const unsigned short* a, const unsigned short* b, const float* c, float* d) {
  __shared__ __align__(16) unsigned short sa[16 * 24], sb[16 * 24];
  for (int i = threadIdx.x; i < 256; i += 32) {
    sa[i / 16 * 24 + i % 16] = a[i];
    sb[i / 16 * 24 + i % 16] = b[i];
  }
  __syncthreads();
  wmma::fragment<wmma::matrix_a, 16, 16, 16, T, LayoutA> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, T, LayoutB> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc, fd;
  wmma::fill_fragment(fd, 3.0f);
  wmma::load_matrix_sync(fa, (const T*)sa, 24);
  wmma::load_matrix_sync(fb, (const T*)sb, 24);
  wmma::load_matrix_sync(fc, c, 16, wmma::mem_row_major);
  wmma::mma_sync(fd, fa, fb, fc);
  for (int i = 0; i < fd.num_elements; i++) fd.x[i] *= 2;
  wmma::store_matrix_sync(d, fd, 16, wmma::mem_col_major);
}
"""
NUMBERS = {"__half": "#include <cuda_fp16.h>", "__nv_bfloat16": "#include <cuda_bf16.h>"}
LAYOUTS = [(a, b) for a in ("row_major", "col_major") for b in ("row_major", "col_major")]


def fragment_name(number, a, b):
    return f"fragments<{number}, wmma::{a}, wmma::{b}>"


ONE_AT_A_TIME = {
    "loads": (LOADS, [f"loads<{n}, {trans}>" for n in (1, 2, 4) for trans in ("false", "true")]),
    "products": (PRODUCTS, [f"product16<{number}>" for number in NUMBERS]),
    "fragments": (
        "\n".join(NUMBERS.values()) + FRAGMENTS,
        [fragment_name(number, *layouts) for number in NUMBERS for layouts in LAYOUTS],
    ),
}

# A matrix product: asynchronous copies one tile ahead, ldmatrix, mma.
MATMUL = r"""
#include <cuda_bf16.h>
#include <nanoeuler.cuh>
#define TILE 32
#define ROW 40  // numbers from one row of a tile to the next: 80 bytes, so that 8 rows of 16 bytes meet in no bank

// c = a b for a: [M, K], b: [K, N], c: [M, N], all multiples of 32. Four warps a block, 16 x 16 of its tile each.
extern "C" __global__ void __launch_bounds__(128)
matmul(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c, int N, int K) {
  __shared__ __align__(16) __nv_bfloat16 as[2][TILE][ROW], bs[2][TILE][ROW];
  int row = threadIdx.x / 4, column = threadIdx.x % 4 * 8;  // what this thread copies: 16 bytes of either tile
  const __nv_bfloat16* from_a = a + (blockIdx.y * TILE + row) * K + column;
  const __nv_bfloat16* from_b = b + row * N + blockIdx.x * TILE + column;
  int lane = threadIdx.x % 32, top = threadIdx.x / 64 * 16, left = threadIdx.x / 32 % 2 * 16;
  float sum[2][4] = {};
  copy_async<16>(&as[0][row][column], from_a);
  copy_async<16>(&bs[0][row][column], from_b);
  copy_async_commit();
  for (int tile = 0; tile < K / TILE; tile++) {
    int next = tile + 1;
    if (next < K / TILE) {
      copy_async<16>(&as[next % 2][row][column], from_a + next * TILE);
      copy_async<16>(&bs[next % 2][row][column], from_b + next * TILE * N);
    }
    copy_async_commit();
    copy_async_wait<1>();
    __syncthreads();
    for (int k = 0; k < TILE; k += 16) {
      unsigned fa[4], fb[4];
      ldmatrix<4>(fa, &as[tile % 2][top + lane % 16][k + lane / 16 * 8]);
      ldmatrix_trans<4>(fb, &bs[tile % 2][k + lane % 16][left + lane / 16 * 8]);
      mma<__nv_bfloat16>(sum[0], fa, fb);
      mma<__nv_bfloat16>(sum[1], fa, fb + 2);
    }
    __syncthreads();
  }
  for (int i = 0; i < 2; i++)
    for (int half = 0; half < 2; half++) {
      int y = blockIdx.y * TILE + top + lane / 4 + 8 * half, x = blockIdx.x * TILE + left + 8 * i + lane % 4 * 2;
      *(float2*)&c[y * N + x] = make_float2(sum[i][2 * half], sum[i][2 * half + 1]);
    }
}
"""

# Shared memory in pieces smaller than its elements, as kernels with 16-bit numbers use it.
PIECES = r"""
#include <cuda_bf16.h>
#define Number __nv_bfloat16

extern "C" __global__ void used_again(const float* x, float* y, int shift) {
  extern __shared__ float s[];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  float v = s[31 - threadIdx.x];
  __syncthreads();
  Number* halves = (Number*)s;
  halves[threadIdx.x >> shift] = __float2bfloat16(v);
  __syncthreads();
  y[threadIdx.x] = __bfloat162float(halves[31 - threadIdx.x]);
}
struct Colour { unsigned char r, g, b; };
extern "C" __global__ void colours(const float* x, float* y, int beyond) {
  __shared__ Colour s[32];
  s[threadIdx.x].r = 1;
  s[threadIdx.x].g = (unsigned char)x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = s[31 - threadIdx.x + beyond].g;
}
// 7 bytes, and a float array of 7 bytes: the last word is not whole.
extern "C" __global__ void seven_bytes(const float* x, float* y, int beyond) {
  extern __shared__ float s[];
  __shared__ unsigned char t[7];
  unsigned char* bytes = (unsigned char*)s;
  if (threadIdx.x < 7) t[threadIdx.x] = bytes[threadIdx.x] = (unsigned char)x[threadIdx.x];
  __syncthreads();
  if (threadIdx.x < 7) y[threadIdx.x] = t[6 - threadIdx.x] + bytes[6 - threadIdx.x + beyond];
}
extern "C" __global__ void last_word(const float* x, float* y, int i) {
  extern __shared__ float s[];
  s[i] = x[0];
  y[0] = s[i];
}
"""
