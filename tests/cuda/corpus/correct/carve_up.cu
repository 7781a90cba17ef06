// what: dynamic memory for doubles, floats, ints and bytes, the widest first
// array x: normal(40)
// array y: np.zeros(40)
// launch: mixed<<<1, 40, 40 * 17>>>(x, y)
// gives y ~ 1e-6: (2 * x + np.arange(40) + 1)[::-1]
extern "C" __global__ void mixed(const float* x, double* y) {
  extern __shared__ __align__(16) unsigned char raw[];
  int n = blockDim.x, t = threadIdx.x;
  double* d = reinterpret_cast<double*>(raw);
  float* f = reinterpret_cast<float*>(d + n);
  int* k = reinterpret_cast<int*>(f + n);
  unsigned char* b = reinterpret_cast<unsigned char*>(k + n);
  f[t] = x[t];
  k[t] = t;
  b[t] = 1;
  d[t] = 2.0 * f[t];
  __syncthreads();
  int o = n - 1 - t;
  y[t] = d[o] + k[o] + b[o];
}
