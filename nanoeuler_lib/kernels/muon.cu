// The elementwise kernels of a step of Muon, before and after its matrix products, for n matrices of the same shape.
// engine/program.py, ops/reference.py; Jordan et al. 2024, Liu et al. 2025.
//
// Number: float, __nv_bfloat16 or __half, which the products multiply. All lengths count float4: a matrix has `fours`,
// each of its rows `width`. In the flat arrays p, g, m and copy, matrix blockIdx.y begins at places[.][0], and its rows
// are places[.][1] apart (joined matrices share rows). x and o hold only the n matrices, one after another. places: [n,
// 2]; factor: [2] from `clip_factor`; if the norm in it is not finite, nothing changes. Launch a grid of (parts, n).
#include <fours.cuh>
#include <reduce.cuh>

// The index, in numbers, of float4 i of the block's matrix in the flat arrays.
__device__ __forceinline__ size_t at(int i, const int* place, int width) {
  return 4 * (place[0] + (size_t)(i / width) * place[1] + i % width);
}
// s a + t b
__device__ __forceinline__ float4 mix(float s, float4 a, float t, float4 b) {
  return make_float4(s * a.x + t * b.x, s * a.y + t * b.y, s * a.z + t * b.z, s * a.w + t * b.w);
}

// m = beta m + g with the clipped gradient g; part[matrix][block] = the block's part of ||u||^2 with u = g + beta m.
// part: [n, parts]. Launch a multiple of 32 threads per block.
extern "C" __global__ void muon_momentum(const float* __restrict__ g, float* __restrict__ m,
                                         const float* __restrict__ factor, float* __restrict__ part,
                                         const int* __restrict__ places, int fours, int width, float beta) {
  if (!(factor[1] <= 3.4e38f)) return;  // the norm is infinite or NaN
  const int* place = places + 2 * blockIdx.y;
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < fours; i += gridDim.x * blockDim.x) {
    size_t j = at(i, place, width);
    float4 slope = read_four(g + j), v = mix(beta, read_four(m + j), factor[0], slope);
    write_four(m + j, v);
    float4 u = mix(factor[0], slope, beta, v);
    sum += u.x * u.x + u.y * u.y + u.z * u.z + u.w * u.w;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) part[gridDim.x * blockIdx.y + blockIdx.x] = sum;
}

// x = u / max(||u||, smallest). Launch after `muon_momentum` with the same grid.
template <class Number>
__global__ void muon_direction(const float* __restrict__ g, const float* __restrict__ m,
                               const float* __restrict__ factor, const float* __restrict__ part,
                               Number* __restrict__ x, const int* __restrict__ places, int fours, int width,
                               float beta, float smallest) {
  if (!(factor[1] <= 3.4e38f)) return;
  const int* place = places + 2 * blockIdx.y;
  float sum = 0;
  for (int i = threadIdx.x; i < gridDim.x; i += blockDim.x) sum += part[gridDim.x * blockIdx.y + i];
  float scale = 1.0f / fmaxf(sqrtf(block_sum(sum)), smallest);
  x += 4 * (size_t)fours * blockIdx.y;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < fours; i += gridDim.x * blockDim.x) {
    size_t j = at(i, place, width);
    write_four(x + 4 * (size_t)i, mix(scale * factor[0], read_four(g + j), scale * beta, read_four(m + j)));
  }
}

// p -= rate (length o + decay p), with the learning rate in step[0]; and copy = p if Number is not float.
template <class Number>
__global__ void muon_move(float* p, const Number* __restrict__ o, Number* copy, const float* __restrict__ factor,
                          const float* __restrict__ step, const int* __restrict__ places, int fours, int width,
                          float length, float decay) {
  if (!(factor[1] <= 3.4e38f)) return;
  const int* place = places + 2 * blockIdx.y;
  o += 4 * (size_t)fours * blockIdx.y;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < fours; i += gridDim.x * blockDim.x) {
    size_t j = at(i, place, width);
    float4 v = mix(1.0f - step[0] * decay, read_four(p + j), -step[0] * length, read_four(o + 4 * (size_t)i));
    write_four(p + j, v);
    if (sizeof(Number) < sizeof(float)) write_four(copy + j, v);
  }
}
