// Embedding: x[position] = table[token]. tokens: [n]; table: [V, D]; x: [n, D]. ops/reference.py.
#include <nanoeuler.cuh>
#include <wide.cuh>

#ifndef AT_ONCE
#define AT_ONCE 8  // loads that a thread has on their way together
#endif
#ifndef EDGES
#define EDGES 16  // so many of `edges`
#endif
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
// one that begins in it and goes on. Launch a block a piece of each kernel, ceil(n / PIECE), of whole warps.

struct Piece {  // place k of the piece is the position place[k + 1]; one place before and one behind are known, too
  int place[PIECE + 2], token[PIECE + 2], count;
};

template <class Number>
__device__ __forceinline__ void load_rows(Number* v, const Number* __restrict__ dx, const Piece& piece, int first,
                                          int width, int i) {
#pragma unroll
  for (int k = 0; k < AT_ONCE; k++)
    if (first + k < piece.count) v[k] = dx[(size_t)piece.place[first + k + 1] * width + i];
}

// The rows of places first + AT_ONCE... are on their way while those of first... are added; the first ones already while
// the tokens are looked up.
template <class Number>
__device__ __forceinline__ void add_piece(Piece& piece, const int* __restrict__ tokens, const Number* __restrict__ dx,
                                          Number* dtable, Number* edges, int width) {
  Number v[AT_ONCE], next[AT_ONCE], sum = {};
  int i = threadIdx.x, first = 0;
  if (i < width) load_rows(next, dx, piece, 0, width, i);
  for (int k = threadIdx.x; k < piece.count + 2; k += blockDim.x)
    piece.token[k] = piece.place[k] < 0 ? -1 : tokens[piece.place[k]];
  __syncthreads();
  while (i < width) {
    int now = first, column = i;
    first += AT_ONCE;
    if (first >= piece.count) first = 0, i += blockDim.x;
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) v[k] = next[k];
    if (i < width) load_rows(next, dx, piece, first, width, i);
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      if (now + k >= piece.count) break;
      add_to(sum, v[k]);
      int token = piece.token[now + k + 1];
      bool last = now + k + 1 == piece.count;
      if (!last && piece.token[now + k + 2] == token) continue;
      bool before = token == piece.token[0], behind = token == piece.token[piece.count + 1];
      Number* row = before || behind ? edges + (size_t)(2 * blockIdx.x + !before) * width : dtable + (size_t)token * width;
      if (ADD && !before && !behind) add_to(sum, row[column]);
      row[column] = sum;
      sum = {};
    }
  }
}

extern "C" __global__ void embedding_backward(const int* __restrict__ tokens, const int* __restrict__ order,
                                              const float* __restrict__ dx, float* __restrict__ dtable,
                                              float* __restrict__ edges, int n, int D) {
  __shared__ Piece piece;
  launch_dependents();
  int from = blockIdx.x * PIECE, count = min(n - from, PIECE);
  for (int k = threadIdx.x; k < count + 2; k += blockDim.x) {
    int at = from + k - 1;
    piece.place[k] = at < 0 || at >= n ? -1 : order[at];
  }
  if (threadIdx.x == 0) piece.count = count;
  __syncthreads();
  if (D % 4 == 0 && whole_fours(D, dx, dtable, edges))
    add_piece(piece, tokens, (const float4*)dx, (float4*)dtable, (float4*)edges, D / 4);
  else
    add_piece(piece, tokens, dx, dtable, edges, D);
}

template <class Number>
__device__ __forceinline__ void add_edges(const Number* edges, Number* row, int piece, int last, int width) {
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    Number sum = edges[(size_t)(2 * piece + 1) * width + i];
    for (int first = piece + 1; first <= last; first += EDGES) {
      Number v[EDGES];
#pragma unroll
      for (int k = 0; k < EDGES; k++)
        if (first + k <= last) v[k] = edges[(size_t)(2 * (first + k)) * width + i];
#pragma unroll
      for (int k = 0; k < EDGES; k++)
        if (first + k <= last) add_to(sum, v[k]);
    }
    if (ADD) add_to(sum, row[i]);
    row[i] = sum;
  }
}

// After `embedding_backward`, of which it waits for the sums alone: a block adds what several pieces have left of the token
// that begins in its piece and goes on. A warp looks at 32 tokens a turn, and writes 0 (with ADD nothing) for those that
// do not occur.
extern "C" __global__ void embedding_join(const int* __restrict__ tokens, const int* __restrict__ order,
                                          const int* __restrict__ start, const float* edges, float* dtable, int n,
                                          int V, int D) {
  if (blockDim.x % 32) __trap();  // the block is whole warps
  int from = blockIdx.x * PIECE, to = min(n, from + PIECE), token = tokens[order[to - 1]];
  int begin = start[token], end = start[token + 1];
  grid_dependency_wait();
  if (begin >= from && end > to) {
    float* row = dtable + (size_t)token * D;
    int last = (end - 1) / PIECE;
    if (D % 4 == 0 && whole_fours(D, dtable, edges))
      add_edges((const float4*)edges, (float4*)row, blockIdx.x, last, D / 4);
    else
      add_edges(edges, row, blockIdx.x, last, D);
  }
  if (ADD) return;
  int warps = gridDim.x * (blockDim.x / 32), warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  for (int first = 32 * warp; first < V; first += 32 * warps) {
    int mine = first + threadIdx.x % 32;
    unsigned absent = __ballot_sync(0xffffffff, mine < V && start[mine] == start[mine + 1]);
    for (; absent; absent &= absent - 1) {
      float* row = dtable + (size_t)(first + __ffs(absent) - 1) * D;
      for (int i = threadIdx.x % 32; i < D; i += 32) row[i] = 0;
    }
  }
}
