// what: all threads poll until one sets a flag, whichever it is
// array first: np.zeros(64, np.int32)
// array middle: np.zeros(64, np.int32)
// array last: np.zeros(64, np.int32)
// launch: poll<<<1, 64>>>(first, 0)
// launch: poll<<<1, 64>>>(middle, 40)
// launch: poll<<<1, 64>>>(last, 63)
// gives first: np.ones(64)
// gives middle: np.ones(64)
// gives last: np.ones(64)
extern "C" __global__ void poll(int* y, int setter) {
  volatile __shared__ int flag;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  __threadfence();
  if (threadIdx.x == setter) flag = 1;
  else while (flag == 0) {}
  y[threadIdx.x] = 1;
}

// what: an exchange is the first to write shared memory
// array x: zeros(32)
// launch: exchange<<<1, 32>>>(x)
// gives x: np.full(32, 19)
extern "C" __global__ void exchange(float* x) {
  __shared__ int s[2];
  if (threadIdx.x < 2) atomicExch(&s[threadIdx.x], 3);
  __syncthreads();
  atomicAdd(&s[threadIdx.x % 2], 1);
  __syncthreads();
  x[threadIdx.x] = s[threadIdx.x % 2];
}
