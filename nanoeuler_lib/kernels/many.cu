// Sums of a training step on many cards, in an order that does not depend on how many there are. engine/data_parallel.
#include <reduce.cuh>
#include <wide.cuh>

#define ALIGN 64  // numbers: a share of a bucket is a multiple
#define PARTS 8   // shares of a bucket

// to += from: a node of the tree inside a card. to, from: [n], n a multiple of 4, from 16 bytes on. Any number of threads.
extern "C" __global__ void add_shard(float* __restrict__ to, const float* __restrict__ from, int n) {
  if (n % 4 || whole_fours(n, to, from) != n / 4) __trap();  // whole fours
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n / 4; i += gridDim.x * blockDim.x) {
    float4 sum = ((float4*)to)[i];
    add_to(sum, ((const float4*)from)[i]);
    ((float4*)to)[i] = sum;
  }
}

// What an owner does with its slice of a bucket. own = the sum over COUNT cards by a binary tree, in the order of their
// ranks. own: [n], this card's; others: [COUNT - 1, n], those of the other ranks in order. And the squares of the sum, share
// by share on a grid that is the same for every COUNT: sums[share, bucket, block], [PARTS, buckets, gridDim.x].
// units: of ALIGN numbers, in the whole bucket; first: the number of the slice's first share. Launch a row of blocks
// (blockIdx.y) for each share of the slice.
template <int COUNT>
__global__ void sum_slices(float* __restrict__ own, const float* __restrict__ others, float* __restrict__ sums, int n,
                           int rank, long long units, int first, int bucket, int buckets) {
  if (n % ALIGN || rank >= COUNT || whole_fours(n, own, others) != n / 4) __trap();  // whole units
  int share = first + blockIdx.y;
  long long base = units * first / PARTS;
  int begin = (int)(units * share / PARTS - base) * (ALIGN / 4);
  int end = (int)(units * (share + 1) / PARTS - base) * (ALIGN / 4);
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
    square = fmaf(v[0].x, v[0].x, square);  // written out: another COUNT must not round otherwise
    square = fmaf(v[0].y, v[0].y, square);
    square = fmaf(v[0].z, v[0].z, square);
    square = fmaf(v[0].w, v[0].w, square);
  }
  square = block_sum(square);
  if (threadIdx.x == 0) sums[((size_t)share * buckets + bucket) * gridDim.x + blockIdx.x] = square;
}

// A hash of numbers and their places that does not depend on the order in which they are met: the sum, modulo 2^64, of a
// mix of both (the finalizer of SplitMix64; Steele, Lea and Flood 2014). bits: [n], of which the first stands at place
// `start`; parts: [gridDim.x], a sum for each block. Blocks of 256 threads.
extern "C" __global__ void hash_numbers(const unsigned* __restrict__ bits, unsigned long long* __restrict__ parts,
                                        unsigned start, int n) {
  __shared__ unsigned long long s[256];
  if (blockDim.x != 256) __trap();  // blocks of 256 threads
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
