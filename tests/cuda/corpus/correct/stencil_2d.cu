// what: five points with zero borders, 2-d blocks
// array x: normal(11, 19)
// array y: zeros(11, 19)
// launch: laplace<<<(2, 3), (16, 4)>>>(x, y, 19, 11)
// gives y ~ 1e-5: np.pad(x, 1)[:-2, 1:-1] + np.pad(x, 1)[2:, 1:-1] + np.pad(x, 1)[1:-1, :-2] + np.pad(x, 1)[1:-1, 2:] - 4 * x
extern "C" __global__ void laplace(const float* x, float* y, int w, int h) {
  int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
  if (c >= w || r >= h) return;
  auto at = [=](int r, int c) { return r < 0 || c < 0 || r >= h || c >= w ? 0.0f : __ldg(&x[r * w + c]); };
  y[r * w + c] = at(r - 1, c) + at(r + 1, c) + at(r, c - 1) + at(r, c + 1) - 4 * at(r, c);
}
