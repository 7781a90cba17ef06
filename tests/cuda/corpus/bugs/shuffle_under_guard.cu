// what: the tail's lanes do not come to a shuffle that names all 32
// array x: normal(45)
// array y: zeros(45)
// launch: next<<<1, 64>>>(x, y, 45)
// finds: shfl
extern "C" __global__ void next(const float* x, float* y, int n) {
  int i = threadIdx.x;
  if (i < n) {
    float v = x[i];
    y[i] = v - __shfl_down_sync(0xffffffff, v, 1);  // HERE
  }
}
