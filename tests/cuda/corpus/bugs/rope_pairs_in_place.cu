// what: each thread turns one number in place and needs its partner's old value
// array x: normal(4, 16)
// array angle: normal(8)
// launch: rope<<<4, 16>>>(x, angle, 16)
// finds: race | x
extern "C" __global__ void rope(float* x, const float* angle, int C) {
  float* row = x + blockIdx.x * C;
  int c = threadIdx.x, half = C / 2, pair = c < half ? c + half : c - half;
  float s, k;
  sincosf(angle[c % half], &s, &k);
  row[c] = row[c] * k + (c < half ? -1 : 1) * row[pair] * s;  // HERE
}
