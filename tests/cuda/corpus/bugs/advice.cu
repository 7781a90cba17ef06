#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <named_barrier.cuh>
#include <nanoeuler.cuh>

// what: shared memory that nobody wrote serves as an index
// array x: zeros(64)
// launch: unwritten_index<<<1, 64>>>(x, 64)
// finds: uninitialised: shared memory | the value is used as an index or address: s[0] | used in:
extern "C" __global__ void unwritten_index(float* x, int n) {
  __shared__ int s[32];
  x[s[threadIdx.x]] = 1;  // THERE
}

// what: the index of an index was never written
// array x: zeros(64)
// launch: unwritten_index_of_an_array_in_brackets<<<1, 64>>>(x, 64)
// finds: is used as an index or address: t[0]
extern "C" __global__ void unwritten_index_of_an_array_in_brackets(float* x, int n) {
  __shared__ int s[32], t[32];
  s[t[threadIdx.x]] = 1;  // THERE
}

// what: all threads add to one element
// array x: zeros(64)
// launch: update<<<1, 64>>>(x, 64)
// finds: race: | atomicAdd does it in one step
extern "C" __global__ void update(float* x, int n) {
  x[0] += 1;
}

// what: all threads double one element, whose index is computed
// array x: zeros(64)
// launch: update_by_name<<<1, 64>>>(x, 64)
// finds: race: | atomicAdd does it in one step
extern "C" __global__ void update_by_name(float* x, int n) {
  x[n / 64] = 2 * x[n / 64];
}

// what: a tree of sums has no barrier between its steps
// array x: zeros(64)
// launch: a_tree_without_its_barrier<<<1, 64>>>(x, 64)
// finds: race: | no __syncthreads()
extern "C" __global__ void a_tree_without_its_barrier(float* x, int n) {
  __shared__ float s[64];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  for (int d = 32; d; d /= 2) if (t < d) s[t] += s[t + d];
}

// what: one thread overwrites what the others still read
// array x: zeros(64)
// launch: a_place_that_is_read_by_all_and_written_by_one<<<1, 64>>>(x, 64)
// finds: race: | no __syncthreads()
extern "C" __global__ void a_place_that_is_read_by_all_and_written_by_one(float* x, int n) {
  __shared__ float s[64];
  s[threadIdx.x] = 1;
  __syncthreads();
  float all = s[0];
  s[threadIdx.x] = all;
}

// what: a histogram in shared memory starts from what lies there
// array x: zeros(64)
// launch: a_histogram_that_nobody_zeroed<<<1, 64>>>(x, 64)
// finds: uninitialised: | s[0]
extern "C" __global__ void a_histogram_that_nobody_zeroed(float* x, int n) {
  __shared__ int s[4];
  atomicAdd(&s[threadIdx.x % 4], 1);  // THERE
}

// what: copy_async_wait<1> leaves the copy that is read next
// array x: zeros(64)
// launch: a_copy_that_a_wait_leaves<<<1, 64>>>(x, 64)
// finds: copy_async_wait<1> leaves the newest 1 group(s) unfinished, and its own is number 1 of them: s[64] | the copy: | copy_async_wait<0>() waits for all
extern "C" __global__ void a_copy_that_a_wait_leaves(float* x, int n) {
  __shared__ float s[128];
  for (int i = 0; i < 2; i++) {
    copy_async<4>(s + 64 * i + threadIdx.x, x + threadIdx.x);  // THERE
    copy_async_commit();
  }
  copy_async_wait<1>();
  x[threadIdx.x] = s[64 + threadIdx.x];
}

// what: a copy is waited for, but never committed
// array x: zeros(64)
// launch: a_copy_in_no_group<<<1, 64>>>(x, 64)
// finds: is in no group yet | copy_async_commit() has not come after it
extern "C" __global__ void a_copy_in_no_group(float* x, int n) {
  __shared__ float s[64];
  copy_async<4>(s + threadIdx.x, x + threadIdx.x);
  copy_async_wait<0>();
  x[threadIdx.x] = s[threadIdx.x];
}

// what: a shuffle reads from a lane that its mask leaves out
// array x: zeros(64)
// launch: absent_lane<<<1, 64>>>(x, 64)
// finds: takes no part in it: __shfl_down_sync of lane 7 reads lane 11, which is not in the mask 0x000000ff
extern "C" __global__ void absent_lane(float* x, int n) {
  if (threadIdx.x < 8) x[0] = __shfl_down_sync(0xff, n, 4);
}

// what: a shuffle reads from a lane that has returned
// array x: zeros(64)
// launch: a_lane_that_has_left<<<1, 64>>>(x, 64)
// finds: of lane 0 reads lane 8, which has returned or does not exist, though it is in the mask 0xffffffff
extern "C" __global__ void a_lane_that_has_left(float* x, int n) {
  if (threadIdx.x % 32 > 7) return;
  x[0] = __shfl_xor_sync(~0u, n, 8);
}

// what: the halves of a warp vote with different masks
// array x: zeros(64)
// launch: two_masks<<<1, 64>>>(x, 64)
// finds: call one __ballot_sync with different masks: lane 0 with 0xffffffff, and lane 16 with 0xffff0000
extern "C" __global__ void two_masks(float* x, int n) {
  n = __ballot_sync(threadIdx.x % 32 < 16 ? ~0u : 0xffff0000u, 1);
}

// what: one lane of a warp comes to a named barrier
// array x: zeros(64)
// launch: one_lane_at_a_named_barrier<<<1, 64>>>(x, 64)
// finds: named barrier 2: lane 3 of warp 0 reached it, and lane 0 did not
extern "C" __global__ void one_lane_at_a_named_barrier(float* x, int n) {
  if (threadIdx.x == 3) named_barrier_arrive(2, 32);
}

// what: a warp comes to a named barrier twice
// array x: zeros(64)
// launch: a_warp_that_comes_twice<<<1, 64>>>(x, 64)
// finds: named barrier 1: a warp arrives a second time before the others of its 96 threads have arrived once
extern "C" __global__ void a_warp_that_comes_twice(float* x, int n) {
  for (int i = 0; i < 2; i++) named_barrier_arrive(1, 96);
}

// what: a named barrier counts 33 threads
// array x: zeros(64)
// launch: of_33_threads<<<1, 64>>>(x, 64)
// finds: divergent barrier: named barrier 5: whole warps meet
extern "C" __global__ void of_33_threads(float* x, int n) {
  named_barrier_sync(5, 33);
}

// what: a product of two ints is too small for an int
// array x: zeros(64)
// launch: both_sides_of_an_overflow<<<1, 64>>>(x, 64)
// finds: int overflow: 65536 * -65536 is too large for 'int'
extern "C" __global__ void both_sides_of_an_overflow(float* x, int n) {
  int a = 65536 * (n / 64);
  x[0] = a * -a;
}

// what: a sum is too large for a long long
// array x: zeros(64)
// launch: overflow_of_a_long_long<<<1, 64>>>(x, 64)
// finds: int overflow: 9223372036854775807 + 1 is too large for 'long long
extern "C" __global__ void overflow_of_a_long_long(float* x, int n) {
  long long a = 1ll << (n - 2);
  x[0] = a + (a - 1) + 1 + n;
}

// what: a shift by a negative number
// array x: zeros(64)
// launch: a_shift<<<1, 64>>>(x, 64)
// finds: shift of 'int' by -1 bits
extern "C" __global__ void a_shift(float* x, int n) {
  x[0] = 1 << (n - 65);
}

// what: mma is given a null pointer for its sums
// array x: zeros(64)
// launch: nowhere_to_multiply_to<<<1, 64>>>(x, 64)
// finds: write through a null pointer
extern "C" __global__ void nowhere_to_multiply_to(float* x, int n) {
  unsigned a[4] = {};
  mma<tf32>(nullptr, a, a);  // THERE
}

// what: a pointer runs below the stack
// array x: zeros(64)
// launch: below_the_stack<<<1, 64>>>(x, 64)
// finds: a local variable ends
extern "C" __global__ void below_the_stack(float* x, int n) {
  volatile char c = 0, *p = &c;
  for (int i = 4096; i < 1 << 20; i++) p[-i] = 1;
}
