#include <nanoeuler.cuh>
#define FULL 0xffffffffu

// what: a transpose swaps rows and columns in its stride
// array x: normal(5, 7)
// array y: zeros(7, 5)
// launch: wrong_stride<<<1, (7, 5)>>>(x, y, 5, 7)
// finds: out of bounds: | in kernel wrong_stride, block (
extern "C" __global__ void wrong_stride(const float* x, float* y, int rows, int columns) {
  int c = threadIdx.x, r = threadIdx.y;
  y[c * rows + r] =
      x[c * columns + r];  // HERE
}

// what: a pointer is an arbitrary number
// array x: zeros(1)
// launch: wild_pointer<<<1, 1>>>(x)
// finds: out of bounds: | in kernel wild_pointer, block (
extern "C" __global__ void wild_pointer(float* x) {
  float* p = (float*)0x123456789000;
  p[threadIdx.x] = x[0];  // HERE
}

// what: a call goes to an arbitrary number
// array x: zeros(1)
// launch: wild_call<<<1, 1>>>(x)
// finds: crash: | in kernel wild_call, block (
typedef void (*Function)(float*);
extern "C" __global__ void wild_call(float* x) {
  volatile Function f = (Function)0x1234;
  f(x);
}

// what: the last thread reads a neighbour that does not exist
// array x: normal(32)
// launch: neighbour_in_shared<<<1, 32>>>(x)
// finds: out of bounds: | in kernel neighbour_in_shared, block (
extern "C" __global__ void neighbour_in_shared(float* x) {
  __shared__ float s[32];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[threadIdx.x + 1];  // HERE
}

// what: an array read as float3 is three numbers too short
// array x: normal(3, 3)
// array y: zeros(4)
// launch: three_at_once<<<1, 4>>>(x, y)
// finds: out of bounds: | in kernel three_at_once, block (
extern "C" __global__ void three_at_once(const float3* x, float* y) {
  float3 v =
      x[threadIdx.x];  // HERE
  y[threadIdx.x] = v.x + v.y + v.z;
}

// what: memcpy of 8 numbers where each thread has 4
// array x: normal(8)
// array y: zeros(2)
// launch: copies_too_much<<<1, 2>>>(x, y)
// finds: out of bounds: | in kernel copies_too_much, block (
extern "C" __global__ void copies_too_much(const float* x, float* y) {
  float a[8];
  memcpy(a, x + 4 * threadIdx.x, sizeof(a));  // HERE
  y[threadIdx.x] = a[7];
}

// what: an array of 7 numbers is read as 4 pairs
// array x: zeros(7)
// launch: struct_beyond_the_end<<<1, 4>>>(x)
// finds: out of bounds: | in kernel struct_beyond_the_end, block (
struct Pair { int key; float value; };
extern "C" __global__ void struct_beyond_the_end(float* x) {
  Pair p = {1, 2.0f};
  Pair* pairs = (Pair*)x;
  pairs[threadIdx.x] =
      p;
}

// what: an assertion does not hold
// array x: np.arange(32, dtype=f32)
// launch: asserts<<<1, 32>>>(x)
// finds: failure: | in kernel asserts, block (
extern "C" __global__ void asserts(float* x) {
  assert(x[threadIdx.x] < 3.0f);  // HERE
}

// what: a warp reverses its numbers without __syncwarp
// array x: normal(32)
// array y: zeros(32)
// launch: no_syncwarp<<<1, 32>>>(x, y)
// finds: race: | in kernel no_syncwarp, block (
extern "C" __global__ void no_syncwarp(const float* x, float* y) {
  __shared__ float s[32];
  s[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = s[31 - threadIdx.x];
}

// what: __syncwarp for a block of two warps
// array x: normal(64)
// launch: syncwarp_for_two_warps<<<1, 64>>>(x)
// finds: race: | in kernel syncwarp_for_two_warps, block (
extern "C" __global__ void syncwarp_for_two_warps(float* x) {
  __shared__ float s;
  if (threadIdx.x == 0) s = x[0];
  __syncthreads();
  x[threadIdx.x] = s;
  __syncwarp();
  if (threadIdx.x == 1)
    s = 2;  // HERE
}

// what: the last lane overwrites a number that the other lanes read
// array x: normal(32)
// launch: last_reader_writes<<<1, 32>>>(x)
// finds: race: | in kernel last_reader_writes, block (
extern "C" __global__ void last_reader_writes(float* x) {
  __shared__ float s;
  if (threadIdx.x == 0) s = x[0];
  __syncthreads();
  x[threadIdx.x] = s;
  if (threadIdx.x == 31)
    s = 2;  // HERE
}

// what: half a warp is synchronised, and the whole warp reads
// array x: normal(32)
// launch: half_the_warp_synchronised<<<1, 32>>>(x)
// finds: race: | in kernel half_the_warp_synchronised, block (
extern "C" __global__ void half_the_warp_synchronised(float* x) {
  __shared__ float s;
  if (threadIdx.x == 0) s = x[0];  // HERE
  if (threadIdx.x < 16) __syncwarp(0x0000ffffu);
  x[threadIdx.x] = s;
}

// what: two halves of a warp are synchronised separately, and read each other's numbers
// array x: normal(32)
// launch: two_halves_synchronised_apart<<<1, 32>>>(x)
// finds: race: | in kernel two_halves_synchronised_apart, block (
extern "C" __global__ void two_halves_synchronised_apart(float* x) {
  __shared__ float s[32];
  s[threadIdx.x] = x[threadIdx.x];
  __syncwarp(threadIdx.x < 16 ? 0x0000ffffu : 0xffff0000u);
  x[threadIdx.x] = s[(threadIdx.x + 1) % 32];  // HERE
}

// what: three lanes synchronise in pairs, and one reads a number written after the first pair synchronised
// array x: normal(32)
// launch: met_before_it_wrote<<<1, 32>>>(x)
// finds: race: | in kernel met_before_it_wrote, block (
extern "C" __global__ void met_before_it_wrote(float* x) {  // 0 and 8 synchronise, then 8 and 16: 16 sees what 0 wrote before
  __shared__ float s[2];
  if (threadIdx.x == 0) s[0] = 1;
  if (threadIdx.x % 8 == 0 && threadIdx.x < 16) __syncwarp(0x00000101u);
  if (threadIdx.x == 0) s[1] = 2;
  if (threadIdx.x == 8 || threadIdx.x == 16) __syncwarp(0x00010100u);
  if (threadIdx.x == 16) x[0] = s[0];
  if (threadIdx.x == 16) x[1] = s[1];  // HERE
}

// what: a shuffle does not order memory
// array x: normal(32)
// launch: shuffle_for_a_barrier<<<1, 32>>>(x)
// finds: race: | in kernel shuffle_for_a_barrier, block (
extern "C" __global__ void shuffle_for_a_barrier(float* x) {
  __shared__ float s;
  if (threadIdx.x == 0) s = x[0];
  __syncthreads();
  float v = s;
  v += __shfl_xor_sync(FULL, v, 1);  // every lane has read s by now, but a shuffle does not order memory
  if (threadIdx.x == 31)
    s = v;  // HERE
  x[threadIdx.x] = v;
}

// what: threads with equal x and different y write to one place
// array x: zeros(64)
// launch: forgotten_axis<<<1, (8, 8)>>>(x)
// finds: race: | in kernel forgotten_axis, block (
extern "C" __global__ void forgotten_axis(float* x) {
  x[threadIdx.x] = threadIdx.y;  // HERE
}

// what: half a warp waits at a barrier, and the other half spins
// array x: zeros(4)
// launch: barrier_or_spin<<<1, 32>>>(x)
// option: seconds=0.3
// finds: endless: | in kernel barrier_or_spin, block (
extern "C" __global__ void barrier_or_spin(volatile float* x) {
  if (threadIdx.x < 16) __syncthreads();
  else while (!x[0]) __syncwarp(0xffff0000u);
}

// what: a loop that touches no memory never ends
// array x: zeros(4)
// launch: endless_without_memory<<<1, 1>>>(x, 1)
// option: seconds=0.3
// finds: endless: | in kernel endless_without_memory, block (
extern "C" __global__ void endless_without_memory(float* x, int n) {
  int i = 0;
  while (i < 10) n ^= 1;  // HERE
  x[0] = n;
}

// what: an asynchronous copy reads beyond the end
// array x: normal(100)
// array y: zeros(32)
// launch: copy_beyond_the_end<<<1, 32>>>(x, y)
// finds: out of bounds: | in kernel copy_beyond_the_end, block (
extern "C" __global__ void copy_beyond_the_end(const float* x, float* y) {
  __shared__ __align__(16) float s[128];
  copy_async<16>(&s[4 * threadIdx.x], &x[4 * threadIdx.x]);  // HERE
  copy_async_commit();
  copy_async_wait<0>();
}

// what: the finding names the first thread that does not wait for its copies
// array x: normal(64)
// launch: never_waited<<<1, 64>>>(x)
// finds: missing wait: | thread (5,0,0)
extern "C" __global__ void never_waited(const float* x) {
  __shared__ float s[64];
  copy_async<4>(&s[threadIdx.x], &x[threadIdx.x]);
  copy_async_commit();
  if (threadIdx.x < 5) copy_async_wait<0>();
  if (threadIdx.x < 32) __syncwarp();
}

// what: a function overruns the local array that it receives
// array x: zeros(1)
// launch: overruns<<<1, 1>>>(x, 8)
// launch: overruns<<<1, 1>>>(x, 32)
// finds: was written beyond its end | through a pointer
__device__ void fill(float* a, int n) {
  for (int i = 0; i < n; i++) a[i] = i;
}
extern "C" __global__ void overruns(float* x, int n) {
  float a[8];
  fill(a, n);
  x[0] = a[1];
}

// what: a transpose that is wrong for other sizes is right for a square
// array x: normal(6, 6)
// array y: zeros(6, 6)
// launch: wrong_stride<<<1, (6, 6)>>>(x, y, 6, 6)
// gives y: x

// what: an assumption does not hold
// launch: assumes<<<1, 32>>>()
// finds: failure: | __builtin_assume: not so: threadIdx.x < 31
extern "C" __global__ void assumes() {
  __builtin_assume(threadIdx.x < 31);  // THERE
}

// what: the width of a shuffle's segments is not a power of two
// array x: zeros(32)
// launch: width_of_24<<<1, 32>>>(x)
// finds: width must be 1, 2, 4, 8, 16 or 32, got 24
extern "C" __global__ void width_of_24(float* x) {
  x[0] = __shfl_down_sync(0xffffffff, x[0], 1, 24);  // THERE
}
