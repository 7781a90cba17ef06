// what: Jacobi steps between two arrays
// array u: normal(30)
// array v: zeros(30)
// launch: step<<<1, 30>>>(u, v, 30)
// launch: step<<<1, 30>>>(v, u, 30)
// gives u ~ 1e-5: jacobi(jacobi(u))
extern "C" __global__ void step(const float* u, float* v, int n) {
  int i = threadIdx.x;
  v[i] = i == 0 || i == n - 1 ? u[i] : 0.5f * (u[i - 1] + u[i + 1]);
}
