// what: rows padded by one element begin at no multiple of 16 bytes
// array a: normal(16, 16).astype(np.float16)
// array y: np.zeros(128, np.uint32)
// launch: tile<<<1, 32>>>(a, y)
// finds: 16
#include <nanoeuler.cuh>
#include <cuda_fp16.h>
extern "C" __global__ void tile(const __half* a, unsigned* y) {
  __shared__ __align__(16) __half s[16][17];
  int lane = threadIdx.x;
  for (int i = lane; i < 256; i += 32) s[i / 16][i % 16] = a[i];
  __syncwarp();
  unsigned r[4];
  ldmatrix<4>(r, &s[lane % 16][lane / 16 * 8]);  // HERE
  for (int i = 0; i < 4; i++) y[i * 32 + lane] = r[i];
}
