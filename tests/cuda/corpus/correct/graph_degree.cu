// what: in-degrees with atomics on unsigned short would not do; ints do
// array edges: ints(0, 10, 60)
// array degree: np.zeros(10, np.int32)
// launch: degree_of<<<2, 32>>>(edges, degree, 60)
// gives degree: np.bincount(edges, minlength=10)
typedef int node;
extern "C" __global__ void degree_of(const int* edges, int* degree, int m) {
  int e = blockIdx.x * blockDim.x + threadIdx.x;
  if (e < m) {
    node to = edges[e];
    atomicAdd(degree + to, 1);
  }
}
