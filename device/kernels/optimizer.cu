// The dense optimizers, norms and averages. The reference is nn/src/optim.
//
// One launch serves all parameters. A piece is up to 16,384 floats of one parameter, the block of
// the processor, and has its own partial norm. Blocks in x are pieces; where elements are independent,
// blocks in y share a piece.
#include "zillion.cuh"

// Values of DenseRule::kind.
const u32 DENSE_SGD = 0;
const u32 DENSE_MOMENTUM = 1;
const u32 DENSE_ADAGRAD = 2;
const u32 DENSE_ADAM = 3;      // and AdamW
const u32 DENSE_LAMB = 4;      // the moments alone; the weights follow in `lamb_weights`
const u32 DENSE_FTRL = 5;

// The rule of a parameter in one step, with all scalars computed by the host.
struct DenseRule {
  u32 kind;
  float rate;            // Adam: the step size
  float eps;
  float kept;            // Adam: the factor of the weight decay
  float a, b, c, d;      // momentum, nesterov | beta2, 1 - beta1, 1 - beta2, root | 1 / alpha, beta, l1, l2
  float correction1;     // of LAMB
  float weight_decay;    // of LAMB
  double lamb_rate;
};
static_assert(sizeof(DenseRule) == 48, "twin of DenseRule");

struct DensePiece {
  float* weights;
  float* first;
  float* second;
  const float* gradient;
  u32 n;
  u32 rule;              // the index of the parameter, which is that of its rule
};
static_assert(sizeof(DensePiece) == 40, "twin of DensePiece");

struct DenseUpdate {
  const DensePiece* pieces;
  const DenseRule* rules;
  const float* scale;    // the factor of a clipped step; null for 1
  const u32* skip;       // nonzero where the step changes nothing; or null
  double* sums;          // of squares: a number for each piece, or two for LAMB
  const float* share;    // of an average
  u32 piece_count;
  float l2;
};
static_assert(sizeof(DenseUpdate) == 56, "twin of DenseUpdate");

// The rules of a step by the number of skipped steps. A skipped step does not count, and the host
// makes the rules before it knows which of the last steps were skipped.
struct ChooseRules {
  const DenseRule* choices;  // for 0, 1, ... skipped steps, `n` each
  DenseRule* rules;
  const u32* skips;          // the number of skipped steps
  const u32* known;          // the number that the host knew
  u32 n;
  u32 most;                  // the largest number of choices
};
static_assert(sizeof(ChooseRules) == 40, "twin of ChooseRules");

KERNEL(choose_rules, ChooseRules, 256, 4) {
  const u32 choice = lesser(*p.skips - *p.known, p.most - 1);
  for (u64 i = thread_index(); i < p.n; i += thread_count()) p.rules[i] = p.choices[(u64)choice * p.n + i];
}

DEVICE float l1_with_sign_of(float l1, float x) { return from_bits(to_bits(l1) | (to_bits(x) & 0x80000000u)); }

KERNEL(dense_update, DenseUpdate, 256, 4) {
  if (p.skip && *p.skip) return;
  const float scale = p.scale ? *p.scale : 1.0f;
  for (u32 number = blockIdx.x; number < p.piece_count; number += gridDim.x) {
    const DensePiece& piece = p.pieces[number];
    const DenseRule rule = p.rules[piece.rule];
    for (u32 i = blockIdx.y * 256 + threadIdx.x; i < piece.n; i += 256 * gridDim.y) {
      float w = piece.weights[i];
      const float g = (piece.gradient[i] + p.l2 * w) * scale;
      if (rule.kind == DENSE_SGD) {
        w = w - rule.rate * g;
      } else if (rule.kind == DENSE_MOMENTUM) {
        const float b = rule.a * piece.first[i] + g;
        piece.first[i] = b;
        w = w - rule.rate * (rule.b != 0.0f ? g + rule.a * b : b);
      } else if (rule.kind == DENSE_ADAGRAD) {
        const float a = piece.first[i] + g * g;
        piece.first[i] = a;
        w = w - rule.rate * g / (root(a) + rule.eps);
      } else if (rule.kind == DENSE_FTRL) {
        const float before_n = piece.second[i], before_root = root(before_n);
        const float n = before_n + g * g, after_root = root(n);
        const float curvature = (rule.b + before_root) * rule.a + rule.d;
        const float implied = -(w * curvature + l1_with_sign_of(rule.c, w));
        const float before = w == 0.0f ? piece.first[i] : implied;
        const float sigma = (after_root - before_root) * rule.a;
        const float after = before + (g - sigma * w);
        const float after_curvature = (rule.b + after_root) * rule.a + rule.d;
        const float shrunk = (l1_with_sign_of(rule.c, after) - after) / after_curvature;
        piece.first[i] = after;
        piece.second[i] = n;
        w = magnitude(after) <= rule.c ? 0.0f : shrunk;
      } else {
        float m = piece.first[i];
        m = m + rule.b * (g - m);
        const float v = rule.a * piece.second[i] + rule.c * (g * g);
        piece.first[i] = m;
        piece.second[i] = v;
        if (rule.kind == DENSE_ADAM) {
          const float denominator = root(v) / rule.d + rule.eps;
          w = w * rule.kept - rule.rate * m / denominator;
        }
      }
      if (rule.kind != DENSE_LAMB) piece.weights[i] = w;
    }
  }
}

DEVICE float lamb_direction(const DenseRule& rule, float w, float m, float v) {
  const float denominator = root(v) / rule.d + rule.eps;
  return rule.correction1 * m / denominator + rule.weight_decay * w;
}

// The sum of the squares of a function of 0..n by a block: sixteen interleaved sums in double
// precision, which are then added in order. Thread 0 gets the result.
const u32 SQUARES_STAGE = 512;
template <class Of> DEVICE double squares_by_block(double* terms, double* sums, u32 n, Of of) {
  double sum = 0.0;
  for (u32 at = 0; at < n; at += SQUARES_STAGE) {
    for (u32 i = threadIdx.x; i < SQUARES_STAGE && at + i < n; i += 256) {
      const double x = (double)of(at + i);
      terms[i] = x * x;
    }
    __syncthreads();
    const u32 m = lesser(n - at, SQUARES_STAGE);
    if (threadIdx.x < SUMS)
      for (u32 i = threadIdx.x; i < m; i += SUMS) sum = sum + terms[i];
    __syncthreads();
  }
  if (threadIdx.x < SUMS) sums[threadIdx.x] = sum;
  __syncthreads();
  double all = -0.0;
  if (threadIdx.x == 0)
    for (u32 i = 0; i < SUMS; i++) all = all + sums[i];
  __syncthreads();
  return all;
}

// The squared norm of each piece's gradient with its regulariser.
KERNEL(dense_squares, DenseUpdate, 256, 4) {
  SHARED(double, terms, SQUARES_STAGE);
  SHARED(double, sums, SUMS);
  for (u32 number = blockIdx.x; number < p.piece_count; number += gridDim.x) {
    const DensePiece& piece = p.pieces[number];
    // The processor's shaping multiplies by a scale of 1, which changes nothing.
    const double sum = squares_by_block(terms, sums, piece.n, LAMBDA(u32 i) { return piece.gradient[i] + p.l2 * piece.weights[i]; });
    if (threadIdx.x == 0) p.sums[number] = sum;
  }
}

// The squared lengths of each piece's weights and of its direction.
KERNEL(lamb_squares, DenseUpdate, 256, 4) {
  SHARED(double, terms, SQUARES_STAGE);
  SHARED(double, sums, SUMS);
  for (u32 number = blockIdx.x; number < p.piece_count; number += gridDim.x) {
    const DensePiece& piece = p.pieces[number];
    const DenseRule& rule = p.rules[piece.rule];
    const double weights = squares_by_block(terms, sums, piece.n, LAMBDA(u32 i) { return piece.weights[i]; });
    const double direction = squares_by_block(
        terms, sums, piece.n, LAMBDA(u32 i) { return lamb_direction(rule, piece.weights[i], piece.first[i], piece.second[i]); });
    if (threadIdx.x == 0) {
      p.sums[number * 2] = weights;
      p.sums[number * 2 + 1] = direction;
    }
  }
}

// The second pass of LAMB. Each block adds the lengths of its parameter's pieces in order.
KERNEL(lamb_weights, DenseUpdate, 256, 4) {
  if (p.skip && *p.skip) return;
  for (u32 number = blockIdx.x; number < p.piece_count; number += gridDim.x) {
    const DensePiece& piece = p.pieces[number];
    const DenseRule& rule = p.rules[piece.rule];
    double weights = 0.0, direction = 0.0;
    for (u32 other = 0; other < p.piece_count; other++)
      if (p.pieces[other].rule == piece.rule) {
        weights = weights + p.sums[other * 2];
        direction = direction + p.sums[other * 2 + 1];
      }
    const double trust = weights > 0.0 && direction > 0.0 ? root(weights / direction) : 1.0;
    const float step_size = (float)(rule.lamb_rate * trust);
    for (u32 i = blockIdx.y * 256 + threadIdx.x; i < piece.n; i += 256 * gridDim.y) {
      const float w = piece.weights[i];
      piece.weights[i] = w - step_size * lamb_direction(rule, w, piece.first[i], piece.second[i]);
    }
  }
}

// The moving average of weights: `first` holds the average.
KERNEL(dense_average, DenseUpdate, 256, 4) {
  if (p.skip && *p.skip) return;
  const float share = *p.share;
  for (u32 number = blockIdx.x; number < p.piece_count; number += gridDim.x) {
    const DensePiece& piece = p.pieces[number];
    for (u32 i = blockIdx.y * 256 + threadIdx.x; i < piece.n; i += 256 * gridDim.y) {
      const float average = piece.first[i];
      piece.first[i] = average + share * (piece.weights[i] - average);
    }
  }
}
