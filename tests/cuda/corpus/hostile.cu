#include <nanoeuler.cuh>
#include <named_barrier.cuh>
__constant__ int table[8] = {1, 2, 3};
__device__ __noinline__ float helper(int n) { return n; }
__device__ __noinline__ float deep(int depth, int n) {
  volatile float here[16];
  here[n & 15] = depth;
  return depth == 0 ? n : deep(depth + 1, n) + here[n & 15];
}

// body: locals_1m any
volatile float a[250000]; for (int i = 0; i < 250000; i++) a[i] = i; y[0] = a[n];

// body: locals_1g any
volatile float a[250000000]; a[n] = 1; a[0] = 2; y[0] = a[n];

// body: recursion_endless any
y[0] = deep(n, 1);

// body: recursion_deep any
y[threadIdx.x] = deep(-200, n);

// body: variable_length any
float a[n]; a[0] = 1; y[0] = a[0];

// body: stack_downwards any
volatile char c = 0; for (int i = 1; i < 10000000; i++) (&c)[-i] = 1;

// body: stack_upwards any
volatile char c = 0; for (int i = 1; i < 10000000; i++) (&c)[i] = 1;

// body: return_address any
void** frame = (void**)__builtin_frame_address(0); frame[1] = 0; frame[0] = 0;

// body: divide_by_zero error
x[0] = n / x[0];

// body: modulo_zero error
x[0] = n % x[0];

// body: divide_least error
int m = -2147483647 - 1; m += x[0]; x[0] = m / (x[0] - 1);

// body: unreachable any
if (n == 64) __builtin_unreachable();
y[0] = 1;

// body: builtin_trap any
__builtin_trap();

// body: int_of_odd_address any
int* p = (int*)((char*)x + 1); x[40] = *p;

// body: forever_barriers error 0.5
while (true) __syncthreads();

// body: forever_shuffles error 0.5
while (true) n = __shfl_xor_sync(~0u, n, 1);

// body: forever_sleep error 0.5
while (true) __nanosleep(1000000000);

// body: forever_volatile error 0.5
while (((volatile int*)x)[0] == 0) ;

// body: forever_printf error 0.5
while (true) printf("again %d\n", n);

// body: forever_one_thread error 0.5
if (threadIdx.x == 31) {
 while (true) y[31] += 1;
}
__syncthreads();

// body: barrier_by_one error
if (threadIdx.x == 0) __syncthreads();

// body: barrier_and_shuffle error
if (threadIdx.x & 1) __syncthreads(); else n = __shfl_sync(~0u, n, 0);

// body: shuffle_empty_mask error
y[0] = __shfl_sync(0, n, 0);

// body: width_33 error
y[threadIdx.x] = __shfl_down_sync(~0u, n, 1, 33);

// body: named_sixteen error
named_barrier_sync(16, 32);

// body: named_too_many error
named_barrier_sync(1, 2048);

// body: vote_after_return any
if (threadIdx.x > 9) return;
y[threadIdx.x] = __all_sync(~0u, 1);

// body: shuffle_lane_1000 any
y[threadIdx.x] = __shfl_sync(~0u, n, 1000);

// body: barriers_a_thousand any
for (int i = 0; i < 1000; i++) __syncthreads();

// body: printf_null any
printf("%s\n", (char*)0);

// body: printf_int_as_text any
printf("%s\n", n);

// body: printf_counts any
int written; printf("abc%n\n", &written); x[0] = written;

// body: printf_no_arguments any
printf("%d %s %f %p\n");

// body: printf_wide any
printf("%1000000d\n", n);

// body: printf_many any
for (int i = 0; i < 3000; i++) printf("line %d of thread %d\n", i, threadIdx.x);

// body: printf_null_format any
printf((const char*)0);

// body: printf_data_as_format any
memcpy(x, "%s%s%s%n", 9); printf((const char*)x);

// body: copy_async_null error
__shared__ float s[64]; copy_async<16>(s, nullptr); copy_async_commit(); copy_async_wait<0>();

// body: copy_async_past_end error
__shared__ float s[64]; copy_async<16>(s, y + 62); copy_async_commit(); copy_async_wait<0>();

// body: ldmatrix_null error
unsigned r[4]; ldmatrix<4>(r, nullptr); y[0] = r[0];

// body: mma_one_lane error
unsigned a[4] = {}; float d[4] = {}; if (threadIdx.x == 0) mma<tf32>(d, a, a); y[0] = d[0];

// body: memcpy_negative error
memcpy(y, y + 32, (size_t)-4);

// body: memset_4g error
memset(y, 0, 1ull << 32);

// body: assert_false error
assert(n == 65);

// body: trap error
__trap();

// body: write_constant error
table[threadIdx.x] = 1;

// body: underscore_exit error
_exit(3);

// body: atomic_on_constant any
atomicAdd((int*)table, 1);

// body: longjmp any
void* buffer[5]; __builtin_longjmp(buffer, 1);

// body: function_pointer_null any
float (*f)(int) = nullptr; y[0] = f(n);

// body: function_pointer_data any
float (*f)(int) = (float (*)(int))(void*)x; y[0] = f(n);

// text: text_unclosed_comment error
extern "C" __global__ void k(float* y, int* x, int n) { y[threadIdx.x] = x[threadIdx.x] + n; }
/* and so on

// text: text_unclosed_text error
extern "C" __global__ void k(float* y, int* x, int n) { y[threadIdx.x] = x[threadIdx.x] + n; }
const char* s = "and so on;

// text: text_include_missing error
#include <not_there.cuh>
extern "C" __global__ void k(float* y, int* x, int n) { y[threadIdx.x] = x[threadIdx.x] + n; }

// text: text_endless_template error
template <int N> struct T { enum { v = T<N + 1>::v }; };
extern "C" __global__ void k(float* y, int* x, int n) { y[threadIdx.x] = x[threadIdx.x] + T<0>::v; }

// text: text_endless_constexpr error
constexpr int f(int n) { for (;;) n++; return n; }
constexpr int v = f(0);
extern "C" __global__ void k(float* y, int* x, int n) { y[threadIdx.x] = x[threadIdx.x] + n; }

// text: text_int_kernel error
extern "C" __global__ int k(float* y, int* x, int n) { y[threadIdx.x] = x[threadIdx.x] + n; }

// text: text_variadic error
extern "C" __global__ void k(float* y, int* x, int n, ...) { y[threadIdx.x] = x[threadIdx.x] + n; }

// text: text_unicode_name any
extern "C" __global__ void k(float* y, int* x, int n) { int größe = n; n = größe; y[threadIdx.x] = x[threadIdx.x] + n; }

// text: text_commented_kernel any
/* __global__ void fake(int* p) {} */ // __global__ void more(
extern "C" __global__ void k(float* y, int* x, int n) { y[threadIdx.x] = x[threadIdx.x] + n; }

// text: text_kernel_overloaded any
__global__ void k(float* y, int* x, int n) { y[0] = 1; }
__global__ void k(float* y, int* x, float n) { y[0] = 2; }

// text: text_kernel_main any
extern "C" __global__ void main(float* y, int* x, int n) { y[threadIdx.x] = x[threadIdx.x] + n; }

// text: text_kernel_malloc any
extern "C" __global__ void malloc(float* y, int* x, int n) { y[threadIdx.x] = x[threadIdx.x] + n; }

// text: text_constructor_aborts any
struct S { S() { *(volatile int*)0 = 1; } } s;
extern "C" __global__ void k(float* y, int* x, int n) { y[threadIdx.x] = x[threadIdx.x] + n; }

// text: text_constructor_loops any
int spin() { volatile int v = 1; while (v) ; return v; }
int started = spin();
extern "C" __global__ void k(float* y, int* x, int n) { y[threadIdx.x] = x[threadIdx.x] + n; }

// text: text_destructor_traps any
struct S { ~S() { __builtin_trap(); } } s;
extern "C" __global__ void k(float* y, int* x, int n) { y[threadIdx.x] = x[threadIdx.x] + n; }

// text: text_system any
#include <stdlib.h>
extern "C" __global__ void k(float* y, int* x, int n) { system("exit 1"); y[threadIdx.x] = x[threadIdx.x] + n; }

// text: text_signal_self any
#include <signal.h>
extern "C" __global__ void k(float* y, int* x, int n) { raise(SIGSEGV); y[threadIdx.x] = x[threadIdx.x] + n; }
