#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <nanoeuler.cuh>

// d = 2 (a b + c); the factors by rows or by columns, the sums by rows in memory, then by columns.
template <class T, class LayoutA, class LayoutB>
__global__ void fragments(const unsigned short* a, const unsigned short* b, const float* c, float* d) {
  __shared__ __align__(16) unsigned short sa[16 * 24], sb[16 * 24];
  for (int i = threadIdx.x; i < 256; i += 32) {
    sa[i / 16 * 24 + i % 16] = a[i];
    sb[i / 16 * 24 + i % 16] = b[i];
  }
  __syncthreads();
  wmma::fragment<wmma::matrix_a, 16, 16, 16, T, LayoutA> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, T, LayoutB> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc, fd;
  wmma::fill_fragment(fd, 3.0f);
  wmma::load_matrix_sync(fa, (const T*)sa, 24);
  wmma::load_matrix_sync(fb, (const T*)sb, 24);
  wmma::load_matrix_sync(fc, c, 16, wmma::mem_row_major);
  wmma::mma_sync(fd, fa, fb, fc);
  for (int i = 0; i < fd.num_elements; i++) fd.x[i] *= 2;
  wmma::store_matrix_sync(d, fd, 16, wmma::mem_col_major);
}
