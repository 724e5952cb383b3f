// Batch norm, layer norm and the softmax over columns. The references are nn/src/ops/batch_norm.rs,
// layer_norm.rs and softmax.rs. Their sums over the rows of a batch are in reduce.cu.
#include "math.cuh"

// Values of BatchNorm::kind.
const u32 NORM_FORWARD = 0;     // a * x + b
const u32 NORM_GRAD = 1;        // a * g + b * (x - mean) + c
const u32 NORM_FIXED_GRAD = 2;  // a * g

struct BatchNorm {
  Rows x;                // the argument; for the fixed gradient not read
  Rows g;                // the gradient
  RowsMut out;
  Count rows;
  Count total;           // the number of rows of the whole batch
  const float* statistics;  // means, then variances
  const float* scale;
  const float* shift;
  const float* reduced;  // the sums of g * normalised x, then of g
  float* factors;        // four floats for each column: a, b, c, mean
  float eps;
  u32 kind;
};
static_assert(sizeof(BatchNorm) == 128, "twin of BatchNorm");

// The factors of each column. They come first, so that `batch_norm` divides nothing.
KERNEL(batch_norm_factors, BatchNorm, 128, 4) {
  const u64 col = thread_index();
  const u32 cols = p.out.cols;
  if (col >= cols) return;
  const float mean = p.statistics[col], variance = p.statistics[cols + col];
  float4 f = zero4();
  f.w = mean;
  if (p.kind == NORM_FORWARD) {
    f.x = p.scale[col] / root(variance + p.eps);
    f.y = p.shift[col] - mean * f.x;
  } else {
    const float rstd = 1.0f / root(variance + p.eps);
    f.x = p.scale[col] * rstd;
    if (p.kind == NORM_GRAD) {
      const float by = 1.0f / (float)count(p.total);
      f.y = -f.x * rstd * by * p.reduced[col];
      f.z = -f.x * by * p.reduced[cols + col];
    }
  }
  ((float4*)p.factors)[col] = f;
}

KERNEL(batch_norm, BatchNorm, 256, 4) {
  const u32 rows = count(p.rows), cols = p.out.cols;
  const u64 all = (u64)rows * cols;
  for (u64 i = thread_index(); i < all; i += thread_count()) {
    const u32 row = (u32)(i / cols), col = (u32)(i % cols);
    const float4 f = ((const float4*)p.factors)[col];
    float out;
    if (p.kind == NORM_FORWARD) {
      out = f.x * p.x.data[(u64)row * p.x.stride + col] + f.y;
    } else {
      out = f.x * p.g.data[(u64)row * p.g.stride + col];
      if (p.kind == NORM_GRAD) out = out + f.y * (p.x.data[(u64)row * p.x.stride + col] - f.w) + f.z;
    }
    p.out.data[(u64)row * p.out.stride + col] = out;
  }
}

// The next running mean or variance. A batch without rows moves nothing.
struct Running {
  const float* running;
  const float* statistics;
  float* out;
  Count total;
  u32 cols;
  u32 variance;
  float momentum;
  u32 unused;
};
static_assert(sizeof(Running) == 56, "twin of Running");

KERNEL(batch_norm_running, Running, 128, 4) {
  const u64 col = thread_index();
  if (col >= p.cols) return;
  const u32 rows = count(p.total);
  const float old = p.running[col];
  if (rows == 0) {
    p.out[col] = old;
    return;
  }
  const float n = (float)rows;
  const float unbiased = n > 1.0f ? n / (n - 1.0f) : 1.0f;
  const float factor = p.variance ? unbiased : 1.0f;
  const float part = p.momentum * factor * p.statistics[(p.variance ? p.cols : 0) + col];
  p.out[col] = (1.0f - p.momentum) * old + part;
}

// Values of RowNorm::kind.
const u32 ROW_STATISTICS = 0;   // writes the mean and the reciprocal deviation of each row
const u32 LAYER_NORM = 1;
const u32 LAYER_NORM_GRAD = 2;
const u32 SOFTMAX = 3;
const u32 SOFTMAX_GRAD = 4;     // `x` is the result of the softmax
const u32 LOG_SUM_EXP = 5;

struct RowNorm {
  Rows x;
  Rows g;
  RowsMut out;
  Count rows;
  const float* scale;
  const float* shift;
  float eps;
  u32 kind;
};
static_assert(sizeof(RowNorm) == 88, "twin of RowNorm");

template <class Of> DEVICE float sum_of_row(u32 mask, u32 lane, u32 n, Of of) {
  float sum = 0.0f;
  for (u32 i = lane; i < n; i += SUMS) sum = sum + of(i);
  return sum_of_half_warp(mask, sum);
}

// Half a warp a row.
KERNEL(row_norm, RowNorm, 256, 4) {
  const u32 rows = count(p.rows), cols = p.x.cols, lane = threadIdx.x & 15, mask = half_warp_mask();
  const u64 halves = thread_count() / 16;
  const float by = 1.0f / (float)cols;
  for (u64 row = thread_index() / 16; row < rows; row += halves) {
    const float* const x = p.x.data + row * p.x.stride;
    const float* const g = p.g.data + row * p.g.stride;
    float* const out = p.out.data + row * p.out.stride;
    if (p.kind <= LAYER_NORM_GRAD) {
      const float mean = by * sum_of_row(mask, lane, cols, LAMBDA(u32 i) { return x[i]; });
      const float variance = by * sum_of_row(mask, lane, cols, LAMBDA(u32 i) { return (x[i] - mean) * (x[i] - mean); });
      const float rstd = 1.0f / root(variance + p.eps);
      if (p.kind == ROW_STATISTICS) {
        if (lane == 0) {
          out[0] = mean;
          out[1] = rstd;
        }
      } else if (p.kind == LAYER_NORM) {
        for (u32 i = lane; i < cols; i += SUMS) out[i] = (x[i] - mean) * rstd * p.scale[i] + p.shift[i];
      } else {
        const float mean_g = by * sum_of_row(mask, lane, cols, LAMBDA(u32 i) { return g[i] * p.scale[i]; });
        const float mean_gx =
            by * sum_of_row(mask, lane, cols, LAMBDA(u32 i) { return g[i] * p.scale[i] * ((x[i] - mean) * rstd); });
        for (u32 i = lane; i < cols; i += SUMS)
          out[i] = rstd * (g[i] * p.scale[i] - mean_g - (x[i] - mean) * rstd * mean_gx);
      }
    } else if (p.kind == SOFTMAX_GRAD) {
      const float mean = sum_of_row(mask, lane, cols, LAMBDA(u32 i) { return g[i] * x[i]; });
      for (u32 i = lane; i < cols; i += SUMS) out[i] = x[i] * (g[i] - mean);
    } else {
      float most = -infinity();
      for (u32 i = lane; i < cols; i += SUMS) most = x[i] > most ? x[i] : most;
      UNROLL for (u32 width = 8; width > 0; width /= 2) {
        const float other = __shfl_xor_sync(mask, most, width);
        most = other > most ? other : most;
      }
      const float sum = sum_of_row(mask, lane, cols, LAMBDA(u32 i) { return exp_of(x[i] - most); });
      if (p.kind == LOG_SUM_EXP) {
        if (lane == 0) out[0] = most + ln_of(sum);
      } else {
        const float share = 1.0f / sum;
        for (u32 i = lane; i < cols; i += SUMS) out[i] = exp_of(x[i] - most) * share;
      }
    }
  }
}
