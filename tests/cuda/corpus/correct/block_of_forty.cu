// what: a block that is not a multiple of a warp, shuffles included
// array x: ints(0, 20, 40)
// array y: np.zeros(40, np.int32)
// launch: next<<<1, 40>>>(x, y)
// gives y: np.where(np.isin(np.arange(40), [31, 39]), x, np.roll(x, -1))
extern "C" __global__ void next(const int* x, int* y) {
  int i = threadIdx.x, lane = i & 31, last = i < 32 ? 31 : 7;
  unsigned mask = i < 32 ? 0xffffffffu : 0xffu;
  y[i] = __shfl_sync(mask, x[i], lane < last ? lane + 1 : last);
}
