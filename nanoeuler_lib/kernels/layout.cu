// Copies between the packed arrays of the model and the separate arrays that the chapters' kernels take. Used by
// engine/unfused.py. Each thread copies one number: launch at least as many threads as there are numbers to copy.

// Copy the first `heads` vectors of C numbers of packed: [B, T, pitch] to apart: [B, heads, T, C]; back: the reverse.
extern "C" __global__ void copy_heads(float* packed, float* apart, int B, int T, int heads, int C, int pitch, int back) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= B * heads * T * C) return;
  int c = i % C, t = i / C % T, head = i / (C * T) % heads, b = i / (C * T * heads);
  size_t at = ((size_t)b * T + t) * pitch + head * C + c;
  if (back) packed[at] = apart[i];
  else apart[i] = packed[at];
}

// Copy `width` columns of wide: [rows, pitch], from column `first` on, to alone: [rows, width]; back: the reverse.
extern "C" __global__ void copy_columns(float* wide, float* alone, int rows, int width, int pitch, int first, int back) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows * width) return;
  size_t at = (size_t)(i / width) * pitch + first + i % width;
  if (back) wide[at] = alone[i];
  else alone[i] = wide[at];
}

// y[i] = x[i % K]. x: [K]; y: [n].
extern "C" __global__ void repeat(const float* __restrict__ x, float* __restrict__ y, int n, int K) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i % K];
}
