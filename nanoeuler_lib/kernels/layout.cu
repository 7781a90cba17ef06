// Copies between the layouts of the model, packed, and those of the chapters' kernels, where each array stands alone.
// engine/unfused.py. One number a thread: launch at least as many threads as numbers are copied.

// heads of packed: [B, T, pitch], its first `heads` vectors of C, and apart: [B, heads, T, C]; back: from apart to packed.
extern "C" __global__ void copy_heads(float* packed, float* apart, int B, int T, int heads, int C, int pitch, int back) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= B * heads * T * C) return;
  int c = i % C, t = i / C % T, head = i / (C * T) % heads, b = i / (C * T * heads);
  size_t at = ((size_t)b * T + t) * pitch + head * C + c;
  if (back) packed[at] = apart[i];
  else apart[i] = packed[at];
}

// `width` columns of wide: [rows, pitch], from column `first` on, and alone: [rows, width]; back: from alone to wide.
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
