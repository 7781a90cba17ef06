// what: the guard of ragged rows stands around mma
// array a: np.arange(128, dtype=np.uint32)
// array d: zeros(128)
// launch: product<<<1, 32>>>(a, d, 5)
// finds: mma
#include <nanoeuler.cuh>
extern "C" __global__ void product(const unsigned* a, float* d, int rows) {
  int lane = threadIdx.x;
  unsigned ra[4] = {a[lane], a[lane + 32], a[lane + 64], a[lane + 96]}, rb[2] = {0, 0};
  float sum[4] = {};
  if (lane / 4 < rows) {
    mma<tf32>(sum, ra, rb);  // HERE
    for (int i = 0; i < 4; i++) d[4 * lane + i] = sum[i];
  }
}
