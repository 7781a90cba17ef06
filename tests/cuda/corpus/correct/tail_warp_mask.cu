// what: the mask of the lanes that are there, by a ballot before the guard
// array x: ints(0, 20, 45)
// array y: np.zeros(1, np.int32)
// launch: total<<<1, 64>>>(x, y, 45)
// gives y: x.sum(keepdims=True)
extern "C" __global__ void total(const int* x, int* y, int n) {
  int i = threadIdx.x;
  unsigned mask = __ballot_sync(0xffffffffu, i < n);
  if (i < n) {
    int v = __reduce_add_sync(mask, x[i]);
    if ((i & 31) == 0) atomicAdd(y, v);
  }
}
