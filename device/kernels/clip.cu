// The norm of a step's gradients and the factor that clips it, without the host. The references are
// embedding/src/table/sweep.rs (run_squares), embedding/src/set/partials.rs, nn/src/optim/clip.rs and
// trainer/src/train/step.rs (gradient_scale).
//
// Squares of rows are written in the order of the plan, and `ordered_sums` then adds them three
// times: the rows of a slot, the slots of a group, the groups. Each sum is a chain in double
// precision.
#include "half.cuh"

// The floats of a row with one regulariser.
struct SquareSegment {
  u32 begin, end;
  float l2;
  u32 shift;                // how far behind `begin` the segment lies in the gradient
  u32 l2_is_whole;          // whether the regulariser also applies to rows without a gradient
  u32 unused;
};

struct RowSquares {
  const float* gradients;   // the sums of the unique rows
  const float* slab;
  const u32* slots;         // the slab's row of each unique row; null if they are the same
  const u32* order;         // the place in the plan of each unique row; null if it is the same
  const u32* unique_of;     // of a swept table: the unique row of each row, or 0xffffffff; or null
  const SquareSegment* segments;
  double* out;
  Count rows;               // unique rows; of a swept table all rows
  u32 gradient_stride, stride;
  u32 width;                // the floats of a gradient
  u32 segment_count;
  u32 dtype;                // of the weights
  u32 unused;
};
static_assert(sizeof(SquareSegment) == 24 && sizeof(RowSquares) == 96, "twins of SquareSegment and RowSquares");

// Eight lanes a row: the eight interleaved sums of each segment, added in a fixed tree. A gradient
// that is not finite counts nothing, because its row does not change, and so does a key without a row.
// In a swept table, a row without a gradient has the regulariser of the whole table.
KERNEL(row_squares, RowSquares, 256, 4) {
  const u32 rows = count(p.rows), lane = threadIdx.x & 7, mask = 0xffu << (threadIdx.x & 24);
  const u64 groups = thread_count() / 8;
  for (u64 u = thread_index() / 8; u < rows; u += groups) {
    const u32 from = p.unique_of ? p.unique_of[u] : (u32)u;
    const float* const raw = p.gradients + (u64)from * p.gradient_stride;
    const u32 slot = p.slots ? read_only(p.slots + u) : (u32)u;
    if (slot == NO_ROW) {
      if (lane == 0) p.out[p.order ? read_only(p.order + u) : u] = 0.0;
      continue;
    }
    const float* const row = p.slab + (u64)slot * p.stride;
    bool touched = from != 0xffffffffu, finite = true;
    for (u32 i = lane; touched && i < p.width; i += 8) finite = finite && magnitude(raw[i]) < from_bits(0x7f800000u);
    const bool dropped = __any_sync(mask, !finite);
    touched = touched && !dropped;
    double all = -0.0;
    for (u32 number = 0; number < p.segment_count; number++) {
      const SquareSegment segment = p.segments[number];
      const float l2 = touched || segment.l2_is_whole ? segment.l2 : 0.0f;
      double sum = 0.0;
      for (u32 i = segment.begin + lane; i < segment.end; i += 8) {
        const float weight = p.dtype == STORED_F32 ? row[i] : widen(p.dtype, ((const unsigned short*)row)[i]);
        const double x = (double)((touched ? raw[i + segment.shift] : 0.0f) + l2 * weight);
        sum = sum + x * x;
      }
      // Without a gradient and a regulariser, a weight that is not finite adds nothing.
      if (!touched && l2 == 0.0f) sum = 0.0;
      sum = sum + __shfl_xor_sync(mask, sum, 4);
      sum = sum + __shfl_xor_sync(mask, sum, 2);
      all = all + (sum + __shfl_xor_sync(mask, sum, 1));
    }
    if (dropped && !p.unique_of) all = 0.0;
    if (lane == 0) p.out[p.order ? read_only(p.order + u) : u] = all;
  }
}

// out[i] = in[starts[i]] + ... + in[starts[i + 1] - 1], from zero and in order.
struct OrderedSums {
  const double* in;
  double* out;
  const u32* starts;
  u32 n;
  u32 unused;
};
static_assert(sizeof(OrderedSums) == 32, "twin of OrderedSums");

KERNEL(ordered_sums, OrderedSums, 128, 4) {
  for (u64 i = thread_index(); i < p.n; i += thread_count()) {
    double sum = 0.0;
    const u32 end = p.starts[i + 1];
#pragma unroll 4
    for (u32 k = p.starts[i]; k < end; k++) sum = sum + p.in[k];
    p.out[i] = sum;
  }
}

// The factor of the step, and whether the step is skipped: a gradient that is not finite must change
// no weight.
struct Clip {
  const double* dense;      // the squared norm of the dense gradients
  const double* rows;       // that of the rows; read only if the job clips
  float* scale;
  u32* skip;
  u32* skips;               // counts skipped steps; or null
  double most;              // the largest norm
  u32 clips;
  u32 unused;
};
static_assert(sizeof(Clip) == 56, "twin of Clip");

DEVICE bool is_finite_sum(double x) { return x - x == 0.0; }

KERNEL(clip, Clip, 32, 1) {
  if (blockIdx.x || threadIdx.x) return;
  const double dense = *p.dense;
  float scale = 1.0f;
  bool skip = !is_finite_sum(dense);
  if (p.clips && !skip) {
    const double norm = root(*p.rows + dense);
    skip = !is_finite_sum(norm);
    const double factor = p.most / (norm + 1e-6);
    scale = (float)(factor < 1.0 ? factor : 1.0);
  }
  *p.scale = skip ? 0.0f : scale;
  *p.skip = skip;
  if (p.skips && skip) *p.skips = *p.skips + 1;
}
