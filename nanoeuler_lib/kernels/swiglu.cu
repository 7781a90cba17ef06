// SwiGLU: y = gate * sigmoid(gate) * up. All arrays: [n]. ops/reference.py, chapter 09. Any number of threads.

__device__ __forceinline__ float sigmoid(float x) {
  return 1.0f / (1.0f + __expf(-x));  // exp may reach infinity; the sigmoid is then 0, as it should be
}

extern "C" __global__ void swiglu_forward(const float* __restrict__ gate, const float* __restrict__ up,
                                          float* __restrict__ y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    y[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

extern "C" __global__ void swiglu_backward(const float* __restrict__ dy, const float* __restrict__ gate,
                                           const float* __restrict__ up, float* __restrict__ dgate,
                                           float* __restrict__ dup, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    float s = sigmoid(gate[i]), silu = gate[i] * s;
    dgate[i] = dy[i] * up[i] * (s + silu * (1.0f - s));
    dup[i] = dy[i] * silu;
  }
}
