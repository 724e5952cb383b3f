// The number types of stored weights, and the rounding to them. The reference is rows/src/dtype.rs:
// the same integer operations in the same order.
#pragma once
#include "math.cuh"

// Values of a `dtype` in a structure, in the order of `Dtype`.
const u32 STORED_F32 = 0;
const u32 STORED_F16 = 1;
const u32 STORED_BF16 = 2;

// The slot of a key without a row.
const u32 NO_ROW = 0xffffffffu;

const u32 F16_NORMAL = 113u << 23;  // the bits of 2^-14, the smallest normal number of f16
const u32 INFINITE = 0x7f800000u;

DEVICE u64 mix64(u64 x) {
  u64 z = x + 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}
DEVICE u64 combine(u64 seed, u64 word) { return mix64(seed ^ mix64(word)); }
DEVICE u32 mix32(u32 x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

// The random bits of the weight at a position of a row, whose seed is `combine(step, key)`.
DEVICE u32 random_of_unit(u64 row_seed, u32 unit) { return mix32(((u32)row_seed + unit * 0x9e3779b9u) ^ (u32)(row_seed >> 32)); }

DEVICE float largest_stored(u32 dtype) { return dtype == STORED_F16 ? 65504.0f : from_bits(0x7f7f0000u); }

// The bits of the absolute value, at most those of the largest number. NaN keeps its bits.
DEVICE u32 held_magnitude(float x, float most) {
  const u32 bits = to_bits(x) & 0x7fffffffu;
  const u32 held = bits > to_bits(most) ? to_bits(most) : bits;
  return bits > INFINITE ? bits : held;
}

DEVICE float widen(u32 dtype, u32 half) {
  if (dtype == STORED_BF16) return from_bits(half << 16);
  const u32 bits = (half & 0x7fffu) << 13, exponent = bits & (0x1fu << 23);
  const float small = from_bits(bits + F16_NORMAL) - from_bits(F16_NORMAL);
  const u32 finite = exponent == 0 ? to_bits(small) : bits + (112u << 23);
  const u32 wide = exponent == 0x1fu << 23 ? bits | 0xffu << 23 : finite;
  return from_bits(wide | (half & 0x8000u) << 16);
}

DEVICE u32 cut_bf16(float x, u32 added) {
  const u32 bits = held_magnitude(x, largest_stored(STORED_BF16));
  const u32 rounded = bits > INFINITE ? bits | 1u << 22 : bits + added;
  return (rounded | (to_bits(x) & 0x80000000u)) >> 16;
}

DEVICE u32 pack_f16(u32 bits, u32 sign) {
  const u32 small = to_bits(from_bits(bits) + 0.5f) - to_bits(0.5f);
  const u32 normal = (bits - (112u << 23)) >> 13;
  const u32 packed = bits < F16_NORMAL ? small : normal;
  return ((bits > INFINITE ? 0x7e00u : packed) | sign >> 16) & 0xffffu;
}

// Rounds to the nearest number of a type of 16 bits, and to the even one of two.
DEVICE u32 nearest_half(u32 dtype, float x) {
  if (dtype == STORED_BF16) return cut_bf16(x, 0x7fffu + (to_bits(x) >> 16 & 1));
  const u32 bits = held_magnitude(x, largest_stored(STORED_F16));
  const u32 rounded = bits + 0xfffu + (bits >> 13 & 1);
  return pack_f16(bits < F16_NORMAL || bits > INFINITE ? bits : rounded, to_bits(x) & 0x80000000u);
}

// Rounds to one of the two nearest numbers of the type, by the random bits.
DEVICE u32 stochastic_half(u32 dtype, float x, u32 random) {
  if (dtype == STORED_BF16) return cut_bf16(x, random >> 16);
  const u32 bits = held_magnitude(x, largest_stored(STORED_F16));
  const u32 normal = (bits + (random >> 19)) & ~0x1fffu;
  const float steps = from_bits(bits) * 16777216.0f;
  const float nearest = (steps + 8388608.0f) - 8388608.0f;
  const float whole = nearest > steps ? nearest - 1.0f : nearest;
  const bool up = (float)(~random >> 8) * (1.0f / 16777216.0f) < steps - whole;
  const float small = (whole + (up ? 1.0f : 0.0f)) * (1.0f / 16777216.0f);
  const u32 rounded = bits < F16_NORMAL ? to_bits(small) : normal;
  return pack_f16(bits > INFINITE ? bits : rounded, to_bits(x) & 0x80000000u);
}
