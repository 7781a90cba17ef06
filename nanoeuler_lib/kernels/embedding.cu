// Embedding: x[position] = table[token]. tokens: [n]; table: [V, D]; x: [n, D]. ops/reference.py.
#include <wide.cuh>

#define AT_ONCE 8  // loads that a thread has on their way together
#ifndef PIECE
#define PIECE 64  // positions of the sorted list that a block of the backward pass adds
#endif
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
// So the list of positions, sorted by token, is cut into pieces of PIECE, and a block adds the rows of one piece in
// their order. A token whose positions lie in one piece is done then. Of any other each piece leaves its sum in `edges`,
// and `embedding_join` adds these, again in their order.
// tokens: [n]; order: [n], the positions sorted by token (a stable argsort); start: [V + 1], where each token's begin in
// it; dx: [n, D]; dtable: [V, D]; edges: [2 * pieces, D], for each piece the sum of a token that began before it, and of
// one that begins in it and goes on. Launch ceil(n / PIECE) blocks of any size, then V blocks of `embedding_join`.

template <class Number>
__device__ __forceinline__ void add_piece(const int* place, const int* target, int count, const Number* dx,
                                          Number* dtable, Number* edges, int width) {
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    Number sum = {};
    for (int first = 0; first < count; first += AT_ONCE) {
      Number v[AT_ONCE];
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++)
        if (first + k < count) v[k] = dx[(size_t)place[first + k] * width + i];
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++) {
        if (first + k >= count) break;
        add_to(sum, v[k]);
        int to = target[first + k];
        if (to == 0) continue;
        Number* row = to > 0 ? dtable + (size_t)(to - 1) * width : edges + (size_t)(-to - 1) * width;
        if (ADD && to > 0) add_to(sum, row[i]);
        row[i] = sum;
        sum = {};
      }
    }
  }
}

extern "C" __global__ void embedding_backward(const int* __restrict__ tokens, const int* __restrict__ order,
                                              const int* __restrict__ start, const float* __restrict__ dx,
                                              float* __restrict__ dtable, float* __restrict__ edges, int n, int D) {
  __shared__ int place[PIECE], target[PIECE];  // target: where the sum goes at this place; 0: it goes on
  int from = blockIdx.x * PIECE, to = min(n, from + PIECE);
  for (int k = from + threadIdx.x; k < to; k += blockDim.x) {
    int position = order[k], token = tokens[position], first = start[token], end = start[token + 1];
    bool last = k + 1 == end || k + 1 == to, whole = first >= from && end <= to;
    place[k - from] = position;
    target[k - from] = !last ? 0 : whole ? token + 1 : -(2 * (int)blockIdx.x + (first >= from) + 1);
  }
  __syncthreads();
  if (D % 4 == 0 && whole_fours(D, dx, dtable, edges))
    add_piece(place, target, to - from, (const float4*)dx, (float4*)dtable, (float4*)edges, D / 4);
  else
    add_piece(place, target, to - from, dx, dtable, edges, D);
}

template <class Number>
__device__ __forceinline__ void add_edges(const Number* edges, Number* row, int piece, int last, int width) {
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    Number sum = {};
    if (piece >= 0) sum = edges[(size_t)(2 * piece + 1) * width + i];
    for (int first = piece + 1; first <= last; first += AT_ONCE) {
      Number v[AT_ONCE];
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++)
        if (first + k <= last) v[k] = edges[(size_t)(2 * (first + k)) * width + i];
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++)
        if (first + k <= last) add_to(sum, v[k]);
    }
    if (ADD) add_to(sum, row[i]);
    row[i] = sum;
  }
}

// One block a token, after `embedding_backward`: adds what several pieces have left, and writes 0 (with ADD nothing) where
// a token does not occur.
extern "C" __global__ void embedding_join(const int* __restrict__ start, const float* __restrict__ edges,
                                          float* __restrict__ dtable, int D) {
  int token = blockIdx.x, from = start[token], to = start[token + 1];
  int piece = from / PIECE, last = (to - 1) / PIECE;
  if (ADD && from == to) return;
  if (from == to)
    piece = last = -1;  // no piece: the sum is 0
  else if (piece == last)
    return;  // one piece has written the row
  float* row = dtable + (size_t)token * D;
  if (D % 4 == 0 && whole_fours(D, dtable, edges))
    add_edges((const float4*)edges, (float4*)row, piece, last, D / 4);
  else
    add_edges(edges, row, piece, last, D);
}
