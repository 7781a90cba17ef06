// The next tokens of one text, drawn on the GPU: `order` sorts what the logits say behind each token read and leaves what
// may be drawn, `judge` takes or replaces the proposed tokens, draws the next one and proposes anew. The host then need not
// answer before the next tokens are read. engine.Decoder.rounds; generation/generate.py has the same in NumPy, chapters 14, 16.
//
// A distribution has number row (1 + ahead) + head: of V tokens, most likely first, `tokens`, sums of their
// probabilities up to each, `sums`, how many of them may be drawn, `counts` (0: the largest logit is no finite number), and
// in the order of the tokens' numbers their probabilities, `dense`. All in double, in which NumPy computes them.
#include <nanoeuler.cuh>

#define WHOLE 0xffffffffu

// A larger key comes first: by logit, of equal ones by the lower token; 0 is no token. NaN comes before all numbers.
__device__ __forceinline__ unsigned long long key_of(float logit, int token) {
  int bits = isnan(logit) ? 0x7fffffff : __float_as_int(logit + 0.0f);  // + 0: of -0 makes 0
  unsigned ordered = bits < 0 ? ~(unsigned)bits : (unsigned)bits | 0x80000000u;
  return (unsigned long long)ordered << 32 | (WHOLE - token);
}
__device__ __forceinline__ int token_of(unsigned long long key) { return WHOLE - (unsigned)key; }
__device__ __forceinline__ float logit_of(unsigned long long key) {
  unsigned ordered = key >> 32;
  return __uint_as_float(ordered >> 31 ? ordered & 0x7fffffffu : ~ordered);
}

// One of two keys that lie `apart` places from each other, for the place `at` of a part of `size` keys: Batcher's bitonic
// sort, by which every second part falls and the others rise, and at the end all keys fall.
__device__ __forceinline__ unsigned long long kept(unsigned long long mine, unsigned long long other, int at, int apart,
                                                   int size) {
  bool larger = ((at & apart) == 0) == ((at & size) == 0);
  return (mine > other) == larger ? mine : other;
}

// Sort KEYS of each thread: keys that are far apart meet in shared memory, nearer ones in a warp, the nearest in a thread.
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

// The sum of x over threads up to this one; all: over all threads. shared: 32 numbers.
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

// Which tokens logits [rows, (1 + ahead) V] leave to be drawn, and how probable each is, as `filtered_probs`. Tokens from
// `size` on have none. Grid (1 + ahead, rows), blocks of V / KEYS threads, rounded up to a power of 2 from 32 on, with
// 8 KEYS bytes of shared memory for each.
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
    int token = e * blockDim.x + threadIdx.x;  // in any order
    key[e] = token < size ? key_of(z[token], token) : 0;
  }
  for (int token = threadIdx.x; token < V; token += blockDim.x) dense[token] = 0;
  if (temperature == 0) {  // the largest alone
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
  __syncthreads();  // and dense is 0
#pragma unroll
  for (int e = 0; e < KEYS; e++) {
    if (first + e >= count) continue;
    tokens[first + e] = token_of(key[e]);
    sums[first + e] = sum[e] / whole;
    dense[token_of(key[e])] = weight[e] / whole;
  }
  if (threadIdx.x == 0) counts[number] = isfinite(best) ? count : 0;
}

// A token of a distribution: the first whose sum is more than `uniform`. For all threads of the block.
__device__ __forceinline__ int pick(const int* tokens, const double* sums, int count, double uniform) {
  int at = 0;
  for (int start = 0; start < count; start += blockDim.x)
    at += __syncthreads_count(start + threadIdx.x < count && sums[start + threadIdx.x] <= uniform);
  return tokens[at < count ? at : count - 1];
}

// A token drawn from the positive part of p - q, [V] each; `other` where there is none, as rounding may have it. `used`
// grows by one where a uniform number is needed.
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

// One round: of the proposals in input[2...], of which there are turn[0], those up to the first that is not taken, or all and
// one token more; then new proposals. input: the place of the first token read, that token, the proposals; turn: how many
// proposals, how many of the uniform numbers are used, the row whose later heads proposed, how many rounds there were. told:
// [slots, 4 + ahead]: in the slot of this round its number, uniform numbers used, how many tokens are new (0: a largest logit
// is no finite number), and these. One block.
extern "C" __global__ void __launch_bounds__(512)
judge(const int* tokens, const double* sums, const int* counts, const double* dense, const double* uniforms, int* input,
      int* turn, int* told, int V, int ahead, int end, int ring, int slots) {
  __shared__ double parts[32];
  launch_dependents();
  grid_dependency_wait();
  int heads = 1 + ahead, guesses = turn[0], used = turn[1], from = turn[2], round = turn[3], start = input[0];
  size_t half = (size_t)heads * heads * V;  // a round has as many rows as heads
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
    __syncthreads();  // all have read what the next round overwrites
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
  if (token >= 0) input[1] = token;  // else the round under way reads the same again
  turn[0] = proposals;
  turn[1] = used;
  turn[2] = place;
  turn[3] = round + 1;
  line[0] = round;
  line[1] = used;
  line[2] = sound ? made : 0;
}
