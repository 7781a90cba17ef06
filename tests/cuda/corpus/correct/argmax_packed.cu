// what: value and place packed in 64 bits for one atomicMax
// array x: rng.integers(0, 1 << 30, 200).astype(np.uint32)
// array best: np.zeros(1, np.uint64)
// launch: argmax<<<4, 64>>>(x, best, 200)
// gives best: np.array([int(x.max()) << 32 | int(x.argmax())], np.uint64)
extern "C" __global__ void argmax(const unsigned int* x, unsigned long long int* best, const int n) {
  const int i = threadIdx.x + blockDim.x * blockIdx.x;
  if (i >= n) return;
  atomicMax(best, static_cast<unsigned long long>(x[i]) << 32 | static_cast<unsigned>(i));
}
