// what: Conway's rule on 32 cells a word, bit by bit
// array x: rng.integers(0, 1 << 32, 8).astype(np.uint32)
// array y: np.zeros(8, np.uint32)
// launch: life<<<1, 8>>>(x, y)
// gives y: life(x)
extern "C" __global__ void life(const unsigned* x, unsigned* y) {
  int r = threadIdx.x, n = blockDim.x;
  unsigned rows[3] = {x[(r + n - 1) % n], x[r], x[(r + 1) % n]}, out = 0;
  for (int b = 0; b < 32; b++) {
    int count = 0;
    for (int k = 0; k < 3; k++) {
      count += rows[k] >> ((b + 31) & 31) & 1;
      count += rows[k] >> ((b + 1) & 31) & 1;
      if (k != 1) count += rows[k] >> b & 1;
    }
    unsigned alive = rows[1] >> b & 1;
    out |= (unsigned)(count == 3 || (alive && count == 2)) << b;
  }
  y[r] = out;
}
