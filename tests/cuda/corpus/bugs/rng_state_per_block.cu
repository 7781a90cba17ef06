// what: all threads of a block draw from one state
// array state: np.array([1, 2], np.uint32)
// array y: np.zeros(64, np.uint32)
// launch: draw<<<2, 32>>>(state, y)
// finds: race | state
extern "C" __global__ void draw(unsigned* state, unsigned* y) {
  unsigned s = state[blockIdx.x];  // HERE
  s ^= s << 13, s ^= s >> 17, s ^= s << 5;
  state[blockIdx.x] = s;  // HERE
  y[blockIdx.x * 32 + threadIdx.x] = s * (2 * threadIdx.x + 1);
}
