// what: a tile is stored by all warps and read with ldmatrix at once
// array a: normal(16, 16).astype(np.float16)
// array y: np.zeros((2, 128), np.uint32)
// launch: tile<<<1, 64>>>(a, y)
// finds: race | s
#include <nanoeuler.cuh>
#include <cuda_fp16.h>
extern "C" __global__ void tile(const __half* a, unsigned* y) {
  __shared__ __align__(16) __half s[16][24];
  int t = threadIdx.x, lane = t % 32;
  for (int i = t; i < 256; i += 64) s[i / 16][i % 16] = a[i];  // HERE
  unsigned r[4];
  ldmatrix<4>(r, &s[lane % 16][lane / 16 * 8]);  // HERE
  for (int i = 0; i < 4; i++) y[t / 32 * 128 + i * 32 + lane] = r[i];
}
