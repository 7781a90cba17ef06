// what: a vector loop over 70 floats rounds up
// array x: normal(70)
// launch: scale<<<1, 32>>>(x, 70, 0.5)
// finds: out of bounds | x
extern "C" __global__ void scale(float* x, int n, float by) {
  float4* v = (float4*)x;
  for (int i = threadIdx.x; i < (n + 3) / 4; i += blockDim.x) {
    float4 a = v[i];  // HERE
    a.x *= by, a.y *= by, a.z *= by, a.w *= by;
    v[i] = a;
  }
}
