// Operations between the rows of a batch and the values of their lists. The reference is
// nn/src/ops/segment.rs. A thread has one column of one list and goes over its values in order.
#include "math.cuh"

// Values of Segment::kind.
const u32 REPEAT = 0;           // each value gets the row of its list; `mean` divides by its length
const u32 SEGMENT_SUM = 1;      // each row gets the sum of its list; `mean` divides by its length
const u32 SEGMENT_SOFTMAX = 2;
const u32 SEGMENT_SOFTMAX_GRAD = 3;  // `x` is the gradient, `y` the result of the softmax

struct Segment {
  Rows x;
  Rows y;
  RowsMut out;
  const u32* offsets;    // the first value of each row's list; null if each row has one value
  Count rows;            // of the batch
  u32 kind;
  u32 mean;
};
static_assert(sizeof(Segment) == 80, "twin of Segment");

KERNEL(segment, Segment, 256, 4) {
  const u32 rows = count(p.rows), cols = p.out.cols;
  const u64 all = (u64)rows * cols;
  for (u64 i = thread_index(); i < all; i += thread_count()) {
    const u32 row = (u32)(i / cols), col = (u32)(i % cols);
    const u32 begin = p.offsets ? read_only(p.offsets + row) : row, end = p.offsets ? read_only(p.offsets + row + 1) : row + 1;
    const float* const x = p.x.data + col;
    float* const out = p.out.data + col;
    const float by = p.mean && end > begin ? 1.0f / (float)(end - begin) : 1.0f;
    if (p.kind == REPEAT) {
      const float repeated = by * x[(u64)row * p.x.stride];
      for (u32 v = begin; v < end; v++) out[(u64)v * p.out.stride] = repeated;
    } else if (p.kind == SEGMENT_SUM) {
      float sum = 0.0f;
      for (u32 v = begin; v < end; v++) sum = sum + x[(u64)v * p.x.stride];
      out[(u64)row * p.out.stride] = sum * by;
    } else if (p.kind == SEGMENT_SOFTMAX) {
      float most = -infinity();
      for (u32 v = begin; v < end; v++) {
        const float value = x[(u64)v * p.x.stride];
        most = value > most ? value : most;
      }
      float sum = 0.0f;
      for (u32 v = begin; v < end; v++) sum = sum + exp_of(x[(u64)v * p.x.stride] - most);
      const float share = 1.0f / sum;
      for (u32 v = begin; v < end; v++) out[(u64)v * p.out.stride] = exp_of(x[(u64)v * p.x.stride] - most) * share;
    } else {
      const float* const y = p.y.data + col;
      float sum = 0.0f;
      for (u32 v = begin; v < end; v++) sum = sum + x[(u64)v * p.x.stride] * y[(u64)v * p.y.stride];
      for (u32 v = begin; v < end; v++)
        out[(u64)v * p.out.stride] = y[(u64)v * p.y.stride] * (x[(u64)v * p.x.stride] - sum);
    }
  }
}
