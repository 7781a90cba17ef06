// what: the guard of a 2-d stencil forgets row 0
// array x: normal(12, 20)
// array y: zeros(12, 20)
// launch: laplace<<<(2, 2), (16, 8)>>>(x, y, 20, 12)
// finds: out of bounds | x
extern "C" __global__ void laplace(const float* x, float* y, int w, int h) {
  int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
  if (c > 0 && c < w - 1 && r < h - 1)
    y[r * w + c] = x[(r - 1) * w + c] + x[(r + 1) * w + c] + x[r * w + c - 1] + x[r * w + c + 1] - 4 * x[r * w + c];  // HERE
}
