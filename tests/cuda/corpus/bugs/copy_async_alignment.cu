// what: rows of 30 floats are copied in pieces of 16 bytes
// array x: normal(8, 30)
// array y: zeros(8)
// launch: rows<<<1, 8>>>(x, y, 30)
// finds: 16 | x
#include <nanoeuler.cuh>
extern "C" __global__ void rows(const float* x, float* y, int columns) {
  __shared__ __align__(16) float s[8][32];
  int t = threadIdx.x;
  for (int c = 0; c < 28; c += 4) copy_async<16>(&s[t][c], x + t * columns + c);  // HERE
  copy_async_commit();
  copy_async_wait<0>();
  float sum = x[t * columns + 28] + x[t * columns + 29];
  for (int c = 0; c < 28; c++) sum += s[t][c];
  y[t] = sum;
}
