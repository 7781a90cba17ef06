// what: each thread turns both numbers of a pair in place
// array x: normal(6, 16)
// array angle: normal(8)
// launch: rope<<<6, 8>>>(x, angle, 16)
// gives x ~ 1e-5: np.concatenate([x[:, :8] * np.cos(angle) - x[:, 8:] * np.sin(angle), x[:, 8:] * np.cos(angle) + x[:, :8] * np.sin(angle)], 1)
extern "C" __global__ void rope(float* x, const float* angle, int C) {
  float* row = x + blockIdx.x * C;
  int c = threadIdx.x;
  float s, k, a = row[c], b = row[c + C / 2];
  sincosf(angle[c], &s, &k);
  row[c] = a * k - b * s;
  row[c + C / 2] = b * k + a * s;
}
