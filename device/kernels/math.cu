// Elementary functions of whole arrays and of all inputs, for the checks. Their reference is
// device/src/simd/math.rs.
#include "math.cuh"

// The function with a number; the order is that of `check::math::FUNCTIONS`.
DEVICE float apply_function(u32 function, float x) {
  float sine, cosine;
  switch (function) {
    case 0: return exp_of(x);
    case 1: return ln_of(x);
    case 2: return ln_1p_of(x);
    case 3: return sigmoid_of(x);
    case 4: return log1p_exp_of(x);
    case 5: return tanh_of(x);
    case 6: sin_cos_of_turns(x, sine, cosine); return sine;
    case 7: sin_cos_of_turns(x, sine, cosine); return cosine;
    case 8: return erf_inv_of(x);
    case 9: return root(x);
    case 10: return 1.0f / x;
    default: return 3.0f / (x + 1.0f);
  }
}

struct MathValues {
  const float* in;
  float* out;
  u64 n;
  u32 function;
  u32 unused;
};
static_assert(sizeof(MathValues) == 32, "twin of MathValues");

KERNEL(math_values, MathValues, 256, 4) {
  for (u64 i = thread_index(); i < p.n; i += thread_count()) p.out[i] = apply_function(p.function, p.in[i]);
}

// The checksum of each chunk of consecutive bit patterns, beginning with the chunk `first_chunk`. A
// chunk has 2^log_chunk inputs and one block. All NaN count as one, and any single result that
// differs changes the checksum of its chunk.
struct MathChecksums {
  u64* sums;
  u32 function;
  u32 log_chunk;
  u32 first_chunk;
  u32 unused;
};
static_assert(sizeof(MathChecksums) == 24, "twin of MathChecksums");

KERNEL(math_checksums, MathChecksums, 256, 4) {
  SHARED(u64, part, 256);
  const u32 first = (p.first_chunk + blockIdx.x) << p.log_chunk;
  u64 sum = 0;
  for (u32 i = threadIdx.x; i < 1u << p.log_chunk; i += 256) {
    const u32 in = first + i;
    u32 out = to_bits(apply_function(p.function, from_bits(in)));
    if ((out & 0x7fffffffu) > 0x7f800000u) out = 0x7fc00000u;
    sum += (u64)((out ^ (in * 0x9e3779b1u)) * 0x85ebca6bu);
  }
  part[threadIdx.x] = sum;
  __syncthreads();
  for (u32 width = 128; width > 0; width /= 2) {
    if (threadIdx.x < width) part[threadIdx.x] += part[threadIdx.x + width];
    __syncthreads();
  }
  if (threadIdx.x == 0) p.sums[blockIdx.x] = part[0];
}
