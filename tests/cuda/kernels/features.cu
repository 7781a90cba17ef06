#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <nanoeuler.cuh>

extern "C" __global__ void three_axes(int* y, int nx, int ny) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
  int l = blockIdx.z * blockDim.z + threadIdx.z;
  y[(l * ny + j) * nx + i] = i + 100 * j + 10000 * l;
}

extern "C" __global__ void scan(int* y) {
  int lane = threadIdx.x % 32, v = y[threadIdx.x];
  for (int o = 1; o < 32; o *= 2) {
    int u = __shfl_up_sync(0xffffffffu, v, o);
    if (lane >= o) v += u;
  }
  y[threadIdx.x] = v;
}

extern "C" __global__ void shuffles(int* y) {
  int l = threadIdx.x;
  y[l] = __shfl_sync(0xffffffffu, l, 3, 16) + 100 * __shfl_down_sync(0xffffffffu, l, 4, 16);
  y[l] += 10000 * __shfl_xor_sync(0xffffffffu, l, 5);
}

extern "C" __global__ void votes(unsigned* y) {
  unsigned l = threadIdx.x, b = __ballot_sync(0xffffffffu, l % 3 == 0), r = 0;
  if (l < 16) r = __ballot_sync(0x0000ffffu, l & 1);
  else r = __ballot_sync(0xffff0000u, l & 2);
  y[l] = b ^ r ^ __popc(b) ^ (__any_sync(0xffffffffu, l == 40) << 8) ^ (__all_sync(0xffffffffu, l < 32) << 9);
}

extern "C" __global__ void warp_reduce(int* y) {
  int v = y[threadIdx.x];
  y[threadIdx.x] = __reduce_add_sync(0xffffffffu, v) * 1000 + __reduce_max_sync(0xffffffffu, v);
}

extern "C" __global__ void atomics(const float* x, float* sum, int* largest, int* lock) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(sum, x[i]);
  atomicMax(largest, i);
  atomicCAS(lock, 0, 7);
}

__constant__ float coefficients[4] = {1, 2, 3, 4};
__device__ int counter;

template <typename T, int N> __device__ __forceinline__ T dot(const T* a, const T* b) {
  T s = 0;
#pragma unroll
  for (int i = 0; i < N; i++) s += a[i] * b[i];
  return s;
}

template <typename T, int N> __global__ void __launch_bounds__(64) polynomial(const float4* x, T* y) {
  float4 v = x[threadIdx.x];
  float a[N] = {v.x, v.y, v.z, v.w};
  atomicAdd(&counter, 1);
  y[threadIdx.x] = dot<float, N>(a, coefficients);
}

extern "C" __global__ void shared_kinds(const float* x, float* y) {
  extern __shared__ __align__(16) float d[];
  __shared__ int a[8], b;
  int i = threadIdx.x, n = __syncthreads_count(x[i] > 0);
  d[i] = x[i];
  if (i < 8) a[i] = i;
  if (i == 0) b = n;
  __syncthreads();
  y[i] = d[63 - i] + a[i % 8] + b;
}

__device__ unsigned done;
extern "C" __global__ void last_block_sums(const float* x, float* part, float* out) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    float s = 0;
    for (int i = 0; i < 100; i++) s += x[blockIdx.x * 100 + i];
    part[blockIdx.x] = s;
    __threadfence();
    last = atomicAdd(&done, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float s = 0;
    for (int i = 0; i < gridDim.x; i++) s += part[i];
    *out = s;
    done = 0;
  }
}

extern "C" __global__ void spin_lock(int* lock, int* count) {
  while (atomicCAS(lock, 0, 1) != 0) {}
  atomicAdd(count, 1);
  atomicExch(lock, 0);
}

extern "C" __global__ void prints(int* y) {
  if (threadIdx.x == 3) printf("thread %d of block %d\n", threadIdx.x, blockIdx.x);
  y[threadIdx.x] = 1;
}

extern "C" __global__ void pipeline(const float* x, float* y, int tiles) {  // copies one tile ahead
  __shared__ __align__(16) float tile[2][128];
  int t = threadIdx.x;
  copy_async<16>(&tile[0][4 * t], &x[4 * t]);
  copy_async_commit();
  for (int k = 0; k < tiles; k++) {
    if (k + 1 < tiles) copy_async<16>(&tile[(k + 1) % 2][4 * t], &x[(k + 1) * 128 + 4 * t]);
    copy_async_commit();
    copy_async_wait<1>();
    __syncthreads();
    for (int j = t; j < 128; j += 32) y[k * 128 + j] = tile[k % 2][127 - j];
    __syncthreads();
  }
}

extern "C" __global__ void shared_declarations(float* x) {
  __shared__ union { __half h[64]; unsigned u[32]; } both;
  __shared__ struct Pair { float a, b; } pairs[32],
      last;
  __shared__ __half one, row[(32 >= 16) ? 32 : 16], square[4][8];
  int t = threadIdx.x;
  both.u[t] = 0x40003c00u;  // 2 and 1
  pairs[t] = {x[t], 1};
  row[t] = square[t / 8][t % 8] = __float2half(t);
  if (t == 0) last.a = last.b = 3, one = __float2half(1);
  __syncthreads();
  float of_half = __half2float(both.h[2 * t + 1]) + __half2float(row[31 - t]) * __half2float(one);
  x[t] = pairs[31 - t].a + pairs[t].b + last.a + of_half + __half2float(square[3][t % 8]);
}
