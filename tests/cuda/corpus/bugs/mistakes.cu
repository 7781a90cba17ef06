#include <cuda_fp16.h>

// what: the barrier between writing and reading is forgotten
// array x: zeros(64)
// array y: zeros(64)
// launch: a_barrier_forgotten<<<1, 64>>>(x, y)
// finds: in kernel a_barrier_forgotten, block ( | race: one thread writes, another reads: s[ | the other: thread ( | no __sync
extern "C" __global__ void a_barrier_forgotten(const float* x, float* y) { __shared__ float s[64];
  s[threadIdx.x] = x[threadIdx.x];  // THERE
  y[threadIdx.x] = s[63 - threadIdx.x];  // THERE
}

// what: half of the threads reach a barrier
// array x: zeros(64)
// launch: a_barrier_in_a_branch<<<1, 64>>>(x)
// finds: in kernel a_barrier_in_a_branch, block ( | divergent barrier: | the other: thread (63,0,0) | guard the work, not the barrier
extern "C" __global__ void a_barrier_in_a_branch(float* x) {
  if (threadIdx.x < 32) __syncthreads();  // THERE
  x[threadIdx.x] = 2;
}

// what: the last block writes beyond the end
// array y: zeros(1000)
// launch: no_guard<<<4, 256>>>(y, 1000)
// finds: in kernel no_guard, block ( | out of bounds: write: y[1000]  (y: float32 of shape (1000,), 1000 elements) | block (3,0,0), thread (232,0,0) | y[i] = n; | the last element is y[999]: is a guard missing
extern "C" __global__ void no_guard(float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = n;  // THERE
}

// what: a loop takes one step too many
// array x: zeros(10)
// array y: zeros(1)
// launch: one_step_too_many<<<1, 1>>>(x, y, 10)
// finds: in kernel one_step_too_many, block ( | out of bounds: read: x[10] | <= written instead of <?
extern "C" __global__ void one_step_too_many(const float* x, float* y, int n) {
  float s = 0;
  for (int i = 0; i <= n; i++) s += x[i];  // THERE
  *y = s;
}

// what: thread 0 reads before the start
// array x: zeros(32)
// array y: zeros(32)
// launch: before_the_start<<<1, 32>>>(x, y)
// finds: in kernel before_the_start, block ( | out of bounds: read: x[-1] | thread (0,0,0) | the first element is x[0]
extern "C" __global__ void before_the_start(const float* x, float* y) {
  int i = threadIdx.x;
  y[i] = x[i - 1];  // THERE
}

// what: thread 0 reads before the start, by an unsigned index
// array x: zeros(32)
// array y: zeros(32)
// launch: before_the_start_unsigned<<<1, 32>>>(x, y)
// finds: in kernel before_the_start_unsigned, block ( | out of bounds: read: x[4294967295] | thread (0,0,0) | the index is unsigned and fell below 0
extern "C" __global__ void before_the_start_unsigned(const float* x, float* y) {
  y[threadIdx.x] = x[threadIdx.x - 1];  // THERE
}

// what: an index is too large for an int
// array x: zeros(32)
// launch: index_too_large_for_int<<<1, 32>>>(x, 100000)
// finds: in kernel index_too_large_for_int, block ( | int overflow: 100000 * 100000 is too large for 'int' | compute large indices as long long
extern "C" __global__ void index_too_large_for_int(float* x, int n) {
  int i = n * n + threadIdx.x;  // THERE
  x[i] = 1;
}

// what: a loop's counter never moves
// array x: zeros(32)
// launch: endless_loop<<<1, 1>>>(x, 10)
// option: seconds=0.3
// finds: in kernel endless_loop, block ( | endless: the launch takes too long | thread (0,0,0) | does its condition ever become false?
extern "C" __global__ void endless_loop(float* x, int n) {
  int i = 0;
  while (i < n) {
    x[i] = 1;
  }
}

// what: the launch gives extern shared memory no size
// array x: zeros(32)
// launch: shared_memory_without_its_size<<<1, 32>>>(x)
// finds: in kernel shared_memory_without_its_size, block ( | out of bounds: write: s[0] | the launch gives s its size: shared_mem, in bytes
extern "C" __global__ void shared_memory_without_its_size(float* x) {
  extern __shared__ float s[];
  s[threadIdx.x] = x[threadIdx.x];  // THERE
}

// what: shared memory is read that nobody wrote
// array x: zeros(32)
// launch: shared_memory_that_nobody_wrote<<<1, 32>>>(x)
// finds: in kernel shared_memory_that_nobody_wrote, block ( | uninitialised: shared memory is read before | which thread was to write it
extern "C" __global__ void shared_memory_that_nobody_wrote(float* x) {
  __shared__ float s[64];
  __syncthreads();
  x[threadIdx.x] = s[threadIdx.x];  // THERE
}

// what: a sum is added up without an atomic
// array x: zeros(32)
// array sum: zeros(1)
// launch: a_sum_without_an_atomic<<<1, 32>>>(x, sum)
// finds: in kernel a_sum_without_an_atomic, block ( | race: | sum[0] | the other: thread ( | atomicAdd does it in one step
extern "C" __global__ void a_sum_without_an_atomic(const float* x, float* sum) {
  *sum += x[threadIdx.x];  // THERE
}

// what: two blocks add to a sum without an atomic
// array x: zeros(32)
// array sum: zeros(1)
// launch: sum_from_two_blocks<<<2, 1>>>(x, sum)
// finds: in kernel sum_from_two_blocks, block ( | race: | sum[0] | a thread of another block | use atomicAdd, or give every block its own place
extern "C" __global__ void sum_from_two_blocks(const float* x, float* sum) {
  *sum += x[blockIdx.x];  // THERE
}

// what: a shuffle of a whole warp stands in a branch
// array x: zeros(32)
// launch: a_shuffle_in_a_branch<<<1, 32>>>(x)
// finds: in kernel a_shuffle_in_a_branch, block ( | a shuffle reads from a lane that takes no part in it | is the call inside a branch?
extern "C" __global__ void a_shuffle_in_a_branch(float* x) {
  float v = x[threadIdx.x];
  if (threadIdx.x < 16)
    v += __shfl_down_sync(0xffffffff, v, 8);  // THERE
  x[threadIdx.x] = v;
}

// what: a pointer is null
// array x: zeros(32)
// launch: a_pointer_that_points_nowhere<<<1, 32>>>(x)
// finds: in kernel a_pointer_that_points_nowhere, block ( | out of bounds: write through a null pointer | was not set to an array
extern "C" __global__ void a_pointer_that_points_nowhere(float* x) {
  float* p = nullptr;
  p[threadIdx.x] = x[0];  // THERE
}

// what: a float4 starts at the second float
// array x: zeros(32)
// launch: a_float4_at_an_odd_place<<<1, 1>>>(x)
// finds: in kernel a_float4_at_an_odd_place, block ( | misaligned: 16 bytes at once need an address that is a multiple of 16: x[1]
extern "C" __global__ void a_float4_at_an_odd_place(float* x) {
  ((float4*)(x + 1))[threadIdx.x].x = 1;  // THERE
  float4 v = *(float4*)(x + 1);
  x[0] = v.x;
}

// what: an index leaves the row of a table in shared memory
// array x: zeros(32)
// launch: index_that_the_compiler_judges<<<1, 16>>>(x)
// finds: in kernel index_that_the_compiler_judges, block ( | out of bounds: index 16 of an array 'float [16]': t[(int)x[2]][threadIdx.x + 1] | thread (15,0,0)
extern "C" __global__ void index_that_the_compiler_judges(float* x) {
  __shared__ float t[4][16];
  t[(int)x[2]][threadIdx.x + 1] = 3;  // THERE
}

// what: the halves of a warp meet at different votes
// array x: np.zeros(32, np.uint32)
// launch: a_long_finding<<<1, 32>>>(x)
// finds: in kernel a_long_finding, block ( | warp function: lanes of one warp meet at different warp functions: | __any_sync
extern "C" __global__ void a_long_finding(unsigned* x) {
  if (threadIdx.x < 16) x[threadIdx.x] = __ballot_sync(0xffffffff, 1);
  else x[threadIdx.x] = __any_sync(0xffffffff, 1);  // THERE
}

// what: half of the threads call a function with a barrier
// array x: zeros(64)
// launch: a_barrier_in_a_function<<<1, 64>>>(x)
// finds: in kernel a_barrier_in_a_function, block ( | called in | if (threadIdx.x < 32) wait_in_branch(); | the other: thread (
extern "C" __global__ void a_barrier_in_a_function(float* x);
__device__ void wait_in_branch() { __syncthreads(); }  // THERE
extern "C" __global__ void a_barrier_in_a_function(float* x) {
  if (threadIdx.x < 32) wait_in_branch();  // THERE
  x[threadIdx.x] = 2;
}

// what: the halves of a block reach a barrier by different calls
// array x: zeros(64)
// launch: a_barrier_by_two_calls<<<1, 64>>>(x)
// finds: in kernel a_barrier_by_two_calls, block ( | called in | wait_twice(); | the other in
extern "C" __global__ void a_barrier_by_two_calls(float* x);
__device__ void wait_twice() { __syncthreads(); }  // THERE
extern "C" __global__ void a_barrier_by_two_calls(float* x) {
  if (threadIdx.x < 32)
    wait_twice();  // THERE
  else
    wait_twice();  // THERE
}

// what: a loop leaves a local table
// array x: zeros(64)
// launch: index_past_a_table<<<1, 1>>>(x)
// finds: in kernel index_past_a_table, block ( | index 3 of an array 'float [3]' | the last element is [2]: is a guard
extern "C" __global__ void index_past_a_table(float* x) {
  float w[3] = {1, 2, 3};
  for (int j = 0; j <= 3; j++) x[threadIdx.x] = w[j];  // THERE
}

// what: all threads write the largest number to one place
// array x: np.arange(32, dtype=f32)
// array y: zeros(1)
// launch: one_place_for_all<<<1, 32>>>(x, y)
// finds: in kernel one_place_for_all, block ( | race: | y[0] | all threads access this one place: let one thread write it
extern "C" __global__ void one_place_for_all(float* x, float* y) {
  if (x[threadIdx.x] > y[0]) y[0] = x[threadIdx.x];  // THERE
}

// what: a lock has no fences
// array y: zeros(1)
// array lock: np.zeros(1, np.int32)
// launch: a_lock_without_fences<<<4, 1>>>(y, lock)
// finds: in kernel a_lock_without_fences, block ( | race: | y[0] | with a lock, call __threadfence() after
extern "C" __global__ void a_lock_without_fences(float* y, int* lock) {
  while (atomicCAS(lock, 0, 1)) ;
  y[0] = y[0] + 1;  // THERE
  atomicExch(lock, 0);
}

// what: a volatile flag has no fences
// array y: zeros(64)
// launch: a_volatile_flag_without_fences<<<1, 64>>>(y)
// finds: in kernel a_volatile_flag_without_fences, block ( | race: one thread writes, another reads: ready | volatile orders nothing
extern "C" __global__ void a_volatile_flag_without_fences(float* y) {
  __shared__ volatile int ready;
  __shared__ float v;
  if (threadIdx.x == 0) ready = 0;
  __syncthreads();
  if (threadIdx.x == 0) { v = 3; ready = 1; }  // THERE
  else { while (!ready) ; y[threadIdx.x] = v; }
}

// what: a tile is larger than any GPU's shared memory
// array x: zeros(1)
// launch: shared_memory_that_no_card_has<<<1, 1>>>(x)
// finds: in kernel shared_memory_that_no_card_has, block ( | take 262144 bytes with tile | __shared__ float tile | is a smaller tile enough?
extern "C" __global__ void shared_memory_that_no_card_has(float* x) {

  __shared__ float tile[256][256];  // THERE
  tile[0][0] = x[0];
}

// what: an integer is divided by zero
// array x: np.zeros(32, np.int32)
// launch: a_division_by_zero<<<1, 32>>>(x, 0)
// finds: in kernel a_division_by_zero, block ( | integer division of 7 by zero
extern "C" __global__ void a_division_by_zero(int* x, int n) {
  x[threadIdx.x] = 7 / n;  // THERE
}

// what: a function calls itself without end
// array x: np.zeros(1, np.int32)
// launch: a_function_that_calls_itself<<<1, 1>>>(x, 0)
// finds: in kernel a_function_that_calls_itself, block ( | stack is full: endless recursion | avoid recursion
extern "C" __global__ void a_function_that_calls_itself(int* x, int n);
__device__ int f(int n) {  // THERE
  return n < 0 ? 0 : f(n + 1) + 1;
}
extern "C" __global__ void a_function_that_calls_itself(int* x, int n) {
  x[0] = f(n);
}
