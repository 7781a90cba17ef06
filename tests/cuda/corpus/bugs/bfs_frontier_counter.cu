// what: the new frontier's length is counted without an atomic
// array start: np.array([0, 3, 5, 6, 6], np.int32)
// array edges: np.array([1, 2, 3, 2, 3, 3], np.int32)
// array level: np.array([0, -1, -1, -1], np.int32)
// array frontier: np.array([0, 1, 0, 0, 0, 0, 0, 0], np.int32)
// array next: np.zeros(8, np.int32)
// array count: np.zeros(1, np.int32)
// launch: expand<<<1, 32>>>(start, edges, level, frontier, 2, next, count)
// finds: race | count
extern "C" __global__ void expand(const int* start, const int* edges, int* level, const int* frontier, int n, int* next,
                                  int* count) {
  int i = threadIdx.x;
  if (i >= n) return;
  int u = frontier[i];
  for (int e = start[u]; e < start[u + 1]; e++) {
    int v = edges[e];
    if (atomicCAS(&level[v], -1, 1) == -1) {
      int at = *count;  // HERE
      *count = at + 1;  // HERE
      next[at] = v;
    } else if (*count > 100) next[0] = -1;  // HERE
  }
}
