// what: one warp per row; ignored targets give 0
// array logits: normal(6, 40)
// array target: np.array([3, -1, 39, 0, 7, -1], np.int32)
// array loss: zeros(6)
// launch: loss_of<<<2, (32, 3)>>>(logits, target, loss, 40)
// gives loss ~ 1e-4: np.where(target < 0, 0, np.log(np.exp(logits).sum(1)) - logits[np.arange(6), target])
namespace {
__device__ __forceinline__ float sum_over_warp(float v) {
  for (int d = 1; d < 32; d <<= 1) v += __shfl_xor_sync(0xffffffff, v, d);
  return v;
}
}  // namespace
extern "C" __global__ void loss_of(const float* logits, const int* target, float* loss, int V) {
  int row = blockIdx.x * 3 + threadIdx.y;
  float sum = 0;
  for (int v = threadIdx.x; v < V; v += 32) sum += __expf(logits[row * V + v]);
  sum = sum_over_warp(sum);
  if (threadIdx.x == 0) loss[row] = target[row] < 0 ? 0.0f : __logf(sum) - logits[row * V + target[row]];
}
