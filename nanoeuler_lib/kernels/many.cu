// Sums of a training step on several GPUs, in an order that does not depend on their number. engine/data_parallel.
#include <reduce.cuh>
#include <wide.cuh>

#define ALIGN 64  // the length of a share is a multiple of so many numbers
#define PARTS 8   // shares of a bucket

// to += from, for the tree of sums on one GPU. to, from: [n], n a multiple of 4, 16-byte aligned. Any number of threads
extern "C" __global__ void add_shard(float* __restrict__ to, const float* __restrict__ from, int n) {
  if (n % 4 || whole_fours(n, to, from) != n / 4) __trap();  // n must be a multiple of 4, arrays 16-byte aligned
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n / 4; i += gridDim.x * blockDim.x) {
    float4 sum = ((float4*)to)[i];
    add_to(sum, ((const float4*)from)[i]);
    ((float4*)to)[i] = sum;
  }
}

// Add a slice of a bucket over COUNT GPUs, on the slice's owner, as a binary tree in the order of ranks; and sum the
// squares of the result. own: [n], this GPU's gradient, becomes the sum; others: [COUNT - 1, n], the other ranks' in
// order; sums: [PARTS, buckets, gridDim.x], the squares by share and block, on a grid that is the same for every COUNT.
// cuts: [PARTS + 1], where the bucket's shares begin and the last one ends, in units of ALIGN numbers; first: number of
// the slice's first share. Launch one row of blocks (blockIdx.y) per share of the slice.
template <int COUNT>
__global__ void sum_slices(float* __restrict__ own, const float* __restrict__ others, float* __restrict__ sums,
                           const int* __restrict__ cuts, int n, int rank, int first, int bucket, int buckets) {
  if (n % ALIGN || rank >= COUNT || whole_fours(n, own, others) != n / 4) __trap();  // n must be a multiple of ALIGN
  int share = first + blockIdx.y;
  int begin = (cuts[share] - cuts[first]) * (ALIGN / 4);
  int end = (cuts[share + 1] - cuts[first]) * (ALIGN / 4);
  float square = 0;
  for (int i = begin + blockIdx.x * blockDim.x + threadIdx.x; i < end; i += gridDim.x * blockDim.x) {
    float4 v[COUNT];
#pragma unroll
    for (int k = 0; k < COUNT; k++)
      v[k] = k == rank ? ((float4*)own)[i] : ((const float4*)others)[(size_t)(k - (k > rank)) * (n / 4) + i];
#pragma unroll
    for (int width = 1; width < COUNT; width *= 2)
#pragma unroll
      for (int k = 0; k < COUNT; k += 2 * width) add_to(v[k], v[k + width]);
    if (COUNT > 1) ((float4*)own)[i] = v[0];
    square = fmaf(v[0].x, v[0].x, square);  // explicit fmaf, so that every COUNT rounds in the same way
    square = fmaf(v[0].y, v[0].y, square);
    square = fmaf(v[0].z, v[0].z, square);
    square = fmaf(v[0].w, v[0].w, square);
  }
  square = block_sum(square);
  if (threadIdx.x == 0) sums[((size_t)share * buckets + bucket) * gridDim.x + blockIdx.x] = square;
}

// Hash numbers together with their indices, independently of the order of evaluation: the sum, modulo 2^64, of a hash
// of each pair (the finalizer of SplitMix64; Steele, Lea and Flood 2014). bits: [n], the numbers' bits, the first with
// index `start`; parts: [gridDim.x], one sum per block. Launch any number of blocks of 256 threads.
extern "C" __global__ void hash_numbers(const unsigned* __restrict__ bits, unsigned long long* __restrict__ parts,
                                        unsigned start, int n) {
  __shared__ unsigned long long s[256];
  if (blockDim.x != 256) __trap();  // the block must have 256 threads
  unsigned long long sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    unsigned long long x = (unsigned long long)(start + i) << 32 | bits[i];
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    sum += x ^ x >> 31;
  }
  s[threadIdx.x] = sum;
  __syncthreads();
  for (int half = 128; half > 0; half /= 2) {
    if (threadIdx.x < half) s[threadIdx.x] += s[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) parts[blockIdx.x] = s[0];
}
