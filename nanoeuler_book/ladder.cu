// ladder.cu: FlashAttention's forward pass on tensor cores in five steps. Chapter 27, "Further on".
//
// Compile with RUNG = 1 to 5. Each rung keeps the changes of the rungs before it:
//   1  tensor cores multiply the tiles; each lane collects its fragments in loads of 4 bytes, or of 2 for the values
//   2  the pieces of a row are swizzled, so that the rows of a fragment are in different banks
//   3  ldmatrix loads four small matrices with one instruction
//   4  copy_async copies the next tile of keys and values while the warps use this one
//   5  each warp owns two bands of 16 queries, so that a fragment of keys or values serves two products
//
// q, y: [heads, T, 64]; k, v: [heads / group, T, 64], all bfloat16; lse: [heads, T] float32. Launch (ceil(T / ROWS),
// heads) blocks of 128 threads; ROWS is 64, and 128 for rung 5. BLOCKS: blocks of a multiprocessor, which limits the
// registers of a thread.
#include <cuda_bf16.h>
#include <nanoeuler.cuh>
#ifndef BLOCKS
#define BLOCKS 1
#endif

typedef __nv_bfloat16 bf16;
constexpr int C = 64, KEYS = 64, BANDS = RUNG >= 5 ? 2 : 1, ROWS = 64 * BANDS, STAGES = RUNG >= 4 ? 2 : 1;
constexpr float LEAST = -3e38f;

// The index of number c of a tile's row. A piece is 8 numbers, 16 bytes.
__device__ __forceinline__ int place(int row, int c) {
  if (RUNG < 2) return row * C + c;
  return row * C + (c / 8 ^ row % 8) * 8 + c % 8;
}

// Copy rows first to first + COUNT - 1 of x [T, C] to a tile. Rows from T on become 0.
template <int COUNT> __device__ __forceinline__ void load_tile(bf16* tile, const bf16* x, int first, int T) {
#pragma unroll
  for (int i = 0; i < COUNT * 8; i += 128) {
    int row = (i + threadIdx.x) / 8, c = threadIdx.x % 8 * 8;
    bf16* to = tile + place(row, c);
    const bf16* from = x + (size_t)(first + row) * C + c;
    if (RUNG >= 4) copy_async_cg<16>(to, from, first + row < T ? 16 : 0);
    else *(uint4*)to = first + row < T ? *(const uint4*)from : make_uint4(0, 0, 0, 0);
  }
}

// Wait until all copies of this block have arrived, so that all threads can read them.
__device__ __forceinline__ void arrive() {
  if (RUNG >= 4) {
    copy_async_commit();
    copy_async_wait<0>();
  }
  __syncthreads();
}

__device__ __forceinline__ unsigned pair(bf16 low, bf16 high) {
  __nv_bfloat162 both = {low, high};
  return *(unsigned*)&both;
}

// The fragment of the factor A of mma: rows `row` to row + 15 of a tile, columns c to c + 15.
__device__ __forceinline__ void load_queries(unsigned* a, const bf16* tile, int row, int c) {
  int lane = threadIdx.x % 32;
  if (RUNG >= 3) return ldmatrix<4>(a, tile + place(row + lane % 16, c + lane / 16 * 8));
#pragma unroll
  for (int i = 0; i < 4; i++)
    a[i] = *(const unsigned*)(tile + place(row + lane / 4 + i % 2 * 8, c + 2 * (lane % 4) + i / 2 * 8));
}

// Fragments of two factors B, for scores: columns c to c + 15 of keys `row` to row + 7,
// and of keys row + 8 to row + 15.
__device__ __forceinline__ void load_keys(unsigned* b, const bf16* tile, int row,
                                          int c) {
  int lane = threadIdx.x % 32;
  if (RUNG >= 3) {
    int up = row + lane % 8 + lane / 16 * 8, left = c + lane / 8 % 2 * 8;
    return ldmatrix<4>(b, tile + place(up, left));
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    int up = row + lane / 4 + i / 2 * 8, left = c + 2 * (lane % 4) + i % 2 * 8;
    b[i] = *(const unsigned*)(tile + place(up, left));
  }
}

// Fragments of two factors B, for outputs: values `row` to row + 15, columns c to c + 7
// and c + 8 to c + 15. The two numbers of a register are in different rows, so without
// ldmatrix_trans each needs a load of its own.
__device__ __forceinline__ void load_values(unsigned* b, const bf16* tile, int row,
                                            int c) {
  int lane = threadIdx.x % 32;
  if (RUNG >= 3)
    return ldmatrix_trans<4>(b, tile + place(row + lane % 16, c + lane / 16 * 8));
#pragma unroll
  for (int i = 0; i < 4; i++) {
    int up = row + 2 * (lane % 4) + i % 2 * 8, left = c + lane / 4 + i / 2 * 8;
    b[i] = pair(tile[place(up, left)], tile[place(up + 1, left)]);
  }
}

__device__ __forceinline__ float power_of_two(float x) {
#ifdef __CUDACC__
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(x) : "f"(x));
  return x;
#else
  return exp2f(x);
#endif
}

// One step of the online softmax for a band. A lane has two rows: half 0 and half 1.
__device__ __forceinline__ void softmax_step(float (&s)[KEYS / 8][4], float (&m)[2], float (&total)[2],
                                             float (&o)[C / 8][4], float scale) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float larger = m[half], more = 0;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) larger = fmaxf(larger, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    larger = fmaxf(larger, __shfl_xor_sync(~0u, larger, 1));
    larger = fmaxf(larger, __shfl_xor_sync(~0u, larger, 2));
    float kept = power_of_two((m[half] - larger) * scale);
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; i++)
        more += s[n][i] = power_of_two(s[n][i] * scale - larger * scale);
#pragma unroll
    for (int n = 0; n < C / 8; n++) o[n][2 * half] *= kept, o[n][2 * half + 1] *= kept;
    total[half] = total[half] * kept + more;
    m[half] = larger;
  }
}

extern "C" __global__ void __launch_bounds__(128, BLOCKS)
ladder(const bf16* q, const bf16* k, const bf16* v, bf16* y, float* lse, int T, int group, float scale) {
  // Keys, values, and from tiles[2] on the queries. Once these are in registers, the second stage takes their place.
  __shared__ __align__(128) bf16 tiles[4][KEYS * C];
  int first = blockIdx.x * ROWS, end = min(first + ROWS, T), head = blockIdx.y;
  int lane = threadIdx.x % 32, below = threadIdx.x / 32 * 16 * BANDS;  // the warp's first row of the tile
  size_t own = (size_t)head * T * C, theirs = (size_t)(head / group) * T * C;
  unsigned a[BANDS][C / 16][4], b[4];
  float m[BANDS][2], total[BANDS][2] = {}, o[BANDS][C / 8][4] = {};
  load_tile<ROWS>(tiles[2], q + own, first, T);
  if (RUNG >= 4) {
    load_tile<KEYS>(tiles[0], k + theirs, 0, T);
    load_tile<KEYS>(tiles[1], v + theirs, 0, T);
  }
  arrive();
#pragma unroll
  for (int band = 0; band < BANDS; band++) {
    m[band][0] = m[band][1] = LEAST;
#pragma unroll
    for (int c = 0; c < C; c += 16) load_queries(a[band][c / 16], tiles[2], below + 16 * band, c);
  }
  for (int start = 0; start < end; start += KEYS) {
    int next = start + KEYS, stage = start / KEYS % STAGES;
    bf16 *keys = tiles[2 * stage], *values = keys + KEYS * C;
    if (RUNG < 4) {
      __syncthreads();  // no warp reads the old tiles any more
      load_tile<KEYS>(keys, k + theirs, start, T);
      load_tile<KEYS>(values, v + theirs, start, T);
    }
    arrive();
    if (RUNG >= 4 && next < end) {
      load_tile<KEYS>(tiles[2 - 2 * stage], k + theirs, next, T);
      load_tile<KEYS>(tiles[3 - 2 * stage], v + theirs, next, T);
    }
    float s[BANDS][KEYS / 8][4] = {};
    unsigned p[BANDS][4];
#pragma unroll
    for (int n = 0; n < KEYS; n += 16)
#pragma unroll
      for (int c = 0; c < C; c += 16) {
        load_keys(b, keys, n, c);
#pragma unroll
        for (int band = 0; band < BANDS; band++) {
          mma<bf16>(s[band][n / 8], a[band][c / 16], b);
          mma<bf16>(s[band][n / 8 + 1], a[band][c / 16], b + 2);
        }
      }
#pragma unroll
    for (int band = 0; band < BANDS; band++) {
      if (start + KEYS > first + 1)  // a mixed tile; free tiles need no mask
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
          for (int i = 0; i < 4; i++)
            if (start + 8 * n + 2 * (lane % 4) + i % 2 > first + below + 16 * band + lane / 4 + i / 2 * 8)
              s[band][n][i] = LEAST;
      softmax_step(s[band], m[band], total[band], o[band], scale * 1.44269504f);
    }
#pragma unroll
    for (int n = 0; n < KEYS; n += 16) {
#pragma unroll
      for (int band = 0; band < BANDS; band++)
#pragma unroll
        for (int i = 0; i < 4; i++) {  // the weights of 16 keys lie in the lanes as a fragment of A does
          float* two = s[band][n / 8 + i / 2] + i % 2 * 2;
          p[band][i] = pair(__float2bfloat16_rn(two[0]), __float2bfloat16_rn(two[1]));
        }
#pragma unroll
      for (int c = 0; c < C; c += 16) {
        load_values(b, values, n, c);
#pragma unroll
        for (int band = 0; band < BANDS; band++) {
          mma<bf16>(o[band][c / 8], p[band], b);
          mma<bf16>(o[band][c / 8 + 1], p[band], b + 2);
        }
      }
    }
  }
#pragma unroll
  for (int band = 0; band < BANDS; band++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float all = total[band][half] + __shfl_xor_sync(~0u, total[band][half], 1);
      all += __shfl_xor_sync(~0u, all, 2);
      int row = first + below + 16 * band + 8 * half + lane / 4;
      if (row >= T) continue;
#pragma unroll
      for (int n = 0; n < C / 8; n++)
        *(unsigned*)(y + own + (size_t)row * C + 8 * n + 2 * (lane % 4)) = pair(
            __float2bfloat16_rn(o[band][n][2 * half] / all), __float2bfloat16_rn(o[band][n][2 * half + 1] / all));
      if (lane % 4 == 0) lse[(size_t)head * T + row] = scale * m[band][half] + logf(all);
    }
}
