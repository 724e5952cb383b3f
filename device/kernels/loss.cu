// The losses of logits. The reference is nn/src/ops/loss.rs: the sum of a tile is a chain in double
// precision, the tiles of a lane and then the lanes are added in single precision and in order. A row
// with the weight 0 counts nothing, whatever its label is.
#include "math.cuh"

struct Loss {
  Rows z;                // logits
  Rows y;                // labels
  Rows w;                // weights
  RowsMut out;           // the gradients
  const float* g;        // the gradient of the sum
  float* tile_sums;
  const u32* tiles;      // as in reduce.cu
  const u32* lanes;
  float* sum;            // the loss
  Count rows;
  u32 lane_count;
  u32 kind;              // 0: cross-entropy, 1: focal, 2: squared, 3: Huber's, 4: Poisson's
  float gamma, positive, negative;  // Huber's loss has its delta in gamma
  u32 unused;
};
static_assert(sizeof(Loss) == 144, "twin of Loss");

DEVICE float loss_of(const Loss& p, float z, float y) {
  if (p.kind == 0) return (z > 0.0f ? z : 0.0f) - z * y + ln_1p_of(exp_of(-magnitude(z)));
  if (p.kind == 4) return exp_of(z) - y * z;
  if (p.kind >= 2) {
    const float apart = z - y, far = magnitude(apart);
    if (p.kind == 2) return apart * apart;
    return far <= p.gamma ? 0.5f * apart * apart : p.gamma * (far - 0.5f * p.gamma);
  }
  const float sign = 2.0f * y - 1.0f, s = sign * z;
  const float weight = y * p.positive + (1.0f - y) * p.negative;
  return weight * exp_of(-p.gamma * log1p_exp_of(s)) * log1p_exp_of(-s);
}

DEVICE float slope_of(const Loss& p, float z, float y) {
  if (p.kind == 0) return sigmoid_of(z) - y;
  if (p.kind == 4) return exp_of(z) - y;
  if (p.kind >= 2) {
    const float apart = z - y;
    if (p.kind == 2) return 2.0f * apart;
    return apart > p.gamma ? p.gamma : apart < -p.gamma ? -p.gamma : apart;
  }
  const float sign = 2.0f * y - 1.0f, s = sign * z;
  const float weight = y * p.positive + (1.0f - y) * p.negative;
  const float focus = exp_of(-p.gamma * log1p_exp_of(s));
  return -weight * sign * focus * (p.gamma * sigmoid_of(s) * log1p_exp_of(-s) + sigmoid_of(-s));
}

// A block a tile: all threads compute losses, and one of them adds them in order.
KERNEL(loss_tiles, Loss, 256, 4) {
  SHARED(double, losses, 256);
  const u32 tiles = read_only(p.lanes + p.lane_count);
  for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const u32 begin = read_only(p.tiles + tile), end = read_only(p.tiles + tile + 1);
    double sum = -0.0;
    for (u32 at = begin; at < end; at += 256) {
      const u32 row = at + threadIdx.x;
      if (row < end) {
        const float w = p.w.data[(u64)row * p.w.stride];
        const float loss = loss_of(p, p.z.data[(u64)row * p.z.stride], p.y.data[(u64)row * p.y.stride]);
        losses[threadIdx.x] = w == 0.0f ? 0.0 : (double)(w * loss);
      }
      __syncthreads();
      if (threadIdx.x == 0) {
        const u32 n = lesser(end - at, 256u);
#pragma unroll 8
        for (u32 i = 0; i < n; i++) sum = sum + losses[i];
      }
      __syncthreads();
    }
    if (threadIdx.x == 0) p.tile_sums[tile] = (float)sum;
  }
}

// One thread adds the tiles of each lane, and the lanes.
KERNEL(loss_sum, Loss, 32, 1) {
  if (blockIdx.x || threadIdx.x) return;
  float all = 0.0f;
  bool is_first = true;
  for (u32 z = 0; z < p.lane_count; z++) {
    float lane = 0.0f;
    bool is_new = true;
    const u32 last = read_only(p.lanes + z + 1);
    for (u32 tile = read_only(p.lanes + z); tile < last; tile++) {
      if (read_only(p.tiles + tile) == read_only(p.tiles + tile + 1)) continue;
      lane = is_new ? p.tile_sums[tile] : lane + p.tile_sums[tile];
      is_new = false;
    }
    if (is_new) continue;
    all = is_first ? lane : all + lane;
    is_first = false;
  }
  *p.sum = all;
}

KERNEL(loss_grad, Loss, 256, 4) {
  const u32 rows = count(p.rows);
  const float g = *p.g;
  for (u64 row = thread_index(); row < rows; row += thread_count()) {
    const float w = p.w.data[row * p.w.stride];
    const float slope = slope_of(p, p.z.data[row * p.z.stride], p.y.data[row * p.y.stride]);
    p.out.data[row * p.out.stride] = w == 0.0f ? 0.0f : g * w * slope;
  }
}

// Values of a batch into columns: numeric values, labels, weights of rows. Rows behind the last one
// become zero up to `rows.most`, because products of a padded batch read them.
struct Assemble {
  const float* values;   // column after column, each `value_stride` floats; null for `fill`
  const unsigned char* mask;  // whether each row has a value, or null
  RowsMut out;
  Count rows;
  const u32* columns;    // which column of `values` each column of `out` is; null for the same
  u32 value_stride;
  float fill;
};
static_assert(sizeof(Assemble) == 64, "twin of Assemble");

KERNEL(assemble, Assemble, 256, 4) {
  const u32 rows = count(p.rows), cols = p.out.cols;
  const u64 all = (u64)p.rows.most * cols;
  for (u64 i = thread_index(); i < all; i += thread_count()) {
    const u32 col = (u32)(i / p.rows.most), row = (u32)(i % p.rows.most);
    float value = 0.0f;
    if (row < rows && (!p.mask || p.mask[row])) {
      const u32 from = p.columns ? read_only(p.columns + col) : col;
      value = p.values ? p.values[(u64)from * p.value_stride + row] : p.fill;
    }
    p.out.data[(u64)row * p.out.stride + col] = value;
  }
}
