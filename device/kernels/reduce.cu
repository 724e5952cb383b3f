// Sums over columns and over the rows of a batch. The references are nn/src/ops/reduce.rs, the sums
// of nn/src/ops/batch_norm.rs and layer_norm.rs, and MatMulTn with one column of
// nn/src/ops/linear.rs.
//
// A sum over the columns of a row is sixteen interleaved sums, which are added as a tree. A sum over
// the rows of a batch is a chain for each lane, which begins at zero, and the lanes are added in
// order. Lanes and tiles are those of the processor's plan.
#include "math.cuh"

// The rows of a batch in lanes: tile `i` begins at `tiles[i]` and ends at `tiles[i + 1]`, and lane
// `z` has the tiles from `lanes[z]` to `lanes[z + 1]`.
struct Split {
  const u32* tiles;
  const u32* lanes;
  u32 lane_count;
  u32 unused;
};
DEVICE u32 lane_begin(const Split& s, u32 lane) { return read_only(s.tiles + read_only(s.lanes + lane)); }

struct SumColumns {
  Rows x;
  float* out;
  Count rows;
  u32 out_stride;
  u32 unused;
};
static_assert(sizeof(SumColumns) == 48, "twin of SumColumns");

KERNEL(sum_columns, SumColumns, 256, 4) {
  const u32 rows = count(p.rows), lane = threadIdx.x & 15;
  const u64 halves = thread_count() / 16;
  for (u64 row = thread_index() / 16; row < rows; row += halves) {
    const float* const x = p.x.data + row * p.x.stride;
    float sum = 0.0f;
    for (u32 i = lane; i < p.x.cols; i += SUMS) sum = sum + x[i];
    sum = sum_of_half_warp(half_warp_mask(), sum);
    if (lane == 0) p.out[row * p.out_stride] = sum;
  }
}

// Values of ColumnSums::kind: the term of an element.
const u32 SUM_PLAIN = 0;        // x
const u32 SUM_WEIGHTED = 1;     // x times the row's weight
const u32 SUM_BY_COLUMN = 2;    // g * ((x - mean) / deviation) with statistics by column, and g
const u32 SUM_BY_ROW = 3;       // the same with statistics by row
const u32 SUM_MASKED = 4;       // x where g is above zero (the gradient of relu), which is written too

// The sums of the columns of each lane, `cols` floats a lane, or twice as many where g is summed too.
struct ColumnSums {
  Rows x;
  Rows g;                // the gradients, the weights in one column, or the results of relu
  RowsMut masked;        // where the terms of SUM_MASKED are written; may be `x`
  const float* statistics;  // by column: means, then variances; by row: pairs of mean and factor
  float* parts;
  Split split;
  float eps;
  u32 kind;
};
static_assert(sizeof(ColumnSums) == 96, "twin of ColumnSums");

const u32 COLUMNS = 32;   // of a block
const u32 STAGE_ROWS = 64;

// A block has 32 columns of a lane. All threads compute the terms of a stage of rows into shared
// memory; then a thread a column adds them in order, while the others compute the next stage.
KERNEL(column_sums, ColumnSums, 256, 4) {
  SHARED(float, terms, 2 * STAGE_ROWS * COLUMNS);
  SHARED(float, gradients, 2 * STAGE_ROWS * COLUMNS);
  const u32 cols = p.x.cols, groups = quotient_up(cols, COLUMNS);
  const u32 z = blockIdx.x / groups, col0 = blockIdx.x % groups * COLUMNS;
  const u32 begin = lane_begin(p.split, z), end = lane_begin(p.split, z + 1);
  const u32 t = threadIdx.x, x = t % COLUMNS, y = t / COLUMNS, col = col0 + x;
  const bool both = p.kind == SUM_BY_COLUMN || p.kind == SUM_BY_ROW;
  float mean = 0.0f, factor = 0.0f;
  if (p.kind == SUM_BY_COLUMN && col < cols) {
    mean = p.statistics[col];
    factor = 1.0f / root(p.statistics[cols + col] + p.eps);
  }
  // What a stage needs is read into registers while the stage before is added. All reads of a stage
  // come before its writes, because a write may go to where `x` lies.
  float values[STAGE_ROWS / 8], others[STAGE_ROWS / 8];
  const bool reads_g = p.kind != SUM_PLAIN;
  const u32 g_col = p.kind == SUM_WEIGHTED ? 0 : col;
  const auto read_stage = LAMBDA(u32 first) {
    UNROLL for (u32 k = 0; k < STAGE_ROWS / 8; k++) {
      const u32 row = first + y + k * 8;
      const bool live = row < end && col < cols;
      values[k] = live ? p.x.data[(u64)row * p.x.stride + col] : 0.0f;
      others[k] = live && reads_g ? p.g.data[(u64)row * p.g.stride + g_col] : 0.0f;
    }
  };
  read_stage(begin);
  float sum = 0.0f;
  u32 side = 0;
  for (u32 at = begin; at < end; at += STAGE_ROWS, side ^= 1) {
    float* const term_to = terms + side * (STAGE_ROWS * COLUMNS);
    float* const gradient_to = gradients + side * (STAGE_ROWS * COLUMNS);
    UNROLL for (u32 k = 0; k < STAGE_ROWS / 8; k++) {
      const u32 local = y + k * 8, row = at + local;
      if (row < end && col < cols) {
        float term = values[k];
        if (p.kind == SUM_WEIGHTED) term = others[k] * term;
        if (p.kind == SUM_MASKED) {
          term = others[k] > 0.0f ? term : 0.0f;
          p.masked.data[(u64)row * p.masked.stride + col] = term;
        }
        if (both) {
          if (p.kind == SUM_BY_ROW) {
            mean = p.statistics[(u64)row * 2];
            factor = p.statistics[(u64)row * 2 + 1];
          }
          term = others[k] * ((term - mean) * factor);
          gradient_to[local * COLUMNS + x] = others[k];
        }
        term_to[local * COLUMNS + x] = term;
      }
    }
    __syncthreads();
    const u32 n = lesser(end - at, STAGE_ROWS);
    if (n == STAGE_ROWS) read_stage(at + STAGE_ROWS);
    // The first warp adds the terms, the second one the gradients.
    if (y == 0 || (y == 1 && both)) {
      const float* const from = y == 0 ? term_to : gradient_to;
      if (n == STAGE_ROWS) {
#pragma unroll 16
        for (u32 i = 0; i < STAGE_ROWS; i++) sum = sum + from[i * COLUMNS + x];
      } else {
        for (u32 i = 0; i < n; i++) sum = sum + from[i * COLUMNS + x];
      }
    }
  }
  if (begin == end || col >= cols) return;
  if (y == 0) p.parts[(u64)z * cols * (both ? 2 : 1) + col] = sum;
  if (y == 1 && both) p.parts[(u64)z * cols * 2 + cols + col] = sum;
}

// The sum of the lanes' parts in the order of lanes. A lane without rows has no part, and without
// any rows the sum is zero. A mean is divided by the number of rows.
struct CombineLanes {
  const float* parts;
  float* out;
  Split split;
  u32 size;
  u32 mean;
};
static_assert(sizeof(CombineLanes) == 48, "twin of CombineLanes");

KERNEL(combine_lanes, CombineLanes, 256, 4) {
  for (u64 i = thread_index(); i < p.size; i += thread_count()) {
    float sum = 0.0f;
    bool is_first = true;
    u32 begin = lane_begin(p.split, 0);
    const u32 start = begin;
    for (u32 z = 0; z < p.split.lane_count; z++) {
      const u32 end = lane_begin(p.split, z + 1);
      if (end > begin) {
        const float part = p.parts[(u64)z * p.size + i];
        sum = is_first ? part : sum + part;
        is_first = false;
      }
      begin = end;
    }
    const u32 rows = begin - start;
    if (p.mean && rows) sum = sum * (1.0f / (float)rows);
    p.out[i] = sum;
  }
}

// Sums over the rows of a batch in an order of its own, for steps whose products need not have the
// bits of the processor either: rows in ranges of about the same size, a sum for each column of each
// range. A second launch adds the ranges: its `x` is `parts`, and it has one range.
struct RangeSums {
  Rows x;
  Rows g;                // the weights in one column, or the results of relu
  // For SUM_MASKED_NARROW the values and the results of relu of type bf16, in rows of `x.cols`.
  const unsigned short* narrow_x;
  const unsigned short* narrow_g;
  float* masked;         // where masked terms are written, in rows like those of `x`; may be `x`, or null
  unsigned short* narrow;  // where terms are written as bf16, in rows of `x.cols`; may be `narrow_x`, or null
  float* parts;          // `x.cols` floats a range
  Count rows;
  u32 ranges;
  u32 kind;              // SUM_PLAIN, SUM_WEIGHTED, SUM_MASKED or SUM_MASKED_NARROW
};
static_assert(sizeof(RangeSums) == 96, "twin of RangeSums");

const u32 SUM_MASKED_NARROW = 5;  // like SUM_MASKED with `narrow_x` for `x`, and `narrow_g` for `g`
const u32 RANGE_QUADS = 16;   // of columns of a block
const u32 RANGE_ROWS = 16;    // that a block reads at a time, as one of several such reads in flight
const u32 RANGE_READS = 4;

// Reads the first `live` floats of four. `Whole` says that all four are live and aligned.
template <bool Whole> DEVICE float4 read_live(const float* from, u32 live) {
  if (Whole) return *(const float4*)from;
  return make_float4(from[0], live > 1 ? from[1] : 0.0f, live > 2 ? from[2] : 0.0f, live > 3 ? from[3] : 0.0f);
}
template <bool Whole> DEVICE float4 read_live(const unsigned short* from, u32 live) {
  if (Whole) {
    const uint2 v = *(const uint2*)from;
    return make_float4(from_bits(v.x << 16), from_bits(v.x & 0xffff0000u), from_bits(v.y << 16), from_bits(v.y & 0xffff0000u));
  }
  const u32 a = from[0], b = live > 1 ? from[1] : 0, c = live > 2 ? from[2] : 0, d = live > 3 ? from[3] : 0;
  return make_float4(from_bits(a << 16), from_bits(b << 16), from_bits(c << 16), from_bits(d << 16));
}
template <bool Whole> DEVICE void write_live(float* to, float4 v, u32 live) {
  if (Whole) {
    *(float4*)to = v;
    return;
  }
  to[0] = v.x;
  if (live > 1) to[1] = v.y;
  if (live > 2) to[2] = v.z;
  if (live > 3) to[3] = v.w;
}
template <bool Whole> DEVICE void write_live(unsigned short* to, float4 v, u32 live) {
  const u64 quad = bf16_of_quad(v);
  if (Whole) {
    *(u64*)to = quad;
    return;
  }
  for (u32 i = 0; i < live; i++) to[i] = (unsigned short)(quad >> (16 * i));
}

// The sum of a thread: of the rows `row`, `row + RANGE_ROWS` and so on, in this order.
template <bool Whole, u32 Kind> DEVICE float4 sum_of_rows(const RangeSums& p, u32 row, u32 end, u32 col, u32 live) {
  float4 sum = zero4();
  for (; row < end; row += RANGE_READS * RANGE_ROWS) {
    float4 terms[RANGE_READS], others[RANGE_READS];
    UNROLL for (u32 k = 0; k < RANGE_READS; k++) {
      const u64 at = row + k * RANGE_ROWS;
      terms[k] = others[k] = zero4();
      if (at < end) {
        terms[k] = Kind == SUM_MASKED_NARROW ? read_live<Whole>(p.narrow_x + at * p.x.cols + col, live)
                                             : read_live<Whole>(p.x.data + at * p.x.stride + col, live);
        if (Kind == SUM_WEIGHTED) others[k].x = p.g.data[at * p.g.stride];
        if (Kind == SUM_MASKED) others[k] = read_live<Whole>(p.g.data + at * p.g.stride + col, live);
        if (Kind == SUM_MASKED_NARROW) others[k] = read_live<Whole>(p.narrow_g + at * p.x.cols + col, live);
      }
    }
    UNROLL for (u32 k = 0; k < RANGE_READS; k++) {
      const u64 at = row + k * RANGE_ROWS;
      if (at >= end) break;
      float4 term = terms[k];
      const float4 g = others[k];
      if (Kind == SUM_WEIGHTED) term = make_float4(g.x * term.x, g.x * term.y, g.x * term.z, g.x * term.w);
      if (Kind == SUM_MASKED || Kind == SUM_MASKED_NARROW) {
        term.x = g.x > 0.0f ? term.x : 0.0f;
        term.y = g.y > 0.0f ? term.y : 0.0f;
        term.z = g.z > 0.0f ? term.z : 0.0f;
        term.w = g.w > 0.0f ? term.w : 0.0f;
        if (p.masked) write_live<Whole>(p.masked + at * p.x.stride + col, term, live);
      }
      if (p.narrow) write_live<Whole>(p.narrow + at * p.x.cols + col, term, live);
      sum = add4(sum, term);
    }
  }
  return sum;
}
template <bool Whole> DEVICE float4 sum_of_kind(const RangeSums& p, u32 row, u32 end, u32 col, u32 live) {
  if (p.kind == SUM_WEIGHTED) return sum_of_rows<Whole, SUM_WEIGHTED>(p, row, end, col, live);
  if (p.kind == SUM_MASKED) return sum_of_rows<Whole, SUM_MASKED>(p, row, end, col, live);
  if (p.kind == SUM_MASKED_NARROW) return sum_of_rows<Whole, SUM_MASKED_NARROW>(p, row, end, col, live);
  return sum_of_rows<Whole, SUM_PLAIN>(p, row, end, col, live);
}

KERNEL(range_sums, RangeSums, 256, 4) {
  SHARED(float4, sums, RANGE_ROWS * RANGE_QUADS);
  const u32 cols = p.x.cols, groups = quotient_up(cols, RANGE_QUADS * 4), t = threadIdx.x;
  const u32 z = blockIdx.x / groups, y = t / RANGE_QUADS;
  const u32 col = (blockIdx.x % groups * RANGE_QUADS + t % RANGE_QUADS) * 4;
  const u64 rows = count(p.rows);
  const u32 begin = (u32)(rows * z / p.ranges), end = (u32)(rows * (z + 1) / p.ranges);
  const u32 live = col < cols ? lesser(cols - col, 4u) : 0;
  u64 lowest = (u64)p.x.data | (u64)p.masked | (u64)p.x.stride * 4;
  if (p.kind == SUM_MASKED) lowest |= (u64)p.g.data | (u64)p.g.stride * 4;
  if (p.narrow_g || p.narrow) lowest |= (u64)cols * 4;
  float4 sum = zero4();
  if (live == 4 && lowest % 16 == 0) sum = sum_of_kind<true>(p, begin + y, end, col, live);
  else if (live) sum = sum_of_kind<false>(p, begin + y, end, col, live);
  sums[t] = sum;
  for (u32 half = RANGE_ROWS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (y < half) sums[t] = add4(sums[t], sums[t + half * RANGE_QUADS]);
  }
  if (y == 0 && live) write_live<false>(p.parts + (u64)z * cols + col, sums[t], live);
}

// What a layer of one unit sends back through relu, in one pass: the gradient of its inputs, and for
// each range of rows the sums of this gradient and those of the inputs times the slopes.
struct HeadGradient {
  Rows x;                // the inputs, which are results of relu
  const float* slopes;   // the gradient of the unit, one float a row
  const float* weights;
  float* gradient;       // in rows like those of `x`, or null
  unsigned short* narrow;  // the gradient as bf16, in rows of `x.cols`, or null
  float* parts;          // for each range the sums of the gradient, then the others
  u32 rows;
  u32 ranges;
};
static_assert(sizeof(HeadGradient) == 64, "twin of HeadGradient");

template <bool Whole>
DEVICE void add_head_rows(const HeadGradient& p, u32 row, u32 end, u32 col, u32 live, float4& sum, float4& weighted) {
  const float4 w = read_live<Whole>(p.weights + col, live);
  for (; row < end; row += RANGE_READS * RANGE_ROWS) {
    float4 values[RANGE_READS];
    float slopes[RANGE_READS];
    UNROLL for (u32 k = 0; k < RANGE_READS; k++) {
      const u64 at = row + k * RANGE_ROWS;
      values[k] = zero4();
      slopes[k] = 0.0f;
      if (at < end) {
        values[k] = read_live<Whole>(p.x.data + at * p.x.stride + col, live);
        slopes[k] = p.slopes[at];
      }
    }
    UNROLL for (u32 k = 0; k < RANGE_READS; k++) {
      const u64 at = row + k * RANGE_ROWS;
      if (at >= end) break;
      const float4 v = values[k];
      const float s = slopes[k];
      const float4 g = make_float4(v.x > 0.0f ? s * w.x : 0.0f, v.y > 0.0f ? s * w.y : 0.0f,
                                   v.z > 0.0f ? s * w.z : 0.0f, v.w > 0.0f ? s * w.w : 0.0f);
      if (p.gradient) write_live<Whole>(p.gradient + at * p.x.stride + col, g, live);
      if (p.narrow) write_live<Whole>(p.narrow + at * p.x.cols + col, g, live);
      sum = add4(sum, g);
      weighted = add4(weighted, make_float4(s * v.x, s * v.y, s * v.z, s * v.w));
    }
  }
}

KERNEL(head_gradient, HeadGradient, 256, 4) {
  SHARED(float4, sums, RANGE_ROWS * RANGE_QUADS);
  SHARED(float4, weighted_sums, RANGE_ROWS * RANGE_QUADS);
  const u32 cols = p.x.cols, groups = quotient_up(cols, RANGE_QUADS * 4), t = threadIdx.x;
  const u32 z = blockIdx.x / groups, y = t / RANGE_QUADS;
  const u32 col = (blockIdx.x % groups * RANGE_QUADS + t % RANGE_QUADS) * 4;
  const u32 begin = (u32)((u64)p.rows * z / p.ranges), end = (u32)((u64)p.rows * (z + 1) / p.ranges);
  const u32 live = col < cols ? lesser(cols - col, 4u) : 0;
  const u64 lowest = (u64)p.x.data | (u64)p.weights | (u64)p.gradient | (u64)p.x.stride * 4 | (u64)cols * 4;
  float4 sum = zero4(), weighted = zero4();
  if (live == 4 && lowest % 16 == 0) add_head_rows<true>(p, begin + y, end, col, live, sum, weighted);
  else if (live) add_head_rows<false>(p, begin + y, end, col, live, sum, weighted);
  sums[t] = sum;
  weighted_sums[t] = weighted;
  for (u32 half = RANGE_ROWS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (y < half) {
      sums[t] = add4(sums[t], sums[t + half * RANGE_QUADS]);
      weighted_sums[t] = add4(weighted_sums[t], weighted_sums[t + half * RANGE_QUADS]);
    }
  }
  if (y == 0 && live) {
    float* const to = p.parts + (u64)z * 2 * cols + col;
    write_live<false>(to, sums[t], live);
    write_live<false>(to + cols, weighted_sums[t], live);
  }
}

// The mean and the squared deviations of each column in each tile: two chains over the rows.
struct TileStatistics {
  Rows x;
  float* tiles_out;      // for each tile the means, then the squares
  Split split;
};
static_assert(sizeof(TileStatistics) == 48, "twin of TileStatistics");

KERNEL(tile_statistics, TileStatistics, 128, 4) {
  const u32 cols = p.x.cols, groups = quotient_up(cols, 128);
  const u32 tile = blockIdx.x / groups, col = blockIdx.x % groups * 128 + threadIdx.x;
  if (col >= cols || tile >= read_only(p.split.lanes + p.split.lane_count)) return;
  const u32 begin = read_only(p.split.tiles + tile), end = read_only(p.split.tiles + tile + 1);
  if (begin == end) return;
  const float* const x = p.x.data + col;
  float mean = 0.0f, squares = 0.0f;
#pragma unroll 8
  for (u32 row = begin; row < end; row++) mean = mean + x[(u64)row * p.x.stride];
  mean = mean * (1.0f / (float)(end - begin));
#pragma unroll 8
  for (u32 row = begin; row < end; row++) {
    const float deviation = x[(u64)row * p.x.stride] - mean;
    squares = squares + deviation * deviation;
  }
  p.tiles_out[(u64)tile * 2 * cols + col] = mean;
  p.tiles_out[(u64)tile * 2 * cols + cols + col] = squares;
}

// The statistics of a batch: the tiles of a lane are merged in order, then the lanes (Chan's
// formula). The result is the means, then the variances.
struct MergeStatistics {
  const float* tiles_in;
  float* out;
  Split split;
  u32 cols;
  u32 unused;
};
static_assert(sizeof(MergeStatistics) == 48, "twin of MergeStatistics");

struct Moments {
  float mean, squares;
  u32 rows;
};
DEVICE void merge_moments(Moments& so_far, float mean, float squares, u32 rows) {
  if (so_far.rows == 0) {
    so_far = {mean, squares, rows};
    return;
  }
  const float share = (float)rows / (float)(so_far.rows + rows);
  const float weight = (float)so_far.rows * share;
  const float delta = mean - so_far.mean;
  so_far.mean = so_far.mean + delta * share;
  so_far.squares = so_far.squares + (squares + delta * delta * weight);
  so_far.rows += rows;
}

KERNEL(merge_statistics, MergeStatistics, 128, 4) {
  const u64 col = thread_index();
  if (col >= p.cols) return;
  Moments all = {0.0f, 0.0f, 0};
  for (u32 z = 0; z < p.split.lane_count; z++) {
    Moments lane = {0.0f, 0.0f, 0};
    const u32 last = read_only(p.split.lanes + z + 1);
    for (u32 tile = read_only(p.split.lanes + z); tile < last; tile++) {
      const u32 rows = read_only(p.split.tiles + tile + 1) - read_only(p.split.tiles + tile);
      const float* const from = p.tiles_in + (u64)tile * 2 * p.cols + col;
      if (rows) merge_moments(lane, from[0], from[p.cols], rows);
    }
    if (lane.rows) merge_moments(all, lane.mean, lane.squares, lane.rows);
  }
  p.out[col] = all.mean;
  p.out[p.cols + col] = all.rows ? all.squares * (1.0f / (float)all.rows) : 0.0f;
}
