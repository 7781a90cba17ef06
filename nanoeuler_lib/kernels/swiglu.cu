// SwiGLU: y = gate * sigmoid(gate) * up. All arrays: [n]. ops/reference.py, chapter 09. Launch any number of threads.
#include <wide.cuh>

__device__ __forceinline__ float sigmoid(float x) {
  return 1.0f / (1.0f + __expf(-x));  // if exp overflows to infinity, the result is 0, which is correct
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

// Both kernels again, for speed with four elements at a time; the computation for one element is a function.

__device__ __forceinline__ float glu(float gate, float up) { return gate * sigmoid(gate) * up; }

__device__ __forceinline__ void glu_back(float dy, float gate, float up, float& dgate, float& dup) {
  float s = sigmoid(gate), silu = gate * s;
  dgate = dy * up * (s + silu * (1.0f - s));
  dup = dy * silu;
}

extern "C" __global__ void swiglu_forward_wide(const float* __restrict__ gate, const float* __restrict__ up,
                                               float* __restrict__ y, int n) {
  int me = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  int fours = whole_fours(n, gate, up, y);
  for (int i = me; i < fours; i += threads) {
    float4 g = ((const float4*)gate)[i], u = ((const float4*)up)[i];
    ((float4*)y)[i] = make_float4(glu(g.x, u.x), glu(g.y, u.y), glu(g.z, u.z), glu(g.w, u.w));
  }
  for (int i = 4 * fours + me; i < n; i += threads) y[i] = glu(gate[i], up[i]);
}

extern "C" __global__ void swiglu_backward_wide(const float* __restrict__ dy, const float* __restrict__ gate,
                                                const float* __restrict__ up, float* __restrict__ dgate,
                                                float* __restrict__ dup, int n) {
  int me = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  int fours = whole_fours(n, dy, gate, up, dgate, dup);
  for (int i = me; i < fours; i += threads) {
    float4 d = ((const float4*)dy)[i], g = ((const float4*)gate)[i], u = ((const float4*)up)[i], dg, du;
    glu_back(d.x, g.x, u.x, dg.x, du.x);
    glu_back(d.y, g.y, u.y, dg.y, du.y);
    glu_back(d.z, g.z, u.z, dg.z, du.z);
    glu_back(d.w, g.w, u.w, dg.w, du.w);
    ((float4*)dgate)[i] = dg;
    ((float4*)dup)[i] = du;
  }
  for (int i = 4 * fours + me; i < n; i += threads) glu_back(dy[i], gate[i], up[i], dgate[i], dup[i]);
}
