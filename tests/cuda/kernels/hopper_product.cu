#include <cuda_bf16.h>
#include <nanoeuler.cuh>
#include <hopper.cuh>
// c[64, 64] = a[64, K] b[64, K]^T, K a multiple of 64: one block of four warps; map_a, map_b: boxes of 64 x 64, swizzled.
extern "C" __global__ void __launch_bounds__(128) product(const __grid_constant__ TensorMap map_a,
    const __grid_constant__ TensorMap map_b, const __nv_bfloat16* a, const __nv_bfloat16* b, float* c, int K) {
  __shared__ __align__(1024) __nv_bfloat16 tile_a[64 * 64], tile_b[64 * 64];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float d[32] = {};
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  __shared__ unsigned long long full;
  if (threadIdx.x == 0) mbarrier_init(&full, 1);
  fence_async();
  __syncthreads();
  for (int k = 0; k < K; k += 64) {
    if (threadIdx.x == 0) {
      mbarrier_expect(&full, 2 * 64 * 64 * 2);
      copy_tile(tile_a, &map_a, k, 0, &full);
      copy_tile(tile_b, &map_b, k, 0, &full);
    }
    mbarrier_wait(&full, k / 64 % 2);
    wgmma_fence();
    for (int j = 0; j < 4; j++) wgmma<64, __nv_bfloat16>(d, wgmma_tile(tile_a) + 2 * j, wgmma_tile(tile_b) + 2 * j);
    wgmma_commit();
    wgmma_wait<0>();
    __syncthreads();
  }
#else
  for (int k = 0; k < K; k += 64) {
    for (int i = threadIdx.x; i < 64 * 8; i += 128) {
      copy_async<16>(&tile_a[i / 8 * 64 + (i % 8 ^ i / 8 % 8) * 8], &a[i / 8 * K + k + i % 8 * 8]);
      copy_async<16>(&tile_b[i / 8 * 64 + (i % 8 ^ i / 8 % 8) * 8], &b[i / 8 * K + k + i % 8 * 8]);
    }
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
    for (int j = 0; j < 4; j++) {
      unsigned x[4], y[4];
      int r = warp * 16 + lane % 16, piece = 2 * j + lane / 16;
      ldmatrix<4>(x, &tile_a[r * 64 + (piece ^ r % 8) * 8]);
      for (int n = 0; n < 64; n += 16) {
        int s = n + lane % 8 + lane / 16 * 8, q = 2 * j + lane / 8 % 2;
        ldmatrix<4>(y, &tile_b[s * 64 + (q ^ s % 8) * 8]);
        mma<__nv_bfloat16>(&d[n / 2], x, y);
        mma<__nv_bfloat16>(&d[n / 2 + 4], x, y + 2);
      }
    }
    __syncthreads();
  }
#endif
  for (int i = 0; i < 32; i++)
    c[(16 * warp + lane / 4 + 8 * (i / 2 % 2)) * 64 + 8 * (i / 4) + 2 * (lane % 4) + i % 2] = d[i];
}
