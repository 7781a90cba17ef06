// what: positive numbers kept, in order within a block of 64, by ballots
// array x: ints(-9, 10, 64)
// array y: np.zeros(64, np.int32)
// array length: np.zeros(1, np.int32)
// launch: keep<<<1, 64>>>(x, y, length)
// gives y: np.concatenate([x[x > 0], np.zeros((x <= 0).sum(), np.int32)])
// gives length: (x > 0).sum(keepdims=True)
extern "C" __global__ void keep(const int* x, int* y, int* length) {
  __shared__ int count[2];
  int t = threadIdx.x, lane = t & 31, warp = t >> 5, v = x[t];
  unsigned set = __ballot_sync(0xffffffff, v > 0);
  if (lane == 0) count[warp] = __popc(set);
  __syncthreads();
  int at = (warp ? count[0] : 0) + __popc(set & ((1u << lane) - 1u));
  if (v > 0) y[at] = v;
  if (t == 0) *length = count[0] + count[1];
}
