// Embedding: x[position] = table[token]. tokens: [n]; table: [V, D]; x: [n, D]. ops/reference.py.
#include <nanoeuler.cuh>
#include <wide.cuh>

#define AT_ONCE 8  // loads that a thread has on their way together
#define ROWS 9     // rows of several tokens that a thread of the backward pass has on their way together
#define DEEP 13    // rows of one frequent token, of which a block reads some columns
#define LINES 8    // of the lists that a block asks for ahead
#define SUMS 192   // sums that a block keeps where its threads share the places of one token
#ifndef ADD
#define ADD 0  // 1: the backward pass adds to what dtable holds, as of the micro-batches before
#endif

// A warp copies one row, as Numbers of 4 or of 16 bytes.
template <class Number>
__device__ __forceinline__ void copy_row(const Number* __restrict__ from, Number* __restrict__ to, int width) {
  for (int first = threadIdx.x % 32; first < width; first += AT_ONCE * 32) {
    Number v[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++)
      if (first + 32 * k < width) v[k] = from[first + 32 * k];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++)
      if (first + 32 * k < width) __stcs(to + first + 32 * k, v[k]);  // nobody reads it soon: the table stays in the cache
  }
}

// One warp a position: blocks are multiples of 32, with n warps in all at least.
extern "C" __global__ void embedding_forward(const int* __restrict__ tokens, const float* __restrict__ table,
                                             float* __restrict__ x, int n, int D) {
  if (blockDim.x % 32) __trap();  // the block is whole warps
  int position = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (position >= n) return;
  const float* from = table + (size_t)tokens[position] * D;
  float* to = x + (size_t)position * D;
  if (D % 4 == 0 && whole_fours(D, table, x))
    copy_row((const float4*)from, (float4*)to, D / 4);
  else
    copy_row(from, to, D);
}

// dtable[token] = the sum of dx over the positions where the token stands. With atomics the order of a sum, and the last
// bits with it, would change from run to run; with a block for each token, the most frequent one would keep all waiting.
// So the positions are sorted by token, and the host says who adds what (engine/embedding.py): a block adds all rows of a few
// rare tokens, or some columns of one frequent token. No sum is left to another block.
// shares: [gridDim.x], as below; order: [n], the positions sorted by token (a stable argsort); sorted: [n], their tokens;
// dx: [n, D]; dtable: [V, D]. The blocks may have any size up to 512. Elements are counted in 32 bits (engine/program.py refuses
// more), which makes an address two instructions.
// Each block reads a little of the lists, and waits for it: the first blocks ask for all of them at once.
// A share: the places [from, to) of the sorted list, the tokens [token, end); columns 0: all columns of all these tokens,
// else so many of one token's, from left on.
struct Share {
  int from, to, token, end, left, columns;
};

// What stands at K places of a list, `step` apart; -1 from `end` on.
template <int K>
__device__ __forceinline__ void look_up(const int* __restrict__ list, int first, int step, int end, int (&found)[K]) {
#pragma unroll
  for (int k = 0; k < K; k++) found[k] = first + k * step < end ? list[first + k * step] : -1;
}

// All columns: each thread adds its own, down the list, and writes a sum where a token's places end. Nothing is shared
// between threads: no row waits for a barrier. Tokens that do not occur get zeros. The positions of the rows that come
// next are looked up while those before are under way.
template <class Number>
__device__ __forceinline__ void add_tokens(const int* __restrict__ order, const int* __restrict__ sorted, Share s,
                                           const Number* __restrict__ dx, Number* __restrict__ dtable, unsigned width) {
  for (unsigned i = threadIdx.x; i < width; i += blockDim.x) {
    Number sum = {}, zero = {};
    int position[ROWS], token[ROWS + 1], row = s.token;  // row: the next to write
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
#pragma unroll 1  // unrolled, the code is twice as long
        for (; !ADD && row < now[k]; row++) dtable[row * width + i] = zero;
        row = now[k] + 1;
      }
    }
#pragma unroll 1
    for (; !ADD && row < s.end; row++) dtable[row * width + i] = zero;
  }
}

// Some columns of one token: groups of threads take its places in turn, then the sums of the groups are added.
template <class Number>
__device__ __forceinline__ void add_columns(const int* __restrict__ order, Share s, const Number* __restrict__ dx,
                                            Number* __restrict__ dtable, unsigned width, int left, int columns) {
  __shared__ Number sums[SUMS];
  int groups = max(1, SUMS / columns);  // the same for blocks of every size: so is the order of a sum
  for (int id = threadIdx.x; id < groups * columns; id += blockDim.x) {
    int group = id / columns, column = left + id % columns, position[DEEP];
    Number sum = {};
    const Number* mine = dx + column;  // with dx + (... + column), nvcc has the last loads wait for the first one's data
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
  unsigned ahead = 32 * (LINES * blockIdx.x + threadIdx.x);  // a line of the cache has 32 numbers
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
