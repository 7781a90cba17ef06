// what: a loop down to 0 with an unsigned counter
// array x: normal(24)
// array y: zeros(24)
// launch: suffix<<<1, 1>>>(x, y, 24)
// option: seconds=2
// finds: out of bounds
extern "C" __global__ void suffix(const float* x, float* y, unsigned n) {
  float sum = 0;
  for (unsigned i = n - 1; i >= 0; i--) {
    sum += x[i];  // HERE
    y[i] = sum;
  }
}
