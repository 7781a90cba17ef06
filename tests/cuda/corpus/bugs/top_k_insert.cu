// what: insertion shifts the last of eight best into a ninth place
// array x: normal(4, 40)
// array best: zeros(4, 8)
// launch: top<<<1, 4>>>(x, best, 40)
// finds: top
extern "C" __global__ void top(const float* x, float* best, int n) {
  float top8[8];
  for (int k = 0; k < 8; k++) top8[k] = -1e30f;
  for (int i = 0; i < n; i++) {
    float v = x[threadIdx.x * n + i];
    int at = 8;
    while (at > 0 && top8[at - 1] < v) at--;
    for (int k = 8; k > at; k--) top8[k] = top8[k - 1];  // HERE
    if (at < 8) top8[at] = v;
  }
  for (int k = 0; k < 8; k++) best[threadIdx.x * 8 + k] = top8[k];
}
