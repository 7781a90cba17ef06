// what: a shifted row is read as float4
// array x: normal(65)
// array y: zeros(64)
// launch: shifted<<<1, 16>>>(x, y)
// finds: 16
extern "C" __global__ void shifted(const float* x, float* y) {
  float4 v = reinterpret_cast<const float4*>(x + 1)[threadIdx.x];  // HERE
  reinterpret_cast<float4*>(y)[threadIdx.x] = v;
}
