// The rules of the row optimizers with their guards (embedding/src/optimizer), by a warp a row.
#pragma once
#include "zillion.cuh"

// The rule of one segment in one step, with all scalars computed by the host.
const u32 RULE_SGD = 0;
const u32 RULE_MOMENTUM = 1;
const u32 RULE_ADAGRAD = 2;
const u32 RULE_ROWWISE_ADAGRAD = 3;
const u32 RULE_ADAM = 4;
const u32 RULE_FTRL = 5;
const u32 RULE_GROUP_FTRL = 6;

struct RowRule {
  u32 kind;
  u32 begin, end;        // the floats of the row
  u32 state;             // the first float of the state, counted from the start of the row
  float lr;              // Adam: the step size
  float eps;
  float a, b, c, d;      // momentum, nesterov | beta2, 1 - beta1, 1 - beta2, root | 1 / alpha, beta, l1, l2
  float l21;
  float l2;              // of the regulariser
  u32 guarded;
  float clip_norm, clip_value;
  float low, high;
  // The fields that follow are for `table_rules` alone.
  u32 shift;             // how far behind `begin` the segment lies in the gradient
  u32 flags;             // RULE_SWEPT, RULE_L2_WHOLE
  u32 unused;
};
static_assert(sizeof(RowRule) == 80, "twin of RowRule");
const u32 RULE_SWEPT = 1;     // the rule also changes rows without a gradient
const u32 RULE_L2_WHOLE = 2;  // and so does its regulariser

DEVICE bool is_finite(float x) { return magnitude(x) < from_bits(0x7f800000u); }

DEVICE float held(float x, float low, float high) {
  const float raised = x < low ? low : x;
  return raised > high ? high : raised;
}

DEVICE float sign_of_as(float magnitude_of, float sign) { return from_bits(to_bits(magnitude_of) | (to_bits(sign) & 0x80000000u)); }

// The sum of the squares of a function of 0..n by a warp, in the order of `sum_of_squares`: lanes 0
// to 7 have one of the eight sums each, and every lane gets the result.
template <class Sum, class Of> DEVICE Sum squares_by_warp(u32 n, Of of) {
  const u32 lane = threadIdx.x & 31;
  Sum sum = 0;
  for (u32 i = lane & 7; i < n; i += 8) {
    const Sum x = (Sum)of(i);
    sum = sum + x * x;
  }
  sum = sum + __shfl_xor_sync(ALL_LANES, sum, 4);
  sum = sum + __shfl_xor_sync(ALL_LANES, sum, 2);
  return sum + __shfl_xor_sync(ALL_LANES, sum, 1);
}

// Applies a rule to the segment of a row. All lanes of a warp call it. `weights` and `state` are those
// of the segment, and `raw` returns a number of its gradient.
template <class Raw>
DEVICE void apply_rule(const RowRule& rule, u32 lane, float* weights, float* state, float l2, float scale, Raw raw) {
  const u32 kind = rule.kind, dim = rule.end - rule.begin;
  float clip = 1.0f;
  auto gradient = LAMBDA(u32 i)->float {
    const float g = (raw(i) + l2 * weights[i]) * scale;
    return rule.guarded ? held(g, -rule.clip_value, rule.clip_value) * clip : g;
  };
  if (rule.guarded && rule.clip_norm != from_bits(0x7f800000u)) {
    const double length = root(squares_by_warp<double>(dim, gradient));
    const double norm = (double)rule.clip_norm;
    if (length > norm) clip = (float)(norm / length);
  }
  auto write_weight = LAMBDA(u32 i, float w) { weights[i] = rule.guarded ? held(w, rule.low, rule.high) : w; };
  if (kind == RULE_ROWWISE_ADAGRAD) {
    const float squares = squares_by_warp<float>(dim, gradient);
    const float accumulated = state[0] + squares / (float)dim;
    const float step = rule.lr / (root(accumulated) + rule.eps);
    __syncwarp(ALL_LANES);
    for (u32 i = lane; i < dim; i += 32) write_weight(i, weights[i] - step * gradient(i));
    if (lane == 0) state[0] = accumulated;
  } else if (kind == RULE_GROUP_FTRL) {
    const float inverse_alpha = rule.a, beta = rule.b, l1 = rule.c, l2 = rule.d;
    const float threshold = rule.l21 * root((float)dim);
    auto curvature = LAMBDA(float of)->float { return (beta + of) * inverse_alpha + l2; };
    auto soft = LAMBDA(float z)->float { return magnitude(z) <= l1 ? 0.0f : z - sign_of_as(l1, z); };
    float length = root(squares_by_warp<float>(dim, LAMBDA(u32 i)->float { return weights[i] * curvature(root(state[dim + i])); }));
    const float grown = length > 0.0f ? 1.0f + threshold / length : 1.0f;
    __syncwarp(ALL_LANES);
    for (u32 i = lane; i < dim; i += 32) {
      const float w = weights[i], g = gradient(i), before_root = root(state[dim + i]);
      const float n = state[dim + i] + g * g;
      const float implied = -(w * curvature(before_root) * grown + sign_of_as(l1, w));
      const float before = w == 0.0f ? state[i] : implied;
      const float sigma = (root(n) - before_root) * inverse_alpha;
      state[i] = before + (g - sigma * w);
      state[dim + i] = n;
    }
    __syncwarp(ALL_LANES);
    length = root(squares_by_warp<float>(dim, LAMBDA(u32 i)->float { return soft(state[i]); }));
    const float kept = length > threshold ? 1.0f - threshold / length : 0.0f;
    for (u32 i = lane; i < dim; i += 32) {
      const float s = soft(state[i]);
      write_weight(i, kept == 0.0f || s == 0.0f ? 0.0f : -(kept * s) / curvature(root(state[dim + i])));
    }
  } else {
    for (u32 i = lane; i < dim; i += 32) {
      const float g = gradient(i), w = weights[i];
      if (kind == RULE_SGD) {
        write_weight(i, w - rule.lr * g);
      } else if (kind == RULE_MOMENTUM) {
        const float v = rule.a * state[i] + g;
        const float step = rule.b != 0.0f ? g + rule.a * v : v;
        state[i] = v;
        write_weight(i, w - rule.lr * step);
      } else if (kind == RULE_ADAGRAD) {
        const float accumulated = state[i] + g * g;
        state[i] = accumulated;
        write_weight(i, w - rule.lr * g / (root(accumulated) + rule.eps));
      } else if (kind == RULE_ADAM) {
        const float m = state[i] + rule.b * (g - state[i]);
        const float v = rule.a * state[dim + i] + rule.c * (g * g);
        const float denominator = root(v) / rule.d + rule.eps;
        state[i] = m;
        state[dim + i] = v;
        write_weight(i, w - rule.lr * (m / denominator));
      } else {
        const float before_n = state[dim + i], before_root = root(before_n);
        const float n = before_n + g * g, after_root = root(n);
        const float curvature = (rule.b + before_root) * rule.a + rule.d;
        const float implied = -(w * curvature + sign_of_as(rule.c, w));
        const float before = w == 0.0f ? state[i] : implied;
        const float sigma = (after_root - before_root) * rule.a;
        const float z = before + (g - sigma * w);
        const float after_curvature = (rule.b + after_root) * rule.a + rule.d;
        const float shrunk = (sign_of_as(rule.c, z) - z) / after_curvature;
        state[i] = z;
        state[dim + i] = n;
        write_weight(i, magnitude(z) <= rule.c ? 0.0f : shrunk);
      }
    }
  }
}
