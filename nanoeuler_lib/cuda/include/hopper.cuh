// hopper.cuh: what came with compute capability 9.0: products of a whole warpgroup (wgmma), the copy engine of tiles (TMA),
// barriers in shared memory that count bytes, clusters of blocks. For the GPU alone, compiled for sm_90a. On the CPU a call
// is refused with the name of its twin, which the checker knows: write both, the one under #ifdef __CUDACC__, the other
// behind #else, and the CPU checks the indices, the barriers and the sums of the kernel around them.
//
//   mbarrier_init(b, n)        b: an unsigned long long in __shared__ memory; a phase ends with n arrivals and all bytes
//   mbarrier_arrive(b)         one arrival; mbarrier_expect(b, bytes): one arrival that announces the bytes of copies
//   mbarrier_wait(b, parity)   until the phase of that parity, 0, 1, 0, ..., has ended
//   fence_async()              what threads wrote to shared memory becomes visible to TMA and wgmma (and mbarrier_init to all)
//   copy_tile(shared, map, column, row, b)   one thread: a box of a matrix, as its TensorMap says, to shared memory; what
//                              lies outside of the matrix becomes zeros; the bytes count at b
//   wgmma_tile(shared)         describes a tile for wgmma: rows of 64 16-bit numbers, in pieces of 16 bytes of which number
//                              c of row r lies at c ^ (r % 8) (the swizzle of 128 bytes), from a multiple of 1024 bytes on;
//                              add 2 to come to the next 16 columns
//   wgmma_m64n64k16(d, a, b)   d += a b^T: 64 x 16 and 64 x 16 bfloat16 described by a and b, asynchronously, by the 128
//                              threads of four warps; d[i] is row 16 warp + lane / 4 + 8 (i / 2 % 2), column
//                              8 (i / 4) + 2 (lane % 4) + i % 2
//   wgmma_fence(), wgmma_commit(), wgmma_wait<N>()   before the first product; end a group; until at most N are under way
//   cluster_rank(), cluster_sync()   which block of its cluster this is; a barrier of them all
//
// (PTX ISA, "Asynchronous warpgroup level matrix instructions", "Tensor copy", "mbarrier".)
#pragma once

// A matrix in global memory for copy_tile: cuTensorMapEncodeTiled fills it on the host. A kernel takes it by value:
// const __grid_constant__ TensorMap map.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

#ifdef __CUDACC__

#define NE_HOPPER __device__ __forceinline__

namespace nanoeuler_runtime {
NE_HOPPER unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
}  // namespace nanoeuler_runtime

NE_HOPPER void mbarrier_init(unsigned long long* b, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(nanoeuler_runtime::shared_address(b)), "r"(arrivals) : "memory");
}
NE_HOPPER void mbarrier_arrive(unsigned long long* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(nanoeuler_runtime::shared_address(b)) : "memory");
}
NE_HOPPER void mbarrier_expect(unsigned long long* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               ::"r"(nanoeuler_runtime::shared_address(b)), "r"(bytes) : "memory");
}
NE_HOPPER void mbarrier_wait(unsigned long long* b, int parity) {
  unsigned ended;
  do {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(ended) : "r"(nanoeuler_runtime::shared_address(b)), "r"(parity) : "memory");
  } while (!ended);
}
NE_HOPPER void fence_async() {
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}
NE_HOPPER void copy_tile(void* shared, const TensorMap* map, int column, int row, unsigned long long* b) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
               ::"r"(nanoeuler_runtime::shared_address(shared)), "l"(map), "r"(nanoeuler_runtime::shared_address(b)),
               "r"(column), "r"(row) : "memory");
}

NE_HOPPER unsigned long long wgmma_tile(const void* shared) {
  unsigned long long address = nanoeuler_runtime::shared_address(shared);
  return (address & 0x3ffff) >> 4 | 1ull << 16 | (unsigned long long)(1024 >> 4) << 32 | 1ull << 62;
}
NE_HOPPER void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
NE_HOPPER void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int GROUPS> NE_HOPPER void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
}
NE_HOPPER void wgmma_m64n64k16(float* d, unsigned long long a, unsigned long long b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, 1, 1, 0, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b) : "memory");
}

NE_HOPPER unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
NE_HOPPER void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

#undef NE_HOPPER

#else  // on the CPU: a template, so that the compiler refuses a call and not the header

#define NE_FOR_THE_GPU(NAME, TWIN)                                                                                \
  template <int N = 0, class... Arguments> unsigned long long NAME(Arguments...) {                                \
    static_assert(sizeof...(Arguments) > 99, #NAME " is for the GPU (9.0), under #ifdef __CUDACC__: behind #else write " TWIN); \
    return 0;                                                                                                     \
  }
NE_FOR_THE_GPU(mbarrier_init, "nothing, and __syncthreads() for the waits")
NE_FOR_THE_GPU(mbarrier_arrive, "__syncthreads()")
NE_FOR_THE_GPU(mbarrier_expect, "copy_async_commit()")
NE_FOR_THE_GPU(mbarrier_wait, "copy_async_wait<0>() and __syncthreads()")
NE_FOR_THE_GPU(fence_async, "__syncthreads()")
NE_FOR_THE_GPU(copy_tile, "copy_async<16>(shared, global, given) by all threads")
NE_FOR_THE_GPU(wgmma_tile, "the address itself, for ldmatrix")
NE_FOR_THE_GPU(wgmma_fence, "__syncwarp()")
NE_FOR_THE_GPU(wgmma_commit, "nothing: mma ends where it stands")
NE_FOR_THE_GPU(wgmma_wait, "__syncthreads(), before the tiles are written again")
NE_FOR_THE_GPU(wgmma_m64n64k16, "ldmatrix and mma<__nv_bfloat16> in each of the four warps, of its 16 rows")
NE_FOR_THE_GPU(cluster_rank, "0: the CPU runs single blocks")
NE_FOR_THE_GPU(cluster_sync, "__syncthreads()")
#undef NE_FOR_THE_GPU

#endif
