// The dialect in which all kernels are written. One source has two compilers: NVRTC makes the code
// of a GPU, and a C++ compiler makes the code of the emulator (emulator/emulator.h), in which each
// CUDA thread is a fibre.
//
// Rules of the dialect:
// * A kernel is declared by `KERNEL(name, Parameters, threads, blocks)` and takes one structure,
//   whose fields have the same order and the same size as its twin in device/src/gpu/kernels.rs.
//   `blocks` is the number of blocks that a multiprocessor must be able to hold.
// * No kernel takes a scalar that changes from step to step. Such a number is read through a
//   pointer into device memory, because a replayed graph would use the captured argument.
// * Arithmetic is that of the processor: no contraction (`--fmad=false`), and `fused` where the
//   definition of an operation says so. No function of CUDA's mathematical library is called.
// * No thread leaves a kernel before a barrier that others wait for.
// * No atomic operation on a float, and no kernel that waits for another block.
#pragma once

#if defined(__CUDACC_RTC__) || defined(__CUDACC__)

#define KERNEL(name, Parameters, threads, blocks) \
  extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ Parameters p)
#define DEVICE static __device__ __forceinline__
#define LAMBDA [&]
#define SHARED(Type, name, count) __shared__ __align__(16) Type name[count]
#define DYNAMIC_SHARED(Type, name) extern __shared__ __align__(16) unsigned char zn_dynamic[]; \
  Type* const name = (Type*)zn_dynamic
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
// Hides the value of an integer from the optimiser, so that what is computed from it is computed
// behind this place and not kept in registers across a loop.
#define OPAQUE(x) asm volatile("" : "+r"(x))

DEVICE float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE float root(float x) { return __fsqrt_rn(x); }
DEVICE double root(double x) { return __dsqrt_rn(x); }
DEVICE float from_bits(unsigned x) { return __uint_as_float(x); }
DEVICE unsigned to_bits(float x) { return __float_as_uint(x); }
DEVICE float magnitude(float x) { return __uint_as_float(__float_as_uint(x) & 0x7fffffffu); }

// Copy 4 bytes, or the first `bytes` of 16, to shared memory without a register. The rest is zero.
DEVICE void copy4_async(float* to, const float* from, bool live) {
  unsigned shared = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(from), "r"(live ? 4 : 0) : "memory");
}
DEVICE void copy16_async(float* to, const float* from, unsigned bytes) {
  unsigned shared = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from), "r"(bytes) : "memory");
}
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `Pending` of the groups that this thread has committed are under way.
template <int Pending> DEVICE void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory"); }

template <class T> DEVICE T read_only(const T* from) { return __ldg(from); }
DEVICE void store_streaming(float4* to, float4 value) { __stcs(to, value); }
DEVICE void store_streaming(float* to, float value) { __stcs(to, value); }

#else

#include "emulator/emulator.h"

#endif

typedef unsigned u32;
typedef unsigned long long u64;

const u32 ALL_LANES = 0xffffffffu;
// The number of interleaved partial sums of a sum over columns (device/src/simd/reduce.rs).
const u32 SUMS = 16;

// A number of rows: `*at` if `at` is given, and at most `most` in any case.
struct Count {
  const u32* at;
  u32 most;
  u32 unused;
};
DEVICE u32 count(const Count& c) {
  const u32 n = c.at ? read_only(c.at) : c.most;
  return n < c.most ? n : c.most;
}

// Rows of floats. Row `i` begins at `data + i * stride`. With the stride 0, all rows are one row.
struct Rows {
  const float* data;
  u32 stride;
  u32 cols;
};
struct RowsMut {
  float* data;
  u32 stride;
  u32 cols;
};

template <class T> DEVICE T lesser(T a, T b) { return a < b ? a : b; }
template <class T> DEVICE T greater(T a, T b) { return a > b ? a : b; }
DEVICE u32 quotient_up(u32 a, u32 b) { return (a + b - 1) / b; }
DEVICE u64 thread_index() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
DEVICE u64 thread_count() { return (u64)gridDim.x * blockDim.x; }

DEVICE float4 zero4() { return make_float4(0.0f, 0.0f, 0.0f, 0.0f); }
DEVICE float4 add4(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
DEVICE float4 read4(const float* from) { return read_only((const float4*)from); }

// Returns the sum of sixteen partial sums, one a lane of half a warp, in the processor's order:
// lane i and lane i + 8 first, then + 4, + 2, + 1. Addition commutes, so every lane of the half has
// the sum.
DEVICE float sum_of_half_warp(u32 mask, float partial) {
  partial = partial + __shfl_xor_sync(mask, partial, 8);
  partial = partial + __shfl_xor_sync(mask, partial, 4);
  partial = partial + __shfl_xor_sync(mask, partial, 2);
  return partial + __shfl_xor_sync(mask, partial, 1);
}
DEVICE u32 half_warp_mask() { return 0xffffu << (threadIdx.x & 16); }
