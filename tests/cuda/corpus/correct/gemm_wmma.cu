// what: CUDA's own names for tensor cores
// array a: ints(-3, 4, 16, 16).astype(np.float16)
// array b: ints(-3, 4, 16, 16).astype(np.float16)
// array c: zeros(16, 16)
// launch: gemm<<<1, 32>>>(a, b, c)
// gives c: a.astype(np.float32) @ b.astype(np.float32)
#include <cuda_fp16.h>
#include <nanoeuler.cuh>
extern "C" __global__ void gemm(const half* a, const half* b, float* c) {
  __shared__ __align__(32) half as[256], bs[256];
  for (int i = threadIdx.x; i < 256; i += 32) as[i] = a[i], bs[i] = b[i];
  __syncthreads();
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
  wmma::fill_fragment(fc, 0.0f);
  wmma::load_matrix_sync(fa, as, 16);
  wmma::load_matrix_sync(fb, bs, 16);
  wmma::mma_sync(fc, fa, fb, fc);
  wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}
