// matrix.cuh: tensor cores, a part of nanoeuler.cuh. The 32 lanes of a warp together hold small matrices, load them from
// shared memory and multiply them. Each function has a body in PTX for the GPU and one in C++ for the CPU.
//
//   ldmatrix<N>(r, row), ldmatrix_trans<N>(r, row)  N = 1, 2 or 4 matrices of 8 rows of 16 bytes, for r[0] to r[N - 1].
//       Lane k passes the address of row k % 8 of matrix k / 8 (lanes from 8 N on: of any row), a multiple of 16 bytes.
//       It receives 4 bytes of each matrix: numbers from E (lane % 4) of row lane / 4; with _trans (16-bit numbers
//       only), of column lane / 4. So for `a` pass rows 0 to 15 of 16 bytes, then the 16 bytes to their right.
//   mma<T>(d, a, b)  d += a b for T = __nv_bfloat16 or __half (E = 2 numbers in a register), or tf32 (E = 1):
//       a[i], 16 rows, 8 E columns: row lane / 4 + 8 (i % 2), columns from E (lane % 4 + 4 (i / 2))
//       b[i], 8 E rows, 8 columns:  rows from E (lane % 4 + 4 i), column lane / 4
//       d[i], 16 rows, 8 columns:   row lane / 4 + 8 (i / 2), column 2 (lane % 4) + i % 2
//   to_tf32(x)  the nearest number with 10 bits after the binary point; ties round away from 0. mma ignores the last 13
//       bits of a tf32.
//
// (PTX ISA, "ldmatrix" and "Matrix fragments for mma".) All 32 lanes must call a function together, by the same call in
// the text. ldmatrix and mma<__half> need compute capability 7.5, the others 8.0. Nothing here orders memory: put
// __syncthreads() or __syncwarp() between writing shared memory and ldmatrix. Products are exact, but a GPU does not specify the order and
// the precision of their sum. The CPU adds in double and rounds once: both agree bitwise if every sum is exact in float,
// as for small integers, and to about float's precision otherwise.
#pragma once

#define NE_LINE int line = __builtin_LINE()  // as a default argument: the line of the call, for the checker

struct __half;
struct __nv_bfloat16;
struct tf32;

namespace nanoeuler_runtime {
template <class T> constexpr int packed = 2;  // numbers in a register
template <> constexpr int packed<tf32> = 1;
}  // namespace runtime

#ifdef __CUDACC__

#define NE_WARP_FUNCTION __device__ __forceinline__
#define NE_TELL(address, bytes, kind)

namespace nanoeuler_runtime {
NE_WARP_FUNCTION int lane_number() {
  int lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}
}  // namespace runtime

#define NE_LDMATRIX(NAME, TRANS)                                                                                      \
  template <int N> NE_WARP_FUNCTION void NAME(unsigned* r, const void* row, NE_LINE) {                                   \
    static_assert(N == 1 || N == 2 || N == 4, "ldmatrix loads 1, 2 or 4 matrices");                                \
    unsigned from = (unsigned)__cvta_generic_to_shared(row);                                                       \
    if constexpr (N == 1)                                                                                          \
      asm volatile("ldmatrix.sync.aligned.m8n8.x1" TRANS ".shared.b16 {%0}, [%1];"                                 \
                   : "=r"(r[0]) : "r"(from) : "memory");                                                           \
    else if constexpr (N == 2)                                                                                     \
      asm volatile("ldmatrix.sync.aligned.m8n8.x2" TRANS ".shared.b16 {%0, %1}, [%2];"                             \
                   : "=r"(r[0]), "=r"(r[1]) : "r"(from) : "memory");                                               \
    else                                                                                                           \
      asm volatile("ldmatrix.sync.aligned.m8n8.x4" TRANS ".shared.b16 {%0, %1, %2, %3}, [%4];"                     \
                   : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");                       \
  }

template <class T> NE_WARP_FUNCTION void mma(float* d, const unsigned* a, const unsigned* b, NE_LINE) {
  static_assert(nanoeuler_runtime::packed<T> == 0, "mma multiplies __nv_bfloat16, __half or tf32, from compute capability 8.0 on (__half: 7.5)");
}

#if NE_ARCH >= 800

#define NE_MMA(T, SHAPE)                                                                                              \
  template <> NE_WARP_FUNCTION void mma<T>(float* d, const unsigned* a, const unsigned* b, int) {                     \
    asm volatile("mma.sync.aligned." SHAPE " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"      \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                              \
  }
NE_MMA(__nv_bfloat16, "m16n8k16.row.col.f32.bf16.bf16.f32")
NE_MMA(__half, "m16n8k16.row.col.f32.f16.f16.f32")
NE_MMA(tf32, "m16n8k8.row.col.f32.tf32.tf32.f32")

NE_WARP_FUNCTION unsigned to_tf32(float x) {
  unsigned rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
  return rounded;
}

#elif NE_ARCH >= 750  // its instruction has half as many columns of a

template <> NE_WARP_FUNCTION void mma<__half>(float* d, const unsigned* a, const unsigned* b, int) {
#pragma unroll
  for (int i = 0; i < 2; i++)
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[2 * i]), "r"(a[2 * i + 1]), "r"(b[i]));
}

#endif

#else  // on the CPU, the last lane to arrive does the work of all

#include "raw.h"

#include "bits16.h"

#define NE_WARP_FUNCTION RAW static inline
#define NE_TELL(address, bytes, kind) runtime::check_access(address, bytes, runtime::kind, line)

namespace nanoeuler_runtime {
NE_WARP_FUNCTION int lane_number() { return self()->lane; }
}  // namespace runtime

namespace runtime {

struct MatrixArgument {
  int line;
  const char* row;      // ldmatrix: the row whose address this lane passes,
  Bits16 got[8];        // the numbers that it receives,
  const char* from[8];  // and their addresses
  float* d;             // mma
  const unsigned *a, *b;
  unsigned long long path = runtime::call_path();
};

RAW static MatrixArgument* matrix_argument(void** argument, unsigned lanes, int lane) {
  auto *any = (MatrixArgument*)argument[__builtin_ctz(lanes)], *its = (MatrixArgument*)argument[lane];
  if (lanes != ~0u) runtime::fail("a matrix instruction needs all 32 lanes of a warp: some have returned or do not exist", any->line);
  if (its->line != any->line || its->path != any->path)
    runtime::fail("a warp's lanes call two different matrix instructions, or one by two different calls", its->line);
  return its;
}

template <bool TRANSPOSED> RAW void ldmatrix_lanes(void** argument, unsigned lanes) {
  for (int lane = 0; lane < 32; lane++) {
    auto* mine = matrix_argument(argument, lanes, lane);
    for (int i = 0; i < 8; i++) {  // number i % 2 of the lane's row of matrix i / 2
      int row = lane / 4, column = lane % 4 * 2 + i % 2;
      auto* names = (MatrixArgument*)argument[8 * (i / 2) + (TRANSPOSED ? column : row)];
      if (!names->row) continue;  // the instruction loads fewer matrices
      mine->from[i] = names->row + 2 * (TRANSPOSED ? row : column);
      __builtin_memcpy(&mine->got[i], mine->from[i], 2);
    }
  }
}

template <int N, bool TRANSPOSED> RAW void ldmatrix(unsigned* r, const void* row, const char* name, int line) {
  static_assert(N == 1 || N == 2 || N == 4, "ldmatrix loads 1, 2 or 4 matrices");
  bool names = self()->lane < 8 * N;
  MatrixArgument mine = {line, names ? (const char*)row : nullptr};
  if (names) runtime::check_space(row, true, line);
  if (names) runtime::check_access(row, 16, READ, line);
  runtime::warp_function(~0u, ldmatrix_lanes<TRANSPOSED>, &mine, name, line);
  for (int i = 0; i < 2 * N; i++) runtime::check_visit(mine.from[i], 2, READ, line);
  runtime::check_range(r, 4 * N, WRITE, line);
  __builtin_memcpy(r, mine.got, 4 * N);
}

RAW static inline double unpack(__half*, unsigned r, int e) { return from_half((Bits16)(r >> 16 * e)); }
RAW static inline double unpack(__nv_bfloat16*, unsigned r, int e) { return from_bfloat16((Bits16)(r >> 16 * e)); }
RAW static inline double unpack(tf32*, unsigned r, int) { return bits<float>(r & 0xffffe000u); }

template <class T> RAW void mma_lanes(void** argument, unsigned lanes) {
  enum { E = nanoeuler_runtime::packed<T>, K = 8 * E };
  double a[16][K], b[8][K];
  for (int lane = 0; lane < 32; lane++) {
    auto* mine = matrix_argument(argument, lanes, lane);
    for (int i = 0; i < 4; i++)
      for (int e = 0; e < E; e++) {
        a[lane / 4 + 8 * (i % 2)][E * (lane % 4 + 4 * (i / 2)) + e] = unpack((T*)nullptr, mine->a[i], e);
        if (i < 2) b[lane / 4][E * (lane % 4 + 4 * i) + e] = unpack((T*)nullptr, mine->b[i], e);
      }
  }
  for (int lane = 0; lane < 32; lane++)
    for (int i = 0; i < 4; i++) {
      float* d = &((MatrixArgument*)argument[lane])->d[i];
      const double *row = a[lane / 4 + 8 * (i / 2)], *column = b[2 * (lane % 4) + i % 2];
      *d = (float)runtime::dot(*d, row, column, K);
    }
}

}  // namespace runtime

#define NE_LDMATRIX(NAME, TRANS)                                                                                      \
  template <int N> NE_WARP_FUNCTION void NAME(unsigned* r, const void* row, NE_LINE) {                                   \
    runtime::ldmatrix<N, sizeof(TRANS) != 1>(r, row, #NAME, line);                                                 \
  }

template <class T> NE_WARP_FUNCTION void mma(float* d, const unsigned* a, const unsigned* b, NE_LINE) {
  runtime::check_range(a, 16, runtime::READ, line);
  runtime::check_range(b, 8, runtime::READ, line);
  runtime::check_range(d, 16, runtime::WRITE, line);
  runtime::MatrixArgument mine = {line, nullptr, {}, {}, d, a, b};
  runtime::warp_function(~0u, runtime::mma_lanes<T>, &mine, "mma", line);
  runtime::count_flops(2 * 16 * 8 * 8 * nanoeuler_runtime::packed<T> / 32, line);
}

NE_WARP_FUNCTION unsigned to_tf32(float x) {
  unsigned u = runtime::bits<unsigned>(x);
  return (u & 0x7fffffff) > 0x7f800000 ? 0x7fffffff : (u + 0x1000) & 0xffffe000;
}

#endif

NE_LDMATRIX(ldmatrix, "")
NE_LDMATRIX(ldmatrix_trans, ".trans")

// ---- WMMA: the same under CUDA's own names, for 16 x 16 x 16 with 16-bit factors and float sums. Unlike CUDA's,
// load_matrix_sync of a factor reads only shared memory, and rows must begin at multiples of 16 bytes.

namespace wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };

template <class A, class B> constexpr bool same = false;
template <class A> constexpr bool same<A, A> = true;

// A factor: registers as mma takes them; b for columns 0 to 7, then for 8 to 15.
template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment {
  static_assert(M == 16 && N == 16 && K == 16, "a fragment is 16 x 16 x 16");
  unsigned r[4];
};
// A sum: x[0] to x[3] are d for columns 0 to 7, x[4] to x[7] for columns 8 to 15.
template <> struct fragment<accumulator, 16, 16, 16, float> {
  enum { num_elements = 8 };
  float x[num_elements];
};
typedef fragment<accumulator, 16, 16, 16, float> Sum;

NE_WARP_FUNCTION void fill_fragment(Sum& f, float value) {
  for (int i = 0; i < f.num_elements; i++) f.x[i] = value;
}

// p: start of a 16 x 16 part of a matrix whose rows (col_major: columns) are `stride` numbers apart.
template <class Use, class T, class Layout>
NE_WARP_FUNCTION void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout>& f, const T* p, unsigned stride, NE_LINE) {
  constexpr bool by_rows = same<Layout, row_major>, is_a = same<Use, matrix_a>;
  int lane = nanoeuler_runtime::lane_number(), low = lane % 8, middle = lane / 8 % 2, high = lane / 16;
  const T* row = by_rows ? p + (low + 8 * middle) * stride + 8 * high : p + (low + 8 * high) * stride + 8 * middle;
  if constexpr (by_rows == is_a) ldmatrix<4>(f.r, row, line);
  else ldmatrix_trans<4>(f.r, row, line);
}

NE_WARP_FUNCTION unsigned place(int i, unsigned stride, layout_t layout) {
  int lane = nanoeuler_runtime::lane_number(), row = lane / 4 + 8 * (i / 2 % 2), column = 2 * (lane % 4) + i % 2 + 8 * (i / 4);
  return layout == mem_row_major ? row * stride + column : column * stride + row;
}
NE_WARP_FUNCTION void load_matrix_sync(Sum& f, const float* p, unsigned stride, layout_t layout, NE_LINE) {
  for (int i = 0; i < f.num_elements; i++) {
    NE_TELL(p + place(i, stride, layout), 4, READ);
    f.x[i] = p[place(i, stride, layout)];
  }
}
NE_WARP_FUNCTION void store_matrix_sync(float* p, const Sum& f, unsigned stride, layout_t layout, NE_LINE) {
  for (int i = 0; i < f.num_elements; i++) {
    NE_TELL(p + place(i, stride, layout), 4, WRITE);
    p[place(i, stride, layout)] = f.x[i];
  }
}

template <class T, class LayoutA, class LayoutB>
NE_WARP_FUNCTION void mma_sync(Sum& d, const fragment<matrix_a, 16, 16, 16, T, LayoutA>& a,
                            const fragment<matrix_b, 16, 16, 16, T, LayoutB>& b, const Sum& c, NE_LINE) {
  for (int i = 0; i < d.num_elements; i++) d.x[i] = c.x[i];
  mma<T>(d.x, a.r, b.r, line);
  mma<T>(d.x + 4, a.r, b.r + 2, line);
}

}  // namespace wmma

#undef NE_LINE
#undef NE_LDMATRIX
#undef NE_MMA
#undef NE_TELL
#undef NE_WARP_FUNCTION
#ifndef __CUDACC__
#include "end_raw.h"
#endif
