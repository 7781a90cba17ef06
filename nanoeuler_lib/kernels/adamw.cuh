// adamw.cuh: the update of one parameter by AdamW. Loshchilov and Hutter 2019, algorithm 2; chapter 11.
#pragma once

struct Step {  // the numbers that are the same for every parameter
  float clip, rate, unbias1, unbias2, beta1, beta2, eps, decay;
};

__device__ __forceinline__ void update(float& p, float g, float& m, float& v, const Step& s, bool decays) {
  g *= s.clip;
  m += (1.0f - s.beta1) * (g - m);
  v += (1.0f - s.beta2) * (g * g - v);
  float change = m * s.unbias1 / (sqrtf(v * s.unbias2) + s.eps);
  if (decays) change += s.decay * p;
  p -= s.rate * change;
}
