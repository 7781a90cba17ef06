// Embedding: x[position] = table[tokens[position]]. tokens: [n]; table: [V, D]; x: [n, D]. ops/reference.py.
#include <nanoeuler.cuh>
#include <wide.cuh>

#define AT_ONCE 8  // loads that each thread has in flight together
#define ROWS 9     // backward pass: rows of rare tokens that each thread has in flight together
#define DEEP 13    // backward pass: rows of one frequent token that each thread has in flight together
#define LINES 8    // cache lines of the lists that a block prefetches
#define SUMS 192   // partial sums that a block keeps when groups of threads share one frequent token
#ifndef ADD
#define ADD 0  // 1: the backward pass adds to dtable, which holds the gradient of earlier micro-batches
#endif

// Copy one row with one warp, as Numbers of 4 or 16 bytes.
template <class Number>
__device__ __forceinline__ void copy_row(const Number* __restrict__ from, Number* __restrict__ to, int width) {
  for (int first = threadIdx.x % 32; first < width; first += AT_ONCE * 32) {
    Number v[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++)
      if (first + 32 * k < width) v[k] = from[first + 32 * k];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++)
      if (first + 32 * k < width) __stcs(to + first + 32 * k, v[k]);  // streaming store: keep the table in the cache
  }
}

// One warp per position: launch blocks of a multiple of 32 threads, at least n warps in all.
extern "C" __global__ void embedding_forward(const int* __restrict__ tokens, const float* __restrict__ table,
                                             float* __restrict__ x, int n, int D) {
  if (blockDim.x % 32) __trap();  // the block must be whole warps
  int position = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (position >= n) return;
  const float* from = table + (size_t)tokens[position] * D;
  float* to = x + (size_t)position * D;
  if (D % 4 == 0 && whole_fours(D, table, x))
    copy_row((const float4*)from, (float4*)to, D / 4);
  else
    copy_row(from, to, D);
}

// dtable[token] = the sum of dx over the positions of the token. With atomics, the order of a sum, and so its last
// bits, would change from run to run. With one block per token, all would wait for the most frequent token. So the
// positions are sorted by token, and the host plans which block adds what (engine/embedding.py): a block adds all
// rows of a few rare tokens, or some columns of one frequent token. No sum is split between blocks. shares:
// [gridDim.x], as below; order: [n], the positions sorted by token (a stable argsort); sorted: [n], their tokens;
// dx: [n, D]; dtable: [V, D]. Launch one block per share, of any size up to 512. Indices have 32 bits
// (engine/program.py checks the sizes), which makes an address two instructions. Each block would wait for its small
// part of the lists, so the first blocks prefetch all of them. A share: places from to to - 1 of the sorted list,
// tokens token to end - 1. If columns is 0, all columns of all these tokens; otherwise `columns` columns of one
// token, from `left` on.
struct Share {
  int from, to, token, end, left, columns;
};

// Read K entries of a list, `step` apart; -1 for places from `end` on.
template <int K>
__device__ __forceinline__ void look_up(const int* __restrict__ list, int first, int step, int end, int (&found)[K]) {
#pragma unroll
  for (int k = 0; k < K; k++) found[k] = first + k * step < end ? list[first + k * step] : -1;
}

// Add all columns of some tokens. Each thread adds its own columns down the list and writes a sum where a token's
// places end, so threads share nothing and no row waits for a barrier. Tokens that do not occur get zeros. The
// positions of the next rows are looked up while the current rows are loaded.
template <class Number>
__device__ __forceinline__ void add_tokens(const int* __restrict__ order, const int* __restrict__ sorted, Share s,
                                           const Number* __restrict__ dx, Number* __restrict__ dtable, unsigned width) {
  for (unsigned i = threadIdx.x; i < width; i += blockDim.x) {
    Number sum = {}, zero = {};
    int position[ROWS], token[ROWS + 1], row = s.token;  // row: the next row of dtable to write
    look_up(order, s.from, 1, s.to, position);
    look_up(sorted, s.from, 1, s.to, token);
    for (int first = s.from; first < s.to; first += ROWS) {
      Number v[ROWS];
      int now[ROWS + 1];
#pragma unroll
      for (int k = 0; k < ROWS; k++)
        if (position[k] >= 0) v[k] = __ldg(dx + (position[k] * width + i));
#pragma unroll
      for (int k = 0; k <= ROWS; k++) now[k] = token[k];
      look_up(order, first + ROWS, 1, s.to, position);
      look_up(sorted, first + ROWS, 1, s.to, token);
#pragma unroll
      for (int k = 0; k < ROWS; k++) {
        if (now[k] < 0) break;
        add_to(sum, v[k]);
        if (now[k] == now[k + 1]) continue;
        Number* to = dtable + (now[k] * width + i);
        if (ADD) add_to(sum, *to);
        *to = sum;
        sum = zero;
#pragma unroll 1  // unrolling would double the code
        for (; !ADD && row < now[k]; row++) dtable[row * width + i] = zero;
        row = now[k] + 1;
      }
    }
#pragma unroll 1
    for (; !ADD && row < s.end; row++) dtable[row * width + i] = zero;
  }
}

// Add some columns of one token: groups of threads take its places in turn, then the sums of the groups are added.
template <class Number>
__device__ __forceinline__ void add_columns(const int* __restrict__ order, Share s, const Number* __restrict__ dx,
                                            Number* __restrict__ dtable, unsigned width, int left, int columns) {
  __shared__ Number sums[SUMS];
  int groups = max(1, SUMS / columns);  // independent of the block's size, so the order of a sum is too
  for (int id = threadIdx.x; id < groups * columns; id += blockDim.x) {
    int group = id / columns, column = left + id % columns, position[DEEP];
    Number sum = {};
    const Number* mine = dx + column;  // with dx + (... + column), nvcc makes the last loads wait for the first
    look_up(order, s.from + group, groups, s.to, position);
    for (int first = s.from + group; first < s.to; first += DEEP * groups) {
      Number v[DEEP];
#pragma unroll
      for (int k = 0; k < DEEP; k++)
        if (position[k] >= 0) v[k] = __ldg(mine + position[k] * width);
      look_up(order, first + DEEP * groups, groups, s.to, position);
#pragma unroll
      for (int k = 0; k < DEEP; k++)
        if (first + k * groups < s.to) add_to(sum, v[k]);
    }
    if (groups > 1) {
      sums[id] = sum;
    } else {
      Number* to = dtable + (s.token * width + column);
      if (ADD) add_to(sum, *to);
      *to = sum;
    }
  }
  if (groups == 1) return;
  __syncthreads();
  for (int id = threadIdx.x; id < columns; id += blockDim.x) {
    Number sum = sums[id], *to = dtable + (s.token * width + left + id);
    for (int group = 1; group < groups; group++) {
      Number v = sums[group * columns + id];
      add_to(sum, v);
    }
    if (ADD) add_to(sum, *to);
    *to = sum;
  }
}

extern "C" __global__ void embedding_backward(const int* __restrict__ shares, const int* __restrict__ order,
                                              const int* __restrict__ sorted, const float* __restrict__ dx,
                                              float* __restrict__ dtable, int n, int D) {
  Share s = ((const Share*)shares)[blockIdx.x];
  unsigned ahead = 32 * (LINES * blockIdx.x + threadIdx.x);  // a cache line holds 32 numbers
  if (threadIdx.x < LINES && ahead < n) prefetch_to_L2(order + ahead), prefetch_to_L2(sorted + ahead);
  if (threadIdx.x < LINES && ahead < gridDim.x * (sizeof(Share) / 4)) prefetch_to_L2(shares + ahead);
  bool wide = D % 4 == 0 && whole_fours(D, dx, dtable);
  if (s.columns && wide)
    add_columns(order, s, (const float4*)dx, (float4*)dtable, D / 4, s.left / 4, s.columns / 4);
  else if (s.columns)
    add_columns(order, s, dx, dtable, D, s.left, s.columns);
  else if (wide)
    add_tokens(order, sorted, s, (const float4*)dx, (float4*)dtable, D / 4);
  else
    add_tokens(order, sorted, s, dx, dtable, D);
}
