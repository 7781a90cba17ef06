// what: lanes leave a loop for a sum of all while others still vote in it
// array x: np.arange(32, dtype=np.int32)
// launch: collatz<<<1, 32>>>(x)
// finds: __any_sync
extern "C" __global__ void collatz(int* x) {
  int v = x[threadIdx.x] + 1, steps = 0;
  while (v != 1) {
    v = v & 1 ? 3 * v + 1 : v / 2;
    steps++;
    if (!__any_sync(0xffffffffu, v != 1)) break;  // HERE
  }
  x[threadIdx.x] = __reduce_max_sync(0xffffffffu, steps);  // HERE
}
