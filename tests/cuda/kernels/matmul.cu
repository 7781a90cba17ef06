#include <cuda_bf16.h>
#include <nanoeuler.cuh>
#define TILE 32
#define ROW 40  // numbers from one row of a tile to the next: 80 bytes, so that 8 rows of 16 bytes use different banks

// c = a b for a: [M, K], b: [K, N], c: [M, N], all multiples of 32. Four warps per block, each with 16 x 16 of the tile.
extern "C" __global__ void __launch_bounds__(128)
matmul(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c, int N, int K) {
  __shared__ __align__(16) __nv_bfloat16 as[2][TILE][ROW], bs[2][TILE][ROW];
  int row = threadIdx.x / 4, column = threadIdx.x % 4 * 8;  // this thread copies 16 bytes of each tile
  const __nv_bfloat16* from_a = a + (blockIdx.y * TILE + row) * K + column;
  const __nv_bfloat16* from_b = b + row * N + blockIdx.x * TILE + column;
  int lane = threadIdx.x % 32, top = threadIdx.x / 64 * 16, left = threadIdx.x / 32 % 2 * 16;
  float sum[2][4] = {};
  copy_async<16>(&as[0][row][column], from_a);
  copy_async<16>(&bs[0][row][column], from_b);
  copy_async_commit();
  for (int tile = 0; tile < K / TILE; tile++) {
    int next = tile + 1;
    if (next < K / TILE) {
      copy_async<16>(&as[next % 2][row][column], from_a + next * TILE);
      copy_async<16>(&bs[next % 2][row][column], from_b + next * TILE * N);
    }
    copy_async_commit();
    copy_async_wait<1>();
    __syncthreads();
    for (int k = 0; k < TILE; k += 16) {
      unsigned fa[4], fb[4];
      ldmatrix<4>(fa, &as[tile % 2][top + lane % 16][k + lane / 16 * 8]);
      ldmatrix_trans<4>(fb, &bs[tile % 2][k + lane % 16][left + lane / 16 * 8]);
      mma<__nv_bfloat16>(sum[0], fa, fb);
      mma<__nv_bfloat16>(sum[1], fa, fb + 2);
    }
    __syncthreads();
  }
  for (int i = 0; i < 2; i++)
    for (int half = 0; half < 2; half++) {
      int y = blockIdx.y * TILE + top + lane / 4 + 8 * half, x = blockIdx.x * TILE + left + 8 * i + lane % 4 * 2;
      *(float2*)&c[y * N + x] = make_float2(sum[i][2 * half], sum[i][2 * half + 1]);
    }
}
