// what: a tree walk pushes one node too many on a local stack, through a pointer
// array left: np.array([1, 3, 5, -1, -1, -1, -1], np.int32)
// array out: np.zeros(1, np.int32)
// launch: walk<<<1, 1>>>(left, out)
// unseen: 7
// finds: local array
__device__ void push(int*& top, int v) { *top++ = v; }
extern "C" __global__ void walk(const int* left, int* out) {
  int stack[2] = {}, *top = stack, count = 0;
  push(top, 0);
  while (top != stack) {
    int node = *--top;
    count++;
    if (left[node] >= 0) {
      push(top, left[node]);
      push(top, left[node] + 1);  // HERE
    }
  }
  *out = count + (top - stack);
}  // HERE
