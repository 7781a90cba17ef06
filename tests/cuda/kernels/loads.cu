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
