// what: one stable pass of a radix sort by ballots, one warp
// array x: rng.integers(0, 1 << 20, 96).astype(np.uint32)
// array y: np.zeros(96, np.uint32)
// launch: pass<<<1, 32>>>(x, y, 96, 4)
// gives y: x[np.argsort((x >> 4) & 3, kind="stable")]
extern "C" __global__ void pass(const unsigned* x, unsigned* y, int n, int shift) {
  __shared__ int start[4];
  int lane = threadIdx.x;
  if (lane < 4) {
    int count = 0;
    for (int i = 0; i < n; i++) count += (x[i] >> shift & 3) < lane;
    start[lane] = count;
  }
  __syncwarp();
  for (int i = lane; i < n; i += 32) {
    unsigned v = x[i], d = v >> shift & 3, same = ~0u;
    for (int bit = 0; bit < 2; bit++) {
      unsigned ones = __ballot_sync(~0u, d >> bit & 1);
      same &= d >> bit & 1 ? ones : ~ones;
    }
    int rank = __popc(same & ((1u << lane) - 1)), base = start[d];
    y[base + rank] = v;
    __syncwarp();
    if (rank == 0) start[d] = base + __popc(same);
    __syncwarp();
  }
}
