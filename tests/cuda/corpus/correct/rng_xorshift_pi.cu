// what: points in a circle counted, 32 states
// array state: np.arange(1, 33, dtype=np.uint32)
// array hits: np.zeros(1, np.int32)
// launch: throw_darts<<<1, 32>>>(state, hits, 3)
// gives state: xorshift(state, 6)
extern "C" __global__ void throw_darts(unsigned* state, int* hits, int n) {
  unsigned s = state[threadIdx.x];
  auto next = [&s]() -> float {
    s ^= s << 13;
    s ^= s >> 17;
    s ^= s << 5;
    return s * 2.3283064e-10f;
  };
  int inside = 0;
  while (n--) {
    float x = next(), y = next();
    inside += x * x + y * y < 1.0f;
  }
  state[threadIdx.x] = s;
  inside = __reduce_add_sync(0xffffffffu, inside);
  if (threadIdx.x == 0) *hits = inside;
}
