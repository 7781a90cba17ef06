// what: keys and values share dynamic memory of which only the keys were asked for
// array key: ints(0, 99, 64)
// array value: normal(64)
// launch: reverse<<<1, 64, 256>>>(key, value)
// finds: out of bounds
extern "C" __global__ void reverse(int* key, float* value) {
  extern __shared__ char memory[];
  int* keys = (int*)memory;
  float* values = (float*)(keys + 64);
  int t = threadIdx.x;
  keys[t] = key[t];
  values[t] = value[t];  // HERE
  __syncthreads();
  key[t] = keys[63 - t];
  value[t] = values[63 - t];
}
