// The elementary functions, operation for operation as device/src/simd/math.rs has them. Each gives
// the bits of the function of the same name there, for every input; of a NaN only that it is one.
#pragma once
#include "zillion.cuh"

#define ROUND 12582912.0f
#define LOG2_E 1.44269504088896340735992468100189214f
#define LN_2_HIGH 0.693359375f
#define LN_2_LOW -2.1219444005469058e-4f
#define TAU 6.28318530717958647692528676655900577f

DEVICE float infinity() { return from_bits(0x7f800000u); }
DEVICE float not_a_number() { return from_bits(0x7fc00000u); }
DEVICE float choose(bool condition, float yes, float no) { return condition ? yes : no; }
DEVICE float power_of_two(int exponent) { return from_bits((u32)(exponent + 127) << 23); }
DEVICE float with_sign_of(float x, float sign) {
  return from_bits((to_bits(x) & 0x7fffffffu) | (to_bits(sign) & 0x80000000u));
}

// Rounds to bf16: to the nearest, and to the even one of two.
DEVICE u32 bf16_of(float x) {
  const u32 bits = to_bits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0u;
  return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}
DEVICE u64 bf16_of_quad(float4 v) {
  const u32 low = bf16_of(v.x) | bf16_of(v.y) << 16, high = bf16_of(v.z) | bf16_of(v.w) << 16;
  return (u64)low | (u64)high << 32;
}

DEVICE float exp_of(float x) {
  x = choose(x < -104.0f, -104.0f, x);
  x = choose(x > 89.0f, 89.0f, x);
  const float shifted = x * LOG2_E + ROUND;
  const float whole = shifted - ROUND;
  const int exponent = (int)(to_bits(shifted) - to_bits(ROUND));
  const float r = x - whole * LN_2_HIGH - whole * LN_2_LOW;
  float p = 1.98756915e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 0.16666665459f;
  p = p * r + 0.50000001201f;
  const float value = p * (r * r) + r + 1.0f;
  const int half = exponent >> 1;
  return value * power_of_two(half) * power_of_two((int)((u32)exponent - (u32)half));
}

DEVICE float ln_of(float x) {
  const bool subnormal = x < from_bits(0x00800000u);
  const float scaled = choose(subnormal, x * 8388608.0f, x);
  const float correction = choose(subnormal, -23.0f, 0.0f);
  const u32 bits = to_bits(scaled);
  const int shift = (int)(bits - 0x3f3504f3u) >> 23;
  const float mantissa = from_bits(bits - ((u32)shift << 23));
  const float exponent = (float)shift + correction;
  const float r = mantissa - 1.0f;
  const float square = r * r;
  float p = 7.0376836292e-2f;
  p = p * r - 0.11514610310f;
  p = p * r + 0.11676998740f;
  p = p * r - 0.12420140846f;
  p = p * r + 0.14249322787f;
  p = p * r - 0.16668057665f;
  p = p * r + 0.20000714765f;
  p = p * r - 0.24999993993f;
  p = p * r + 0.33333331174f;
  const float tail = p * r * square + exponent * LN_2_LOW - 0.5f * square;
  float value = tail + r + exponent * LN_2_HIGH;
  value = choose(x == 0.0f, -infinity(), value);
  value = choose(x < 0.0f, not_a_number(), value);
  return choose(x < infinity(), value, x + x);
}

DEVICE float ln_1p_of(float x) {
  const float sum = 1.0f + x;
  const float lost = choose(x > 1.0f, 1.0f - (sum - x), x - (sum - 1.0f));
  const float logarithm = ln_of(sum);
  const bool regular = sum > 0.0f && sum < infinity();
  return choose(regular, logarithm + lost / sum, logarithm);
}

DEVICE float sigmoid_of(float x) {
  const float decay = exp_of(-magnitude(x));
  return choose(x < 0.0f, decay, 1.0f) / (1.0f + decay);
}

DEVICE float log1p_exp_of(float x) {
  return choose(x < 0.0f, 0.0f, x) + ln_1p_of(exp_of(-magnitude(x)));
}

DEVICE float tanh_of(float x) {
  const float size = magnitude(x);
  const float far = 1.0f - 2.0f / (exp_of(2.0f * size) + 1.0f);
  const float square = x * x;
  float p = -5.70498872745e-3f;
  p = p * square + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 0.133314422036f;
  p = p * square - 0.333332819422f;
  const float near = p * square * size + size;
  return with_sign_of(choose(size < 0.625f, near, far), x);
}

// The sine and the cosine of 2 pi `turns`.
DEVICE void sin_cos_of_turns(float turns, float& sine_of, float& cosine_of) {
  const float quarters = turns * 4.0f + ROUND;
  const u32 quadrant = to_bits(quarters);
  const float angle = (turns - (quarters - ROUND) * 0.25f) * TAU;
  const float square = angle * angle;
  float s = -1.9515295891e-4f;
  s = s * square + 8.3321608736e-3f;
  s = s * square - 0.16666654611f;
  const float sine = s * square * angle + angle;
  float c = 2.4433157118e-5f;
  c = c * square - 1.3887316255e-3f;
  c = c * square + 4.1666645683e-2f;
  const float cosine = c * square * square - 0.5f * square + 1.0f;
  const bool swapped = (quadrant & 1) != 0;
  sine_of = from_bits(to_bits(choose(swapped, cosine, sine)) ^ (((quadrant >> 1) & 1) << 31));
  cosine_of = from_bits(to_bits(choose(swapped, sine, cosine)) ^ ((((quadrant + 1) >> 1) & 1) << 31));
}

DEVICE float erf_inv_of(float x) {
  const float w = -ln_of((1.0f - x) * (1.0f + x));
  const float near = w - 2.5f;
  float p = 2.81022636e-8f;
  p = p * near + 3.43273939e-7f;
  p = p * near - 3.5233877e-6f;
  p = p * near - 4.39150654e-6f;
  p = p * near + 2.1858087e-4f;
  p = p * near - 1.25372503e-3f;
  p = p * near - 4.17768164e-3f;
  p = p * near + 0.246640727f;
  p = p * near + 1.50140941f;
  const float far = root(w) - 3.0f;
  float q = -2.00214257e-4f;
  q = q * far + 1.00950558e-4f;
  q = q * far + 1.34934322e-3f;
  q = q * far - 3.67342844e-3f;
  q = q * far + 5.73950773e-3f;
  q = q * far - 7.6224613e-3f;
  q = q * far + 9.43887047e-3f;
  q = q * far + 1.00167406f;
  q = q * far + 2.83297682f;
  const float value = choose(w < 5.0f, p, q) * x;
  return choose(w == infinity(), x * infinity(), value);
}
