// what: a counter-based generator, each thread its own stream
// array y: np.zeros(40, np.uint64)
// launch: draw<<<1, 40>>>(y, 12345)
// gives y: splitmix(12345 + np.arange(40, dtype=np.uint64))
__device__ unsigned long long mix(unsigned long long z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}
extern "C" __global__ void draw(unsigned long long* y, unsigned long long seed) { y[threadIdx.x] = mix(seed + threadIdx.x); }
