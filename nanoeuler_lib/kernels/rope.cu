// Rotary position embedding, half-split: the pair (x[j], x[j + C/2]) of a vector at position t turns by the angle whose
// cosine and sine stand at [t, j]. x, y, dx, dy: [vectors, C], position = vector % T; cosine, sine: [T, C/2].
// ops/reference.py, chapter 07. One pair a thread: launch at least vectors * C/2 of them.

__device__ __forceinline__ void turn(const float* x, const float* cosine, const float* sine, float* y,
                                     int vectors, int T, int C, float direction) {
  int pair = blockIdx.x * blockDim.x + threadIdx.x, half = C / 2;
  int vector = pair / half, j = pair % half, angle = vector % T * half + j;
  if (vector >= vectors) return;
  size_t first = (size_t)vector * C + j;
  float x1 = x[first], x2 = x[first + half];
  float c = cosine[angle], s = direction * sine[angle];
  y[first] = x1 * c - x2 * s;
  y[first + half] = x1 * s + x2 * c;
}

// y may be x: a thread reads both numbers of its pair before it writes them.
extern "C" __global__ void rope_forward(const float* x, const float* __restrict__ cosine,
                                        const float* __restrict__ sine, float* y, int vectors, int T, int C) {
  turn(x, cosine, sine, y, vectors, T, C, 1.0f);
}

extern "C" __global__ void rope_backward(const float* dy, const float* __restrict__ cosine,
                                         const float* __restrict__ sine, float* dx, int vectors, int T, int C) {
  turn(dy, cosine, sine, dx, vectors, T, C, -1.0f);  // the transpose of a rotation turns back
}
