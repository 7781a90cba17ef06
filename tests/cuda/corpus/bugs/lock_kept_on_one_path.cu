// what: a thread that finds nothing to do leaves with the lock in its hand
// array best: np.full(1, 3, np.int32)
// array lock: np.zeros(1, np.int32)
// array x: np.arange(4, dtype=np.int32)
// launch: improve<<<4, 1>>>(x, best, lock)
// option: seconds=2
// finds: endless
extern "C" __global__ void improve(const int* x, int* best, int* lock) {
  while (atomicCAS(lock, 0, 1)) __nanosleep(100);  // HERE
  int v = x[blockIdx.x];
  if (v < *best) {
    *best = v;
    if (v == 0) return;
  }
  __threadfence();
  atomicExch(lock, 0);
}
