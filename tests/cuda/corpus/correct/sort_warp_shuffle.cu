// what: 32 numbers sorted in registers
// array x: normal(3, 32)
// launch: sort<<<3, 32>>>(x)
// gives x: np.sort(x, axis=1)
extern "C" __global__ void sort(float* x) {
  int lane = threadIdx.x;
  float v = x[blockIdx.x * 32 + lane];
  for (int k = 2; k <= 32; k *= 2)
    for (int j = k / 2; j; j /= 2) {
      float o = __shfl_xor_sync(~0u, v, j);
      bool up = !(lane & k), low = !(lane & j);
      v = up == low ? fminf(v, o) : fmaxf(v, o);
    }
  x[blockIdx.x * 32 + lane] = v;
}
