// what: components by hooking with atomicMin, in rounds
// array a: np.array([0, 2, 4, 1], np.int32)
// array b: np.array([1, 3, 5, 2], np.int32)
// array parent: np.arange(7, dtype=np.int32)
// launch: unite<<<1, 32>>>(a, b, parent, 4, 7)
// gives parent: np.array([0, 0, 0, 0, 4, 4, 6])
extern "C" __global__ void unite(const int* a, const int* b, int* parent, int edges, int nodes) {
  for (int round = 0; round < nodes; round++) {
    if (threadIdx.x < edges) {
      int u = atomicAdd(&parent[a[threadIdx.x]], 0), v = atomicAdd(&parent[b[threadIdx.x]], 0), low = min(u, v);
      atomicMin(&parent[a[threadIdx.x]], low);
      atomicMin(&parent[b[threadIdx.x]], low);
    }
    __syncthreads();
  }
}
