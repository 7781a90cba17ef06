// what: a mean over groups, one of which is empty
// array sum: ints(1, 99, 4)
// array count: np.array([3, 0, 2, 1], np.int32)
// launch: mean<<<1, 4>>>(sum, count)
// finds: zero
extern "C" __global__ void mean(int* sum, const int* count) {
  int g = threadIdx.x;
  sum[g] = (sum[g] + count[g] / 2) / count[g];  // HERE
}
