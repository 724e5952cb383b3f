// Small kernels for the checks of a device itself: copies, orders, graphs and launches. They compute
// with whole numbers, so that a wrong order changes the result. Their twins are in
// device/src/gpu/conformance/twins.rs.
#include "zillion.cuh"

struct ConformanceFill {
  u32* to;
  u32 n;
  u32 value;
};
static_assert(sizeof(ConformanceFill) == 16, "twin of Fill");

// to[i] = value + i
KERNEL(conformance_fill, ConformanceFill, 256, 4) {
  for (u64 i = thread_index(); i < p.n; i += thread_count()) p.to[i] = p.value + (u32)i;
}

struct ConformanceMix {
  u32* to;
  const u32* from;    // or null
  const u32* header;  // or null
  u32 n;
  u32 scalar;
  u32 rounds;
  u32 unused;
};
static_assert(sizeof(ConformanceMix) == 40, "twin of Mix");

// to[i] = to[i] * 5 + from[i] + header[0] + scalar, as often as `rounds` says. Two such kernels do not
// commute.
KERNEL(conformance_mix, ConformanceMix, 256, 4) {
  const u32 more = (p.header ? p.header[0] : 0u) + p.scalar;
  for (u64 i = thread_index(); i < p.n; i += thread_count()) {
    const u32 add = (p.from ? p.from[i] : 0u) + more;
    u32 value = p.to[i];
    NO_UNROLL
    for (u32 round = 0; round < p.rounds; ++round) value = value * 5u + add;
    p.to[i] = value;
  }
}

struct ConformanceReverse {
  u32* to;
  u32 n;
  u32 unused;
};
static_assert(sizeof(ConformanceReverse) == 16, "twin of Reverse");

// Reverses each block's part of n / blocks numbers, which goes through dynamic shared memory.
KERNEL(conformance_reverse, ConformanceReverse, 256, 1) {
  DYNAMIC_SHARED(u32, part);
  const u32 each = p.n / gridDim.x;
  u32* const to = p.to + (u64)blockIdx.x * each;
  for (u32 i = threadIdx.x; i < each; i += blockDim.x) part[i] = to[i];
  __syncthreads();
  for (u32 i = threadIdx.x; i < each; i += blockDim.x) to[i] = part[each - 1 - i];
}

struct ConformanceNothing {
  u32* to;  // or null
};
static_assert(sizeof(ConformanceNothing) == 8, "twin of Nothing");

// Does nothing, or marks that it has run. It is for the measurement of a launch's time.
KERNEL(conformance_nothing, ConformanceNothing, 256, 1) {
  if (p.to && thread_index() == 0) p.to[0] = 1;
}

struct ConformanceCopy {
  const float4* from;
  float4* to;
  u64 n;
};
static_assert(sizeof(ConformanceCopy) == 24, "twin of Copy");

// Copies n times 16 bytes: the floor of every kernel that is bound by memory.
KERNEL(conformance_copy, ConformanceCopy, 256, 4) {
  for (u64 i = thread_index(); i < p.n; i += thread_count()) store_streaming(p.to + i, read_only(p.from + i));
}
