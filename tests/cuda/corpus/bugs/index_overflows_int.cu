// what: row times pitch in int, at a batch of which only the offset is large
// array x: normal(16)
// array y: zeros(16)
// launch: gather<<<1, 16>>>(x, y, 70000, 65536)
// finds: overflow
extern "C" __global__ void gather(const float* x, float* y, int row, int pitch) {
  int offset = row * pitch;  // HERE
  y[threadIdx.x] = x[(offset + threadIdx.x) % 16];
}
