// what: the pipeline waits for all but one group in its last step, too
// array x: normal(4, 128)
// array y: zeros(128)
// launch: sum<<<1, 32>>>(x, y, 4)
// finds: s[
#include <nanoeuler.cuh>
extern "C" __global__ void sum(const float* x, float* y, int rows) {
  __shared__ __align__(16) float s[2][128];
  int t = threadIdx.x;
  float4 acc = make_float4(0, 0, 0, 0);
  copy_async<16>(&s[0][4 * t], x + 4 * t);
  copy_async_commit();
  for (int r = 0; r < rows; r++) {
    if (r + 1 < rows) {
      copy_async<16>(&s[(r + 1) & 1][4 * t], x + (r + 1) * 128 + 4 * t);
      copy_async_commit();
    }
    copy_async_wait<1>();
    float4 v = *reinterpret_cast<float4*>(&s[r & 1][4 * t]);  // HERE
    acc.x += v.x, acc.y += v.y, acc.z += v.z, acc.w += v.w;
  }
  *reinterpret_cast<float4*>(y + 4 * t) = acc;
}
