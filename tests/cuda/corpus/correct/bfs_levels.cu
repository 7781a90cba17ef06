// what: a whole breadth-first search in one block, frontier by frontier
// array start: np.array([0, 2, 4, 5, 6, 6, 7], np.int32)
// array edges: np.array([1, 2, 3, 2, 3, 4, 0], np.int32)
// array level: np.array([0, -1, -1, -1, -1, -1], np.int32)
// launch: search<<<1, 32>>>(start, edges, level, 6)
// gives level: np.array([0, 1, 1, 2, 3, -1])
extern "C" __global__ void search(const int* start, const int* edges, int* level, int n) {
  __shared__ int changed;
  for (int depth = 0;; depth++) {
    __syncthreads();
    if (threadIdx.x == 0) changed = 0;
    __syncthreads();
    int u = threadIdx.x;
    if (u < n && atomicAdd(&level[u], 0) == depth)
      for (int e = start[u]; e < start[u + 1]; e++)
        if (atomicCAS(&level[edges[e]], -1, depth + 1) == -1) atomicExch(&changed, 1);
    __syncthreads();
    if (!changed) break;
  }
}
