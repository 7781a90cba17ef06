#include <cuda_bf16.h>
#include <nanoeuler.cuh>
#define Number __nv_bfloat16

// what: ldmatrix reads a row beyond the end
// array x: np.ones(512, np.uint16)
// array y: np.zeros(64, np.uint32)
// launch: row_beyond_the_end<<<1, 32>>>(x, y)
// finds: out of bounds: | in kernel row_beyond_the_end, block (
extern "C" __global__ void row_beyond_the_end(const Number* x, unsigned* y) {
  __shared__ __align__(16) Number s[16][16];
  for (int i = threadIdx.x; i < 256; i += 32) s[i / 16][i % 16] = x[i];
  __syncthreads();
  unsigned r[4];
  ldmatrix<4>(r, &s[0][0] + threadIdx.x * 16);  // HERE
  y[threadIdx.x] = r[0];
}

// what: ldmatrix reads other lanes' copies without a barrier
// array x: np.ones(512, np.uint16)
// array y: np.zeros(64, np.uint32)
// launch: own_row_then_no_barrier<<<1, 32>>>(x, y)
// finds: race: | in kernel own_row_then_no_barrier, block (
extern "C" __global__ void own_row_then_no_barrier(const Number* x, unsigned* y) {  // each lane names its own row
  __shared__ __align__(16) Number s[32 * 8];
  copy_async<16>(&s[8 * threadIdx.x], &x[8 * threadIdx.x]);  // HERE
  copy_async_commit();
  copy_async_wait<0>();
  unsigned r[4];
  ldmatrix<4>(r, &s[8 * threadIdx.x]);
  y[threadIdx.x] = r[0];
}

// what: rows are overwritten that other lanes' ldmatrix reads
// array x: np.ones(512, np.uint16)
// array y: np.zeros(64, np.uint32)
// launch: overwritten_too_early<<<1, 32>>>(x, y)
// finds: race: | in kernel overwritten_too_early, block (
extern "C" __global__ void overwritten_too_early(const Number* x, unsigned* y) {
  __shared__ __align__(16) Number s[16][16];
  for (int i = threadIdx.x; i < 256; i += 32) s[i / 16][i % 16] = x[i];
  __syncthreads();
  unsigned r[4];
  ldmatrix_trans<4>(r, &s[threadIdx.x % 16][threadIdx.x / 16 * 8]);
  s[threadIdx.x % 16][threadIdx.x / 16] = x[threadIdx.x];  // HERE
  y[threadIdx.x] = r[0];
}

// what: ldmatrix reads half a tile that nobody wrote
// array x: np.ones(512, np.uint16)
// array y: np.zeros(64, np.uint32)
// launch: tile_half_filled<<<1, 32>>>(x, y)
// finds: uninitialised: | in kernel tile_half_filled, block (
extern "C" __global__ void tile_half_filled(const Number* x, unsigned* y) {
  __shared__ __align__(16) Number s[16][16];
  for (int i = threadIdx.x; i < 128; i += 32) s[i / 16][i % 16] = x[i];
  __syncthreads();
  unsigned r[4];
  ldmatrix<4>(r, &s[threadIdx.x % 16][threadIdx.x / 16 * 8]);  // HERE
  y[threadIdx.x] = r[0];
}

// what: half a warp comes to mma, the other half to a barrier
// array x: np.ones(512, np.uint16)
// array y: zeros(256)
// launch: half_a_warp<<<1, 32>>>(x, y)
// finds: deadlock: | in kernel half_a_warp, block (
extern "C" __global__ void half_a_warp(const Number* x, float* y) {
  float d[4] = {};
  unsigned a[4] = {}, b[2] = {};
  if (threadIdx.x < 16)
    mma<Number>(d, a, b);  // HERE
  __syncthreads();
  y[threadIdx.x] = d[0];
}

// what: the halves of a warp meet at two products
// array x: np.ones(512, np.uint16)
// array y: zeros(256)
// launch: two_products<<<1, 32>>>(x, y)
// finds: failure: | in kernel two_products, block (
extern "C" __global__ void two_products(const Number* x, float* y) {
  float d[4] = {};
  unsigned a[4] = {}, b[2] = {};
  if (threadIdx.x < 16)
    mma<Number>(d, a, b);
  else
    mma<Number>(d, a, b);  // HERE
  y[threadIdx.x] = d[0];
}

// what: half a warp loads, the other half multiplies
// array x: np.ones(512, np.uint16)
// array y: zeros(256)
// launch: load_meets_product<<<1, 32>>>(x, y)
// finds: warp function: | in kernel load_meets_product, block (
extern "C" __global__ void load_meets_product(const Number* x, float* y) {
  __shared__ __align__(16) Number s[16 * 16];
  float d[4] = {};
  unsigned a[4] = {}, b[2] = {};
  if (threadIdx.x < 16)
    mma<Number>(d, a, b);
  else
    ldmatrix<4>(a, s);
  y[threadIdx.x] = d[0];
}

// what: ldmatrix comes before the wait for its copy
// array x: np.ones(512, np.uint16)
// array y: np.zeros(64, np.uint32)
// launch: wait_missing<<<1, 32>>>(x, y)
// finds: missing wait: | in kernel wait_missing, block (
extern "C" __global__ void wait_missing(const Number* x, unsigned* y) {
  __shared__ __align__(16) Number s[32 * 8];
  copy_async<16>(&s[8 * threadIdx.x], &x[8 * threadIdx.x]);
  copy_async_commit();
  __syncthreads();
  unsigned r[4];
  ldmatrix<4>(r, &s[8 * threadIdx.x]);  // HERE
  copy_async_wait<0>();
  y[threadIdx.x] = r[0];
}

// what: ldmatrix of rows in global memory
// array x: np.ones(512, np.uint16)
// array y: np.zeros(64, np.uint32)
// launch: rows_in_global_memory<<<1, 32>>>(x, y)
// finds: failure: | in kernel rows_in_global_memory, block (
extern "C" __global__ void rows_in_global_memory(const Number* x, unsigned* y) {
  unsigned r[4];
  ldmatrix<4>(r, &x[8 * threadIdx.x]);  // HERE
  y[threadIdx.x] = r[0];
}

// what: an asynchronous copy to global memory
// array x: np.ones(512, np.uint16)
// array y: np.zeros(64, np.uint32)
// launch: copy_within_global<<<1, 32>>>(x, y)
// finds: failure: | in kernel copy_within_global, block (
extern "C" __global__ void copy_within_global(Number* x, unsigned* y) {
  copy_async<16>(&y[4 * (threadIdx.x % 8)], &x[8 * threadIdx.x]);  // HERE
  copy_async_commit();
  copy_async_wait<0>();
}

// what: an asynchronous copy of 16 bytes to a place at no multiple of 16
// array x: np.ones(512, np.uint16)
// array y: np.zeros(64, np.uint32)
// launch: copy_to_a_misaligned_place<<<1, 32>>>(x, y)
// finds: misaligned: | in kernel copy_to_a_misaligned_place, block (
extern "C" __global__ void copy_to_a_misaligned_place(const Number* x, unsigned* y) {
  __shared__ __align__(16) Number s[32 * 9];
  copy_async<16>(&s[9 * threadIdx.x], &x[8 * threadIdx.x]);  // HERE
  copy_async_commit();
  copy_async_wait<0>();
}

// what: a fragment is stored with a stride too large
// array x: np.ones(512, np.uint16)
// array y: zeros(256)
// launch: stored_beyond_the_end<<<1, 32>>>(x, y)
// finds: out of bounds: | in kernel stored_beyond_the_end, block (
extern "C" __global__ void stored_beyond_the_end(const Number* x, float* y) {
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  wmma::fill_fragment(sum, 0.0f);
  wmma::store_matrix_sync(y, sum, 17, wmma::mem_row_major);  // HERE
}
