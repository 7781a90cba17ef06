// Shared memory in pieces smaller than its elements, as kernels with 16-bit numbers use it.
#include <cuda_bf16.h>
#define Number __nv_bfloat16

template <int BUG> __global__ void used_again(const float* x, float* y, int shift) {
  extern __shared__ float s[];
  s[threadIdx.x] = x[threadIdx.x];
  if (BUG != 1) __syncthreads();
  float v = s[31 - threadIdx.x];
  if (BUG != 2) __syncthreads();
  Number* halves = (Number*)s;
  halves[threadIdx.x >> shift] = __float2bfloat16(v);
  if (BUG != 3) __syncthreads();
  y[threadIdx.x] = __bfloat162float(halves[31 - threadIdx.x]);
}

// what: shared memory is used for floats, then for 16-bit numbers
// array x: np.arange(32, dtype=f32)
// array y: zeros(32)
// launch: used_again<0><<<1, 32, 128>>>(x, y, 0)
// gives y: x

// what: two threads write one 16-bit number
// array x: np.arange(32, dtype=f32)
// array y: zeros(32)
// launch: used_again<0><<<1, 32, 128>>>(x, y, 1)
// finds: race:

// what: floats are read before they are written
// array x: np.arange(32, dtype=f32)
// array y: zeros(32)
// launch: used_again<1><<<1, 32, 128>>>(x, y, 0)
// finds: race:

// what: halves overwrite floats that are still read
// array x: np.arange(32, dtype=f32)
// array y: zeros(32)
// launch: used_again<2><<<1, 32, 128>>>(x, y, 0)
// finds: race:

// what: halves are read before they are written
// array x: np.arange(32, dtype=f32)
// array y: zeros(32)
// launch: used_again<3><<<1, 32, 128>>>(x, y, 0)
// finds: race:

struct Colour { unsigned char r, g, b; };
extern "C" __global__ void colours(const float* x, float* y, int beyond) {
  __shared__ Colour s[32];
  s[threadIdx.x].r = 1;
  s[threadIdx.x].g = (unsigned char)x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = s[31 - threadIdx.x + beyond].g;
}

// what: single bytes of structs
// array x: np.arange(32, dtype=f32)
// array y: zeros(32)
// launch: colours<<<1, 32>>>(x, y, 0)
// gives y: x[::-1]

// what: a byte of a struct beyond the end
// array x: np.arange(32, dtype=f32)
// array y: zeros(32)
// launch: colours<<<1, 32>>>(x, y, 1)
// finds: out of bounds:

// 7 bytes, and a float array of 7 bytes: the last word is not whole.
extern "C" __global__ void seven_bytes(const float* x, float* y, int beyond) {
  extern __shared__ float s[];
  __shared__ unsigned char t[7];
  unsigned char* bytes = (unsigned char*)s;
  if (threadIdx.x < 7) t[threadIdx.x] = bytes[threadIdx.x] = (unsigned char)x[threadIdx.x];
  __syncthreads();
  if (threadIdx.x < 7) y[threadIdx.x] = t[6 - threadIdx.x] + bytes[6 - threadIdx.x + beyond];
}

// what: 7 bytes of shared memory
// array x: np.arange(32, dtype=f32)
// array y: zeros(32)
// launch: seven_bytes<<<1, 32, 7>>>(x, y, 0)
// gives y: np.concatenate([2 * x[6::-1], np.zeros(25)])

// what: an eighth of 7 bytes
// array x: np.arange(32, dtype=f32)
// array y: zeros(32)
// launch: seven_bytes<<<1, 32, 7>>>(x, y, 1)
// finds: out of bounds:

extern "C" __global__ void last_word(const float* x, float* y, int i) {
  extern __shared__ float s[];
  s[i] = x[0];
  y[0] = s[i];
}

// what: the only whole float of 7 bytes
// array x: np.ones(32, f32)
// array y: zeros(1)
// launch: last_word<<<1, 1, 7>>>(x, y, 0)
// gives y: np.ones(1)

// what: a float of which 7 bytes hold only a part
// array x: np.ones(32, f32)
// array y: zeros(1)
// launch: last_word<<<1, 1, 7>>>(x, y, 1)
// finds: out of bounds:
