// what: the next tile of keys is loaded while slow threads still score the last
// array q: normal(16, 8)
// array k: normal(32, 8)
// array v: normal(32, 8)
// array o: zeros(16, 8)
// launch: attend<<<1, 16>>>(q, k, v, o, 32)
// finds: race
extern "C" __global__ void attend(const float* q, const float* k, const float* v, float* o, int T) {
  __shared__ float ks[16][8], vs[16][8];
  int t = threadIdx.x;
  float m = -1e30f, l = 0, acc[8] = {};
  for (int k0 = 0; k0 < T; k0 += 16) {
    for (int c = 0; c < 8; c++) ks[t][c] = k[(k0 + t) * 8 + c], vs[t][c] = v[(k0 + t) * 8 + c];  // HERE
    __syncthreads();
    for (int j = 0; j < 16; j++) {
      float s = 0;
      for (int c = 0; c < 8; c++) s += q[t * 8 + c] * ks[j][c];  // HERE
      float m2 = fmaxf(m, s), a = expf(m - m2), p = expf(s - m2);
      l = l * a + p, m = m2;
      for (int c = 0; c < 8; c++) acc[c] = acc[c] * a + p * vs[j][c];  // HERE
    }
  }
  for (int c = 0; c < 8; c++) o[t * 8 + c] = acc[c] / l;
}
