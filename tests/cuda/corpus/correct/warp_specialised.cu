// what: warp 0 loads for three that compute; all meet at one barrier a step
// array x: ints(0, 100, 96)
// array y: np.zeros(3, np.int32)
// launch: roles<<<1, 128>>>(x, y)
// gives y: np.array([x.sum(), x.max(), x.min()])
extern "C" __global__ void roles(const int* x, int* y) {
  __shared__ int s[2][32];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, result = 0;
  for (int step = 0; step <= 3; step++) {
    if (warp == 0) {
      if (step < 3) s[step & 1][lane] = x[step * 32 + lane];
    } else if (step > 0) {
      int v = s[(step - 1) & 1][lane];
      switch (warp) {
        case 1: result += __reduce_add_sync(~0u, v); break;
        case 2: result = max(result, __reduce_max_sync(~0u, v)); break;
        default: v = __reduce_min_sync(~0u, v); result = step == 1 ? v : min(result, v);
      }
    }
    __syncthreads();
  }
  if (warp && lane == 0) y[warp - 1] = result;
}
