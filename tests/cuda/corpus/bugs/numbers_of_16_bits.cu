#include <cuda_bf16.h>
#define Number __nv_bfloat16

// what: a 16-bit number beyond the end, as argument
// array x: np.zeros(32, np.uint16)
// array y: np.zeros(32, np.uint16)
// launch: as_argument<<<1, 1>>>(x, y, 31)
// launch: as_argument<<<1, 1>>>(x, y, 32)
// finds: out of bounds: | x[32]
extern "C" __global__ void as_argument(const Number* x, Number* y, int i) {
  float v = __bfloat162float(x[i]);  // THERE
  y[0] = __float2bfloat16(v);
}

// what: a 16-bit number beyond the end, as float
// array x: np.zeros(32, np.uint16)
// array y: np.zeros(32, np.uint16)
// launch: as_float<<<1, 1>>>(x, y, 31)
// launch: as_float<<<1, 1>>>(x, y, 32)
// finds: out of bounds: | x[32]
extern "C" __global__ void as_float(const Number* x, Number* y, int i) {
  y[0] = __float2bfloat16(2 * (float)x[i]);  // THERE
}

// what: a 16-bit number beyond the end, as operand
// array x: np.zeros(32, np.uint16)
// array y: np.zeros(32, np.uint16)
// launch: as_operand<<<1, 1>>>(x, y, 31)
// launch: as_operand<<<1, 1>>>(x, y, 32)
// finds: out of bounds: | x[32]
extern "C" __global__ void as_operand(const Number* x, Number* y, int i) {
  y[0] = x[0] * x[i];  // THERE
}

// what: a 16-bit number beyond the end, as pair
// array x: np.zeros(32, np.uint16)
// array y: np.zeros(32, np.uint16)
// launch: as_pair<<<1, 1>>>(x, y, 31)
// launch: as_pair<<<1, 1>>>(x, y, 32)
// finds: out of bounds: | x[32]
extern "C" __global__ void as_pair(const __nv_bfloat162* x, Number* y, int i) {
  float2 v = __bfloat1622float2(x[i / 2]);  // THERE
  y[0] = __float2bfloat16(v.y);
}

// what: a 16-bit number beyond the end, as target
// array x: np.zeros(32, np.uint16)
// array y: np.zeros(32, np.uint16)
// launch: as_target<<<1, 1>>>(x, y, 31)
// launch: as_target<<<1, 1>>>(x, y, 32)
// finds: out of bounds: | y[32]
extern "C" __global__ void as_target(const Number* x, Number* y, int i) {
  y[i] = x[0];  // THERE
}

// what: a 16-bit number beyond the end, as sum
// array x: np.zeros(32, np.uint16)
// array y: np.zeros(32, np.uint16)
// launch: as_sum<<<1, 1>>>(x, y, 31)
// launch: as_sum<<<1, 1>>>(x, y, 32)
// finds: out of bounds: | y[32]
extern "C" __global__ void as_sum(const Number* x, Number* y, int i) {
  y[i] += x[0];  // THERE
}
