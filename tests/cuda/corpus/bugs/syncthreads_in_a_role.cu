// what: only the warps that compute come to __syncthreads()
// array x: normal(64)
// array y: zeros(64)
// launch: roles<<<1, 96>>>(x, y)
// finds: barrier
extern "C" __global__ void roles(const float* x, float* y) {
  __shared__ float s[64];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == 0) {
    for (int i = lane; i < 64; i += 32) s[i] = x[i];
    __syncthreads();  // HERE
  } else {
    __syncthreads();  // HERE
    int i = (warp - 1) * 32 + lane;
    float v = s[i];
    __syncthreads();  // HERE
    y[i] = 2 * v;
  }
}
