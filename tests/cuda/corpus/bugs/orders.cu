// Kernels that order their threads by flags, locks, fences and named barriers. BUG 0 is right; other numbers are bugs.
#include <named_barrier.cuh>

template <int BUG> __global__ void flag_of_a_warp(float* x) {
  __shared__ float s[32];
  __shared__ int flag;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  if (threadIdx.x < 32) {
    s[threadIdx.x] = x[threadIdx.x];
    if (BUG != 1) __syncwarp();
    if (threadIdx.x == 0) {
      if (BUG != 2) __threadfence_block();
      atomicExch(&flag, 1);
    }
  } else {
    if (BUG == 3) {
      if (threadIdx.x == 32) while (atomicAdd(&flag + 0 * threadIdx.x, 0) < 0) {}
    } else if (threadIdx.x == 32) {
      while (atomicAdd(&flag, 0) == 0) {}
    }
    __syncwarp();
    x[threadIdx.x] = s[threadIdx.x - 32];
  }
}

// what: a warp waits for another warp's flag
// array x: normal(64)
// launch: flag_of_a_warp<0><<<1, 64>>>(x)
// gives x: np.concatenate([x[:32], x[:32]])

// what: the warp is not synchronised before its flag is set
// array x: normal(64)
// launch: flag_of_a_warp<1><<<1, 64>>>(x)
// finds: race: | line

// what: no fence precedes the flag
// array x: normal(64)
// launch: flag_of_a_warp<2><<<1, 64>>>(x)
// finds: race: | line

// what: no thread waits for the flag
// array x: normal(64)
// launch: flag_of_a_warp<3><<<1, 64>>>(x)
// finds: race: | line

template <int BUG> __global__ void volatile_flag(float* x) {
  __shared__ float s;
  __shared__ volatile int flag;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    s = x[0];
    if (BUG != 1) __threadfence_block();
    flag = 1;
  }
  if (threadIdx.x == 32) {
    while (flag == 0) {}
    x[1] = s;
  }
}

// what: a thread waits for a volatile flag
// array x: normal(64)
// launch: volatile_flag<0><<<1, 64>>>(x)
// gives x: np.concatenate([x[:1], x[:1], x[2:]])

// what: no fence precedes a volatile flag
// array x: normal(64)
// launch: volatile_flag<1><<<1, 64>>>(x)
// finds: race: | line

template <int BUG> __global__ void lock(int* lock, int* count) {
  for (bool done = false; !done;)
    if (atomicCAS(lock, 0, 1) == 0) {
      if (BUG != 1) __threadfence();
      count[0] += 1;
      if (BUG != 1) __threadfence();
      atomicExch(lock, 0);
      done = true;
    }
}

// what: threads count while they hold a lock
// array held: np.zeros(1, np.int32)
// array count: np.zeros(1, np.int32)
// launch: lock<0><<<2, 64>>>(held, count)
// gives count: np.array([128])

// what: no fence follows a lock, and none precedes its release
// array held: np.zeros(1, np.int32)
// array count: np.zeros(1, np.int32)
// launch: lock<1><<<2, 64>>>(held, count)
// finds: race: | line

template <int BUG> __global__ void last_block(const float* x, float* part, float* out, unsigned* done) {
  __shared__ bool last;
  if (BUG != 3) {
    part[blockIdx.x * 64 + threadIdx.x] = x[threadIdx.x];
    if (BUG != 2) __syncthreads();
  }
  if (threadIdx.x == 0) {
    if (BUG != 1) __threadfence();
    if (BUG == 3) part[blockIdx.x * 64] = x[0];
    last = atomicAdd(done, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float s = 0;
    for (int i = 0; i < gridDim.x * 64; i += BUG == 3 ? 64 : 1) s += part[i];
    *out = s;
  }
}

// what: the last block to arrive sums what all blocks have written
// array x: np.arange(64, dtype=f32)
// array part: zeros(256)
// array out: zeros(1)
// array done: np.zeros(1, np.uint32)
// launch: last_block<0><<<4, 64>>>(x, part, out, done)
// gives out: 4 * x.sum(keepdims=True)

// what: the count for the last block is raised without a fence
// array x: zeros(64)
// array part: zeros(256)
// array out: zeros(1)
// array done: np.zeros(1, np.uint32)
// launch: last_block<1><<<4, 64>>>(x, part, out, done)
// finds: race: | line

// what: a block is not synchronised before it is counted
// array x: zeros(64)
// array part: zeros(256)
// array out: zeros(1)
// array done: np.zeros(1, np.uint32)
// launch: last_block<2><<<4, 64>>>(x, part, out, done)
// finds: race: | line

// what: a fence precedes the store that it should publish
// array x: zeros(64)
// array part: zeros(256)
// array out: zeros(1)
// array done: np.zeros(1, np.uint32)
// launch: last_block<3><<<4, 64>>>(x, part, out, done)
// finds: race: | part

template <int BUG> __global__ void named(const float* x, float* y) {
  __shared__ float s[2][32];
  int t = threadIdx.x;
  const int all = BUG == 2 ? 64 : 96, number = BUG == 4 ? 16 : 1;
  for (int k = 0; k < 6; k++) {
    if (t < 32) {
      if (k >= 2 && BUG != 5) named_barrier_sync(3 + k % 2, all);
      s[k % 2][t] = x[k * 32 + t];
      named_barrier_arrive(number + k % 2, all);
    } else {
      if (BUG == 1) named_barrier_arrive(number + k % 2, all);
      else named_barrier_sync(number + k % 2, BUG == 3 ? 64 : all);
      y[k * 64 + t - 32] = s[k % 2][(t + 5) % 32];
      if (k + 2 < 6) named_barrier_arrive(3 + k % 2, all);
    }
  }
}

// what: one warp fills two buffers for two other warps
// array x: normal(192)
// array y: zeros(384)
// launch: named<0><<<1, 96>>>(x, y)
// gives y: np.tile(x.reshape(6, 1, 32)[:, :, (np.arange(32) + 5) % 32], (1, 2, 1)).ravel()

// what: no warp waits for a full buffer
// array x: zeros(192)
// array y: zeros(384)
// launch: named<1><<<1, 96>>>(x, y)
// finds: race: | line

// what: a named barrier's count forgets a warp
// array x: zeros(192)
// array y: zeros(384)
// launch: named<2><<<1, 96>>>(x, y)
// finds: race: | line

// what: one named barrier is used with two counts
// array x: zeros(192)
// array y: zeros(384)
// launch: named<3><<<1, 96>>>(x, y)
// finds: divergent barrier: | line

// what: there is no named barrier 16
// array x: zeros(192)
// array y: zeros(384)
// launch: named<4><<<1, 96>>>(x, y)
// finds: divergent barrier: | line

// what: no warp waits for an empty buffer
// array x: zeros(192)
// array y: zeros(384)
// launch: named<5><<<1, 96>>>(x, y)
// finds: divergent barrier: | line

__device__ float turned(float v) {
  __shared__ float s[64];
  __syncthreads();
  s[threadIdx.x] = v;
  __syncthreads();
  return s[63 - threadIdx.x];
}
template <int BUG> __global__ void barriers_in_a_function(float* x) {
  float v = x[threadIdx.x];
  if (BUG == 2) {
    if (threadIdx.x < 32) { __syncthreads(); } else { __syncthreads(); }
  }
  if (BUG == 1) {
    if (threadIdx.x < 32) v = turned(v);
    else v = turned(v + 1);
  } else {
    for (int i = 0; i < 3; i++) v = turned(v) + turned(v + 1);
  }
  x[threadIdx.x] = v + __syncthreads_count(v > 0);
}

// what: a function with barriers is called six times
// array x: np.zeros(64, f32)
// launch: barriers_in_a_function<0><<<1, 64>>>(x)
// gives x: np.full(64, 71)

// what: two branches call a function with barriers
// array x: zeros(64)
// launch: barriers_in_a_function<1><<<1, 64>>>(x)
// finds: divergent barrier: | line

// what: two branches on one line each have a barrier
// array x: zeros(64)
// launch: barriers_in_a_function<2><<<1, 64>>>(x)
// finds: divergent barrier: | line

template <int BUG> __global__ void sums_of_the_rest(const float* x, float* y, int n) {
  float s = 0;
  for (int j = blockIdx.x * 64; j < n; j++) s += x[j];
  __syncthreads();
  if (BUG == 1) ((float*)x)[blockIdx.x * 64 + threadIdx.x] = s;
  else y[blockIdx.x * 64 + threadIdx.x] = s;
}

// what: each block sums the array from the block's place on
// array x: np.ones(256, f32)
// array y: zeros(256)
// launch: sums_of_the_rest<0><<<4, 64>>>(x, y, 256)
// gives y: np.repeat(256 - 64 * np.arange(4), 64)

// what: a cast removes the const of an array
// array x: zeros(256)
// array y: zeros(256)
// launch: sums_of_the_rest<1><<<4, 64>>>(x, y, 256)
// finds: read-only: | line

// what: a reader of another block is still found after four readers of the same block
// array x: zeros(256)
// launch: sums_of_the_rest<0><<<4, 64>>>(x, x, 256)
// finds: race: | a thread of another block

__device__ int counts[4];
template <int BUG> __global__ void counts_of_the_device(int* x) {
  int* p = counts;
  if (BUG == 1) p[x[threadIdx.x] % 4] += 1;
  else atomicAdd(&p[x[threadIdx.x] % 4], 1);
  if (BUG != 2) __syncthreads();
  x[threadIdx.x] = p[threadIdx.x % (BUG == 3 ? 5 : 4)];
}

// what: counts in a variable of the device
// array x: np.zeros(64, np.int32)
// launch: counts_of_the_device<0><<<1, 64>>>(x)
// gives x: np.tile([64, 0, 0, 0], 16)

// what: counts without an atomic
// array x: np.zeros(64, np.int32)
// launch: counts_of_the_device<1><<<1, 64>>>(x)
// finds: race: | line

// what: counts are read without a barrier
// array x: np.zeros(64, np.int32)
// launch: counts_of_the_device<2><<<1, 64>>>(x)
// finds: race: | line

// what: a variable of the device is read beyond its end
// array x: np.zeros(64, np.int32)
// launch: counts_of_the_device<3><<<1, 64>>>(x)
// finds: out of bounds: | line

__constant__ float constants[64] = {1, 2};
template <int BUG> __global__ void reads_constants(float* x) {
  const float* p = constants;
  if (BUG == 2) ((float*)p)[threadIdx.x] = x[0];
  else x[threadIdx.x] = p[threadIdx.x + (BUG == 1)];
}

// what: constants are read through a pointer
// array x: zeros(64)
// launch: reads_constants<0><<<1, 64>>>(x)
// gives x: np.array([1, 2] + 62 * [0])

// what: constants are read beyond their end
// array x: zeros(64)
// launch: reads_constants<1><<<1, 64>>>(x)
// finds: out of bounds: | line

// what: constants are written
// array x: zeros(64)
// launch: reads_constants<2><<<1, 64>>>(x)
// finds: read-only: | line

template <int BUG> __global__ void half_a_warp_meets(float* x) {
  __shared__ float s;
  if (threadIdx.x == 0) s = 1;
  __syncthreads();
  float v = s;
  if (BUG != 1) __syncwarp();
  if (threadIdx.x >= 16) {
    __syncwarp(0xffff0000u);
    v += s;
    __syncwarp(0xffff0000u);
    if (threadIdx.x == 16) (BUG == 1 ? s : x[1]) = v;
  }
}

// what: a warp synchronises in parts
// array x: zeros(32)
// launch: half_a_warp_meets<0><<<1, 32>>>(x)
// gives x: np.array([0, 2] + 30 * [0])

// what: an earlier reader is still found when a warp synchronises in parts
// array x: zeros(32)
// launch: half_a_warp_meets<1><<<1, 32>>>(x)
// finds: race: | line

template <int BUG> __global__ void atomics_of_others(int* n, int* y) {
  atomicAdd(n, 1);
  if (BUG == 1 ? threadIdx.x == 31 : blockIdx.x == 3) y[0] = n[0];
}

// what: atomics of other threads are still found after the thread's own atomic
// array n: np.zeros(1, np.int32)
// array y: np.zeros(1, np.int32)
// launch: atomics_of_others<1><<<1, 32>>>(n, y)
// finds: race: | an atomic and a plain access race, too

// what: atomics of other blocks are still found after the block's own atomic
// array n: np.zeros(1, np.int32)
// array y: np.zeros(1, np.int32)
// launch: atomics_of_others<2><<<4, 1>>>(n, y)
// finds: race: | an atomic and a plain access race, too

template <int BUG> __global__ void look_back(const float* x, float* y, unsigned* ticket, volatile int* status,
                                             volatile float* sums) {
  if (threadIdx.x) return;
  int b = atomicAdd(ticket, 1u);
  float before = 0;
  if (b > 0) {
    while (status[b - 1] == 0) {}
    __threadfence();
    before = sums[b - 1];
  }
  sums[b] = before + x[b];
  if (BUG != 1) __threadfence();
  status[b] = 1;
  y[b] = before;
}

// what: blocks look back at the sums before them
// array x: np.arange(8, dtype=f32)
// array y: zeros(8)
// array ticket: np.zeros(1, np.uint32)
// array status: np.zeros(8, np.int32)
// array sums: zeros(8)
// launch: look_back<0><<<8, 32>>>(x, y, ticket, status, sums)
// gives y: np.cumsum(x) - x

// what: a volatile status is set without a fence after the sum
// array x: zeros(8)
// array y: zeros(8)
// array ticket: np.zeros(1, np.uint32)
// array status: np.zeros(8, np.int32)
// array sums: zeros(8)
// launch: look_back<1><<<8, 32>>>(x, y, ticket, status, sums)
// finds: race: | line
