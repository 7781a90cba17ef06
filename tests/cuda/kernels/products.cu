#include <nanoeuler.cuh>

// The fragments put together by hand, as the PTX ISA prints them. a: [16, 16]; b: [16, 8]; d: [16, 8].
template <class T> __global__ void product16(const unsigned short* a, const unsigned short* b, float* d) {
  int group = threadIdx.x >> 2, member = threadIdx.x % 4;
  unsigned fa[4], fb[2];
  float sum[4];
  for (int i = 0; i < 8; i++) {
    int row = i < 2 || (4 <= i && i < 6) ? group : group + 8, column = member * 2 + (i & 1) + (i >= 4 ? 8 : 0);
    unsigned bits = a[row * 16 + column];
    fa[i / 2] = i % 2 ? fa[i / 2] | bits << 16 : bits;
  }
  for (int i = 0; i < 4; i++) {
    unsigned bits = b[(member * 2 + (i & 1) + (i >= 2 ? 8 : 0)) * 8 + group];
    fb[i / 2] = i % 2 ? fb[i / 2] | bits << 16 : bits;
  }
  for (int i = 0; i < 4; i++) sum[i] = d[(i < 2 ? group : group + 8) * 8 + member * 2 + (i & 1)];
  mma<T>(sum, fa, fb);
  for (int i = 0; i < 4; i++) d[(i < 2 ? group : group + 8) * 8 + member * 2 + (i & 1)] = sum[i];
}

// a: [16, 8]; b: [8, 8]; d: [16, 8].
extern "C" __global__ void product8(const float* a, const float* b, float* d) {
  int group = threadIdx.x >> 2, member = threadIdx.x % 4;
  unsigned fa[4], fb[2];
  float sum[4];
  for (int i = 0; i < 4; i++)
    fa[i] = to_tf32(a[(i % 2 ? group + 8 : group) * 8 + (i < 2 ? member : member + 4)]);
  for (int i = 0; i < 2; i++) fb[i] = to_tf32(b[(i ? member + 4 : member) * 8 + group]);
  for (int i = 0; i < 4; i++) sum[i] = d[(i < 2 ? group : group + 8) * 8 + member * 2 + (i & 1)];
  mma<tf32>(sum, fa, fb);
  for (int i = 0; i < 4; i++) d[(i < 2 ? group : group + 8) * 8 + member * 2 + (i & 1)] = sum[i];
}

extern "C" __global__ void rounds(const float* x, unsigned* y) {
  int i = blockIdx.x * 32 + threadIdx.x;
  y[i] = to_tf32(x[i]);
}
