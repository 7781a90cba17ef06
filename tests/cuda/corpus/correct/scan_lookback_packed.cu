// what: flag and value of a look-back travel in one 64-bit word
// array x: ints(0, 9, 128)
// array state: np.zeros(4, np.uint64)
// array y: np.zeros(128, np.int32)
// launch: scan<<<4, 32>>>(x, state, y)
// gives y: np.cumsum(x)
extern "C" __global__ void scan(const int* x, unsigned long long* state, int* y) {
  const int lane = threadIdx.x, b = blockIdx.x;
  int v = x[b * 32 + lane];
  for (int d = 1; d < 32; d *= 2) {
    int left = __shfl_up_sync(~0u, v, d);
    v += lane >= d ? left : 0;
  }
  unsigned before = 0;
  if (lane == 31) {
    atomicExch(&state[b], (1ull << 32) | (unsigned)v);
    for (int p = b - 1; p >= 0; p--) {
      unsigned long long s;
      do s = atomicAdd(&state[p], 0ull);
      while (s == 0);
      before += (unsigned)s;
      if (s >> 32 == 2) break;
    }
    atomicExch(&state[b], (2ull << 32) | (before + (unsigned)v));
  }
  y[b * 32 + lane] = v + (int)__shfl_sync(~0u, before, 31);
}
