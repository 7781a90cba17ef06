// Sampling for speculative decoding. `order` sorts the logits after each token and filters them. `judge` accepts or
// replaces the proposed tokens, samples the next token and new proposals. So the host need not act between two rounds.
// Used by engine.Decoder.rounds; generation/generate.py does the same in NumPy. Chapters 14 and 16.
//
// Distribution row (1 + ahead) + head is stored in four arrays. tokens: the V tokens, most likely first; sums: their
// cumulative probabilities; counts: how many of them may be sampled (0: the largest logit is not finite); dense: the
// probabilities in the order of token numbers. Probabilities are double, because NumPy computes them in float64.
#include <nanoeuler.cuh>

#define WHOLE 0xffffffffu

// The sorting key of a token: larger logits first, then lower tokens; NaN before all numbers. Key 0 means no token.
__device__ __forceinline__ unsigned long long key_of(float logit, int token) {
  int bits = isnan(logit) ? 0x7fffffff : __float_as_int(logit + 0.0f);  // adding 0 turns -0 into 0
  unsigned ordered = bits < 0 ? ~(unsigned)bits : (unsigned)bits | 0x80000000u;
  return (unsigned long long)ordered << 32 | (WHOLE - token);
}
__device__ __forceinline__ int token_of(unsigned long long key) { return WHOLE - (unsigned)key; }
__device__ __forceinline__ float logit_of(unsigned long long key) {
  unsigned ordered = key >> 32;
  return __uint_as_float(ordered >> 31 ? ordered & 0x7fffffffu : ~ordered);
}

// One step of Batcher's bitonic sort: which of two keys, `apart` places from each other, place `at` keeps. Parts of
// `size` keys are sorted alternately in falling and rising order; in the end all keys are in falling order.
__device__ __forceinline__ unsigned long long kept(unsigned long long mine, unsigned long long other, int at, int apart,
                                                   int size) {
  bool larger = ((at & apart) == 0) == ((at & size) == 0);
  return (mine > other) == larger ? mine : other;
}

// Sort the block's keys, KEYS per thread. Distant keys are compared through shared memory, others in a warp or thread.
template <int KEYS> __device__ __forceinline__ void sort(unsigned long long (&key)[KEYS], unsigned long long* shared) {
  int count = KEYS * blockDim.x, first = KEYS * threadIdx.x;
  for (int size = 2; size <= count; size *= 2) {
    for (int apart = size / 2; apart >= KEYS; apart /= 2) {
      unsigned long long other[KEYS];
      if (apart >= 32 * KEYS) {
        __syncthreads();
#pragma unroll
        for (int e = 0; e < KEYS; e++) shared[e * blockDim.x + threadIdx.x] = key[e];
        __syncthreads();
      }
#pragma unroll
      for (int e = 0; e < KEYS; e++) {
        if (apart >= 32 * KEYS) other[e] = shared[e * blockDim.x + (threadIdx.x ^ apart / KEYS)];
        else other[e] = __shfl_xor_sync(WHOLE, key[e], apart / KEYS);
      }
#pragma unroll
      for (int e = 0; e < KEYS; e++) key[e] = kept(key[e], other[e], first + e, apart, size);
    }
#pragma unroll
    for (int apart = KEYS / 2; apart > 0; apart /= 2) {
      if (apart >= size) continue;
#pragma unroll
      for (int e = 0; e < KEYS; e++) {
        if (e & apart) continue;
        unsigned long long low = key[e], high = key[e + apart];
        key[e] = kept(low, high, first + e, apart, size);
        key[e + apart] = kept(high, low, first + e + apart, apart, size);
      }
    }
  }
}

// The sum of x over all threads up to this one, inclusive; all: the sum over the whole block. shared: 32 numbers.
__device__ __forceinline__ double sum_up_to(double x, double* shared, double& all) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int by = 1; by < 32; by *= 2) {
    double before = __shfl_up_sync(WHOLE, x, by);
    if (lane >= by) x += before;
  }
  __syncthreads();  // the numbers of the last call have been read
  if (lane == 31) shared[warp] = x;
  __syncthreads();
  double before = 0;
  all = 0;
  for (int w = 0; w < blockDim.x / 32; w++) {
    if (w < warp) before += shared[w];
    all += shared[w];
  }
  return before + x;
}

// Filter logits [rows, (1 + ahead) V] like `filtered_probs` in NumPy, and write the distributions described above.
// Tokens from `size` on get probability 0. Launch a grid of (1 + ahead, rows) with V / KEYS threads per block, rounded
// up to a power of 2, at least 32, and 8 KEYS bytes of shared memory per thread.
template <int KEYS>
__global__ void __launch_bounds__(1024)
order(const float* logits, int* tokens, double* sums, int* counts, double* dense, const int* turn, int V, int size,
      double temperature, int top_k, double top_p, double min_p) {
  extern __shared__ unsigned long long keys[];
  __shared__ double parts[32], whole;
  launch_dependents();
  grid_dependency_wait();
  int number = blockIdx.y * gridDim.x + blockIdx.x, first = KEYS * threadIdx.x;
  const float* z = logits + (size_t)number * V;
  tokens += (size_t)number * V;
  sums += (size_t)number * V;
  dense += ((size_t)(turn[3] % 2) * gridDim.x * gridDim.y + number) * V;
  unsigned long long key[KEYS];
#pragma unroll
  for (int e = 0; e < KEYS; e++) {
    int token = e * blockDim.x + threadIdx.x;  // any order will do before the sort
    key[e] = token < size ? key_of(z[token], token) : 0;
  }
  for (int token = threadIdx.x; token < V; token += blockDim.x) dense[token] = 0;
  if (temperature == 0) {  // greedy: only the largest logit counts
#pragma unroll
    for (int e = 1; e < KEYS; e++) key[0] = key[e] > key[0] ? key[e] : key[0];
    for (int by = 16; by > 0; by /= 2) {
      unsigned long long other = __shfl_xor_sync(WHOLE, key[0], by);
      key[0] = other > key[0] ? other : key[0];
    }
    if (threadIdx.x % 32 == 0) keys[threadIdx.x / 32] = key[0];
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int w = 1; w < blockDim.x / 32; w++) key[0] = keys[w] > key[0] ? keys[w] : key[0];
    tokens[0] = token_of(key[0]);
    sums[0] = dense[tokens[0]] = 1;
    counts[number] = isfinite(logit_of(key[0]));
    return;
  }
  sort<KEYS>(key, keys);
  __syncthreads();
  if (threadIdx.x == 0) keys[0] = key[0];
  __syncthreads();
  float best = logit_of(keys[0]);
  int limit = top_k > 0 && top_k < size ? top_k : size, count = limit;
  double weight[KEYS], sum[KEYS], mine = 0, all;
#pragma unroll
  for (int e = 0; e < KEYS; e++) {
    weight[e] = first + e < limit ? exp((double)(logit_of(key[e]) - best) / temperature) : 0;
    mine += weight[e];
  }
  double before = sum_up_to(mine, parts, all) - mine;
#pragma unroll
  for (int e = 0; e < KEYS; e++) sum[e] = (before += weight[e]);
  if (top_p < 1) {
    int below = 0;
#pragma unroll
    for (int e = 0; e < KEYS; e++) below += __syncthreads_count(first + e < limit && sum[e] / all < top_p);
    count = below + 1 < limit ? below + 1 : limit;
  }
  if (min_p > 0) {
    int likely = 0;
#pragma unroll
    for (int e = 0; e < KEYS; e++) likely += __syncthreads_count(first + e < limit && weight[e] / all >= min_p / all);
    count = likely < count ? likely : count;
  }
#pragma unroll
  for (int e = 0; e < KEYS; e++)
    if (first + e == count - 1) whole = sum[e];
  __syncthreads();  // `whole` and the zeros of `dense` are written
#pragma unroll
  for (int e = 0; e < KEYS; e++) {
    if (first + e >= count) continue;
    tokens[first + e] = token_of(key[e]);
    sums[first + e] = sum[e] / whole;
    dense[token_of(key[e])] = weight[e] / whole;
  }
  if (threadIdx.x == 0) counts[number] = isfinite(best) ? count : 0;
}

// Sample a token: the first whose cumulative probability exceeds `uniform`. All threads of the block must call this.
__device__ __forceinline__ int pick(const int* tokens, const double* sums, int count, double uniform) {
  int at = 0;
  for (int start = 0; start < count; start += blockDim.x)
    at += __syncthreads_count(start + threadIdx.x < count && sums[start + threadIdx.x] <= uniform);
  return tokens[at < count ? at : count - 1];
}

// Sample a token from the positive part of p - q, [V] each. If rounding leaves no positive part, return `other`. `used`
// counts the uniform numbers that were needed.
__device__ __forceinline__ int redrawn(const double* p, const double* q, int V, int other, const double* uniforms,
                                       int ring, int& used, double* parts) {
  __shared__ int found, last;
  int each = (V + blockDim.x - 1) / blockDim.x, first = each * threadIdx.x;
  double mine = 0, all;
  for (int token = first; token < first + each && token < V; token++) mine += fmax(p[token] - q[token], 0.0);
  if (threadIdx.x == 0) found = V, last = -1;
  double sum = sum_up_to(mine, parts, all) - mine;
  if (all == 0) return other;
  double uniform = uniforms[used++ % ring] * all;
  for (int token = first; token < first + each && token < V; token++) {
    double missing = p[token] - q[token];
    if (missing <= 0) continue;
    sum += missing;
    atomicMax(&last, token);
    if (sum > uniform) atomicMin(&found, token);
  }
  __syncthreads();
  return found < V ? found : last;
}

// One round of speculative sampling: accept proposals until one is rejected and replaced, or accept all and sample one
// token more; then propose new tokens. input: position of the first token, that token, the proposals. turn: number of
// proposals, uniform numbers used, row whose later heads made the proposals, number of rounds. told: [slots, 4 +
// ahead], where this round's slot gets the round's number, uniform numbers used, count of new tokens (0: a largest
// logit was not finite) and the new tokens. Launch one block.
extern "C" __global__ void __launch_bounds__(512)
judge(const int* tokens, const double* sums, const int* counts, const double* dense, const double* uniforms, int* input,
      int* turn, int* told, int V, int ahead, int end, int ring, int slots) {
  __shared__ double parts[32];
  launch_dependents();
  grid_dependency_wait();
  int heads = 1 + ahead, guesses = turn[0], used = turn[1], from = turn[2], round = turn[3], start = input[0];
  size_t half = (size_t)heads * heads * V;  // a round has one row for each head
  const double *p = dense + round % 2 * half, *q = dense + (round + 1) % 2 * half;
  int* line = told + round % slots * (4 + ahead);
  int made = 0, place = 0, token = -1;
  bool sound = true;
  for (; sound && place <= guesses; place++) {
    int number = place * heads, guess = place < guesses ? input[2 + place] : -1;
    sound = counts[number] > 0;
    if (!sound) break;
    if (place == guesses) {
      token = pick(tokens + (size_t)number * V, sums + (size_t)number * V, counts[number], uniforms[used++ % ring]);
    } else if (counts[number] == 1) {
      token = tokens[(size_t)number * V];
    } else {
      const double *of = p + (size_t)number * V, *proposed = q + (size_t)(from * heads + 1 + place) * V;
      bool taken = uniforms[used++ % ring] * proposed[guess] < of[guess];
      token = taken ? guess : redrawn(of, proposed, V, guess, uniforms, ring, used, parts);
    }
    __syncthreads();  // all threads have read the data that is overwritten next
    if (threadIdx.x == 0) line[3 + made] = token;
    made++;
    if (token != guess) break;
  }
  int proposals = 0;
  for (int head = 1; sound && head <= ahead; head++) {
    int number = place * heads + head;
    sound = counts[number] > 0;
    if (!sound) break;
    int guess = pick(tokens + (size_t)number * V, sums + (size_t)number * V, counts[number], uniforms[used++ % ring]);
    __syncthreads();
    if (threadIdx.x == 0) input[1 + head] = guess;
    proposals++;
    if (guess == end) break;
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  input[0] = start + made;
  if (token >= 0) input[1] = token;  // otherwise the round already started reads the same token again
  turn[0] = proposals;
  turn[1] = used;
  turn[2] = place;
  turn[3] = round + 1;
  line[0] = round;
  line[1] = used;
  line[2] = sound ? made : 0;
}
