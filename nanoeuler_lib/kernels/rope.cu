// Rotary position embedding (RoPE), half-split: rotate each pair (x[j], x[j + C/2]) of a vector at position t by the
// angle with cosine[t, j] and sine[t, j]. x, y, dx, dy: [vectors, C], position = vector % T; cosine, sine: [T, C/2].
// ops/reference.py, chapter 07. Each thread handles one pair: launch at least vectors * C/2 threads, fewer than 2^31.

__device__ __forceinline__ void turn(const float* x, const float* cosine, const float* sine, float* y,
                                     int vectors, int T, int C, float direction) {
  if (C % 2) __trap();  // C must be even, because a vector consists of pairs
  int pair = blockIdx.x * blockDim.x + threadIdx.x, half = C / 2;
  int vector = pair / half, j = pair % half, angle = vector % T * half + j;
  if (vector >= vectors) return;
  size_t first = (size_t)vector * C + j;
  float x1 = x[first], x2 = x[first + half];
  float c = cosine[angle], s = direction * sine[angle];
  y[first] = x1 * c - x2 * s;
  y[first + half] = x1 * s + x2 * c;
}

// y may be the same array as x, because a thread reads both numbers of its pair before it writes them.
extern "C" __global__ void rope_forward(const float* x, const float* __restrict__ cosine,
                                        const float* __restrict__ sine, float* y, int vectors, int T, int C) {
  turn(x, cosine, sine, y, vectors, T, C, 1.0f);
}

extern "C" __global__ void rope_backward(const float* dy, const float* __restrict__ cosine,
                                         const float* __restrict__ sine, float* dx, int vectors, int T, int C) {
  turn(dy, cosine, sine, dx, vectors, T, C, -1.0f);  // the transpose of a rotation is its inverse
}

// The same for many heads and both directions (1 forward, -1 backward), four pairs per thread and without a division. A
// thread keeps the cosines and sines of its position while it goes from text to text. x, y: [texts, T, pitch]. The
// first gridDim.y * C numbers of a position are its heads, one after another, so pitch is at least heads * C; the rest
// is not touched. (Treat [texts, heads, T, C] as heads times as many texts with one head each.) C is a multiple of 8
// and pitch of 4, arrays are aligned to 16 bytes; y may be the same array as x. Launch blocks of (C / 8, any height):
// along x, enough blocks for T threads along y in total; along y, one block per head; along z, any number up to
// `texts`.
extern "C" __global__ void rope_wide(const float* x, const float* __restrict__ cosine,
                                     const float* __restrict__ sine, float* y, int texts, int T, int C, int pitch,
                                     float direction) {
  if (C % 8 || pitch % 4 || 8 * blockDim.x != C) __trap();  // C must be 8 * blockDim.x, and pitch a multiple of 4
  if (((size_t)x | (size_t)cosine | (size_t)sine | (size_t)y) % 16) __trap();  // arrays must be aligned to 16 bytes
  int position = blockIdx.x * blockDim.y + threadIdx.y, half = C / 2, j = 4 * threadIdx.x;
  if (position >= T) return;
  float4 c = *(const float4*)(cosine + position * half + j), s = *(const float4*)(sine + position * half + j);
  s = make_float4(direction * s.x, direction * s.y, direction * s.z, direction * s.w);
  for (int text = blockIdx.z; text < texts; text += gridDim.z) {
    size_t first = ((size_t)text * T + position) * pitch + blockIdx.y * C + j;
    float4 a = *(const float4*)(x + first), b = *(const float4*)(x + first + half);
    *(float4*)(y + first) =
        make_float4(a.x * c.x - b.x * s.x, a.y * c.y - b.y * s.y, a.z * c.z - b.z * s.z, a.w * c.w - b.w * s.w);
    *(float4*)(y + first + half) =
        make_float4(a.x * s.x + b.x * c.x, a.y * s.y + b.y * c.y, a.z * s.z + b.z * c.z, a.w * s.w + b.w * c.w);
  }
}
