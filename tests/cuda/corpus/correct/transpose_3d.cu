// what: axes (0, 1, 2) to (2, 0, 1) on a grid of three dimensions
// array x: np.arange(105, dtype=np.int64).reshape(3, 5, 7)
// array y: np.zeros((7, 3, 5), np.int64)
// launch: permute<<<(2, 2, 3), (4, 3, 1)>>>(x, y, 3, 5, 7)
// gives y: x.transpose(2, 0, 1)
extern "C" __global__ void permute(const long long* x, long long* y, int A, int B, int C) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.y * blockDim.y + threadIdx.y, a = blockIdx.z;
  if (c >= C || b >= B) return;
  y[(c * A + a) * B + b] = x[(a * B + b) * C + c];
}
