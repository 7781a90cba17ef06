// what: blocks fetch tile numbers from a counter, through shared memory with two barriers
// array x: normal(150)
// array y: zeros(150)
// array next: np.zeros(1, np.int32)
// launch: scale<<<2, 32>>>(x, y, next, 150)
// gives y: 3 * x
extern "C" __global__ void scale(const float* x, float* y, int* next, int n) {
  __shared__ int tile;
  while (true) {
    if (threadIdx.x == 0) tile = atomicAdd(next, 1);
    __syncthreads();
    int first = tile * 32;
    __syncthreads();
    if (first >= n) break;
    int i = first + threadIdx.x;
    if (i < n) y[i] = 3 * x[i];
  }
}
