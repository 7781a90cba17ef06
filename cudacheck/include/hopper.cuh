// hopper.cuh: features of compute capability 9.0: products by a whole warpgroup (wgmma), the tensor memory accelerator
// (TMA), barriers in shared memory that count bytes, and clusters of blocks. They need sm_90a, for which the launcher
// compiles on such a GPU. On other GPUs and on the CPU a call is refused with the name of its substitute, which every
// GPU from 8.0 on has and the checker supports. Write both, the one under #ifdef __CUDA_ARCH_FEAT_SM90_ALL (CUDA's macro
// for 9.0a), the other after #else; the CPU then checks the indices, barriers and sums of the kernel around them.
//
//   mbarrier_init(b, n)        b: an unsigned long long in __shared__ memory; a phase ends with n arrivals and all bytes
//   mbarrier_arrive(b)         arrive once; mbarrier_expect(b, bytes): arrive once and announce the bytes of copies
//   mbarrier_wait(b, parity)   wait until the phase of that parity, 0, 1, 0, ..., has ended
//   fence_async()              make threads' writes to shared memory visible to TMA and wgmma, and mbarrier_init visible
//                              to all threads
//   copy_tile(shared, map, column, row, b)   copy a box of a matrix, described by its TensorMap, to shared memory; called
//                              by one thread; elements outside of the matrix become zeros; the bytes count at b
//   copy_tile(shared, map, column, row, matrix, b)   the same for one of several matrices, [matrices, rows, columns]
//   wgmma_tile(shared)         return the descriptor of a tile for wgmma: rows of 128 bytes in pieces of 16 bytes, piece
//                              c of row r at position c ^ (r % 8) (the 128-byte swizzle), starting at a multiple of
//                              1024 bytes; add 2 to move to the next 32 bytes of each row
//   wgmma<N, T>(d, a, b, add)  d += a b^T, or d = a b^T if add is 0 (it is 1 by default): 64 rows and N rows of 32 bytes, described by a and b, asynchronously, by the
//                              128 threads of four warps; N = 64, 128 or 256, T = __nv_bfloat16, __half or tf32 (float
//                              numbers whose last 13 bits are ignored); d has N / 2 numbers per thread, indexed by
//                              compile-time constants: d[i] is row 16 warp + lane / 4 + 8 (i / 2 % 2), column
//                              8 (i / 4) + 2 (lane % 4) + i % 2
//   wgmma_of_registers<T>(d, a, b)   d += a b: 64 x 16 numbers a in registers, each warp's 16 rows laid out as for mma,
//                              and 16 rows of 64 numbers, described by b; T = __nv_bfloat16 or __half; add 128 to move
//                              to the next 16 rows
//   wgmma_hold<N>(d)           keep the compiler from moving uses of the N registers d past this line; call it before the
//                              fence and after the wait, since the compiler does not know that wgmma accesses them
//   wgmma_fence(), wgmma_commit(), wgmma_wait<N>()   call before the first product; end a group; wait for all but N groups
//   take_registers<N>(), give_registers<N>()   let each thread of the warpgroup have N registers from now on, more or
//                              fewer than before; all warpgroups together may not have more than at the start
//   cluster_rank(), cluster_sync()   return this block's number in its cluster; wait for all blocks of the cluster
//
// (PTX ISA, "Asynchronous warpgroup level matrix instructions", "Tensor copy", "mbarrier".)
#pragma once

// Describes a matrix in global memory for copy_tile; made by cuda.tensor_map. A kernel takes it by value:
// const __grid_constant__ TensorMap map.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

struct __half;
struct __nv_bfloat16;
struct tf32;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

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
NE_HOPPER void copy_tile(void* shared, const TensorMap* map, int column, int row, int matrix, unsigned long long* b) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
               ::"r"(nanoeuler_runtime::shared_address(shared)), "l"(map), "r"(nanoeuler_runtime::shared_address(b)),
               "r"(column), "r"(row), "r"(matrix) : "memory");
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
template <int N> NE_HOPPER void wgmma_hold(float* d) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N> NE_HOPPER void wgmma_hold(unsigned* a) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+r"(a[i])::"memory");
}
template <int N, class T> NE_HOPPER void wgmma(float* d, unsigned long long a, unsigned long long b, int add = 1) {
  static_assert(N == 0, "wgmma multiplies by 64, 128 or 256 rows of __nv_bfloat16, __half or tf32");
}

#define NE_NAMES_64 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NE_NAMES_128 NE_NAMES_64 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NE_NAMES_256 NE_NAMES_128 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define NE_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define NE_16(i) NE_4(i), NE_4(i + 4), NE_4(i + 8), NE_4(i + 12)
#define NE_SUMS_64(i) NE_16(i), NE_16(i + 16)
#define NE_SUMS_128(i) NE_SUMS_64(i), NE_SUMS_64(i + 32)
#define NE_SUMS_256(i) NE_SUMS_128(i), NE_SUMS_128(i + 64)
#define NE_WGMMA(N, A, B, ADD, T, TYPES, LAYOUTS)                                                                     \
  template <> NE_HOPPER void wgmma<N, T>(float* d, unsigned long long a, unsigned long long b, int add) {             \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N TYPES         \
                 " {" NE_NAMES_##N "}, %" #A ", %" #B ", p, 1, 1" LAYOUTS ";\n}"                                      \
                 : NE_SUMS_##N(0) : "l"(a), "l"(b), "r"(add) : "memory");                                             \
  }
#define NE_WGMMAS(T, TYPES, LAYOUTS)             \
  NE_WGMMA(64, 32, 33, 34, T, TYPES, LAYOUTS)    \
  NE_WGMMA(128, 64, 65, 66, T, TYPES, LAYOUTS)   \
  NE_WGMMA(256, 128, 129, 130, T, TYPES, LAYOUTS)
NE_WGMMAS(__nv_bfloat16, "k16.f32.bf16.bf16", ", 0, 0")
NE_WGMMAS(__half, "k16.f32.f16.f16", ", 0, 0")
NE_WGMMAS(tf32, "k8.f32.tf32.tf32", "")
template <class T> NE_HOPPER void wgmma_of_registers(float* d, const unsigned* a, unsigned long long b) {
  static_assert(sizeof(T) == 0, "wgmma_of_registers multiplies __nv_bfloat16 or __half");
}
#define NE_WGMMA_OF_REGISTERS(T, TYPES)                                                                               \
  template <> NE_HOPPER void wgmma_of_registers<T>(float* d, const unsigned* a, unsigned long long b) {               \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPES " {" NE_NAMES_64 "}, {%32, %33, %34, %35}, %36,"   \
                 " 1, 1, 1, 1;"                                                                                       \
                 : NE_SUMS_64(0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b) : "memory");                    \
  }
NE_WGMMA_OF_REGISTERS(__nv_bfloat16, "bf16.bf16")
NE_WGMMA_OF_REGISTERS(__half, "f16.f16")
#undef NE_WGMMA_OF_REGISTERS
#undef NE_WGMMAS
#undef NE_WGMMA
#undef NE_SUMS_256
#undef NE_SUMS_128
#undef NE_SUMS_64
#undef NE_16
#undef NE_4
#undef NE_NAMES_256
#undef NE_NAMES_128
#undef NE_NAMES_64

template <int N> NE_HOPPER void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> NE_HOPPER void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }

NE_HOPPER unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
NE_HOPPER void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

#undef NE_HOPPER

#else  // a template, so that the compiler refuses a call and not the header

#ifdef __CUDACC__
#define NE_HOPPER __device__
#else
#define NE_HOPPER
#endif

#define NE_REFUSE(NAME, TWIN, PARAMETER)                                                                              \
  template <PARAMETER, class... Arguments> NE_HOPPER unsigned long long NAME(Arguments...) {                          \
    static_assert(sizeof...(Arguments) > 99,                                                                          \
                  #NAME " is for the GPU (9.0), under #ifdef __CUDA_ARCH_FEAT_SM90_ALL: after #else write " TWIN);     \
    return 0;                                                                                                         \
  }
#define NE_FOR_THE_GPU(NAME, TWIN) NE_REFUSE(NAME, TWIN, int N = 0)
NE_FOR_THE_GPU(mbarrier_init, "nothing: named_barrier.cuh has the waits")
NE_FOR_THE_GPU(mbarrier_arrive, "named_barrier_arrive")
NE_FOR_THE_GPU(mbarrier_expect, "copy_async_commit()")
NE_FOR_THE_GPU(mbarrier_wait, "named_barrier_sync; copying warps call copy_async_wait<0>(), named_barrier_arrive")
NE_FOR_THE_GPU(fence_async, "__syncthreads()")
NE_FOR_THE_GPU(copy_tile, "copy_async<16>(shared, global, given) by all threads")
NE_FOR_THE_GPU(wgmma_tile, "the address itself, for ldmatrix")
NE_FOR_THE_GPU(wgmma_fence, "__syncwarp()")
NE_FOR_THE_GPU(wgmma_commit, "nothing: mma is synchronous")
NE_FOR_THE_GPU(wgmma_wait, "__syncthreads(), before the tiles are written again")
#define NE_COMMA ,
NE_REFUSE(wgmma, "ldmatrix and mma<T> in each of the four warps, of its 16 rows", int N NE_COMMA class T)
NE_REFUSE(wgmma_of_registers, "ldmatrix_trans and mma<T>", class T)
NE_FOR_THE_GPU(wgmma_hold, "nothing")
NE_FOR_THE_GPU(take_registers, "nothing")
NE_FOR_THE_GPU(give_registers, "nothing")
NE_FOR_THE_GPU(cluster_rank, "0: the CPU runs single blocks")
NE_FOR_THE_GPU(cluster_sync, "__syncthreads()")
#undef NE_COMMA
#undef NE_FOR_THE_GPU
#undef NE_REFUSE
#undef NE_HOPPER

#endif
