// what: one 16 x 8 x 32 product on tensor cores, fragments by ldmatrix
// array a: bf16(ints(-4, 5, 16, 32))
// array b: bf16(ints(-4, 5, 32, 8))
// array c: zeros(16, 8)
// launch: gemm<<<1, 32>>>(a, b, c)
// gives c: widen(a) @ widen(b)
#include <cuda_bf16.h>
#include <nanoeuler.cuh>
extern "C" __global__ void gemm(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c) {
  __shared__ __align__(16) __nv_bfloat16 as[16][40], bs[32][8];
  int lane = threadIdx.x;
  for (int i = lane; i < 512; i += 32) as[i / 32][i % 32] = a[i];
  for (int i = lane; i < 256; i += 32) bs[i / 8][i % 8] = b[i];
  __syncwarp();
  float sum[4] = {0, 0, 0, 0};
  for (int k = 0; k < 32; k += 16) {
    unsigned ra[4], rb[2];
    ldmatrix<4>(ra, &as[lane % 16][k + lane / 16 * 8]);
    ldmatrix_trans<2>(rb, &bs[k + lane % 16][0]);
    mma<__nv_bfloat16>(sum, ra, rb);
  }
  for (int i = 0; i < 4; i++) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sum[i];
}
