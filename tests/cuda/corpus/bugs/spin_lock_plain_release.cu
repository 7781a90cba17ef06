// what: a lock is taken with atomicCAS and given back with a plain store, without a fence
// array total: zeros(1)
// array lock: np.zeros(1, np.int32)
// array x: normal(8)
// launch: add<<<8, 32>>>(x, total, lock)
// finds: race
extern "C" __global__ void add(const float* x, float* total, int* lock) {
  if (threadIdx.x == 0) {
    while (atomicCAS(lock, 0, 1) != 0) __nanosleep(10);  // HERE
    *total += x[blockIdx.x];  // HERE
    *lock = 0;  // HERE
  }
}
