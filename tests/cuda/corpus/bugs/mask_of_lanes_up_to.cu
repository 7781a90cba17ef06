// what: lane 31 shifts by 32 to make the mask of the lanes up to itself
// array x: ints(0, 2, 32)
// array y: np.zeros(32, np.int32)
// launch: rank<<<1, 32>>>(x, y)
// finds: shift
extern "C" __global__ void rank(const int* x, int* y) {
  int lane = threadIdx.x & 31;
  unsigned set = __ballot_sync(0xffffffffu, x[lane]);
  unsigned upto = (1u << (lane + 1)) - 1;  // HERE
  y[lane] = __popc(set & upto);
}
