// what: lane 0 prepares a value and is not among those that fetch it
// array x: np.arange(32, dtype=np.int32)
// launch: spread<<<1, 32>>>(x)
// finds: lane
extern "C" __global__ void spread(int* x) {
  int lane = threadIdx.x, value = 0;
  if (lane == 0) {
    value = x[0] * 10 + 7;
    x[0] = value;
  } else {
    value = __shfl_sync(0xfffffffe, value, 0);  // HERE
    x[lane] = value;
  }
}
