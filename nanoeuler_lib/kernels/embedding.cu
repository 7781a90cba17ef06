// Embedding: x[position] = table[token]. tokens: [gridDim.x]; table: [V, D]; x: [gridDim.x, D]. ops/reference.py.

// One block a position.
extern "C" __global__ void embedding_forward(const int* __restrict__ tokens, const float* __restrict__ table,
                                             float* __restrict__ x, int D) {
  size_t from = (size_t)tokens[blockIdx.x] * D, to = (size_t)blockIdx.x * D;
  for (int i = threadIdx.x; i < D; i += blockDim.x) x[to + i] = table[from + i];
}

// dtable[token] = the sum of dx over the positions where the token stands, added in their order: with atomics the
// order, and the last bits with it, would change from run to run. order: the positions sorted by token (a stable
// argsort); start: [V + 1], where each token's begin in it. dx: [positions, D]; dtable: [V, D]. One block a token.
extern "C" __global__ void embedding_backward(const int* __restrict__ order, const int* __restrict__ start,
                                              const float* __restrict__ dx, float* __restrict__ dtable, int D) {
  int token = blockIdx.x;
  for (int i = threadIdx.x; i < D; i += blockDim.x) {
    float sum = 0;
    for (int k = start[token]; k < start[token + 1]; k++) sum += dx[(size_t)order[k] * D + i];
    dtable[(size_t)token * D + i] = sum;
  }
}
