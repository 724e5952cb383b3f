// The softmax over the items of the whole batch. The reference is nn/src/ops/in_batch_softmax.rs.
//
// The dot products come first, by `transpose` and `product_*`: a row of them for each row of one
// tower, a column for each row of the other tower. A launch has some rows of the batch, so that the
// products of all pairs are never in memory together. `in_batch_lse` reads the products;
// `in_batch_shares` replaces them by the shares of the gradient, and the gradient is one more product
// of the shares and the rows of the other tower. Its chains are as long as a block here.
#include "math.cuh"

const u32 BLOCK_ROWS = 512;

// Values of InBatch::kind: the tower whose rows have the gradient.
const u32 OF_QUERIES = 0;
const u32 OF_ITEMS = 1;

struct InBatch {
  RowsMut products;      // row 0 belongs to the row `first_row` of the batch
  const u32* items;      // the unique row of the item of each row of the batch
  // What follows has a float for each row of the batch.
  Rows correction;       // `data` is null if there is no correction
  Rows lse;              // the results of `in_batch_lse`
  Rows g;                // the gradients of these results
  float* out;            // of `in_batch_lse`
  Count total;           // the number of rows of the batch
  u32 first_row;
  u32 rows;              // of this launch
  u32 out_stride;
  float by;
  u32 kind;
  u32 unused;
};
static_assert(sizeof(InBatch) == 120, "twin of InBatch");

DEVICE float at_row(const Rows& column, u32 row) { return read_only(column.data + (u64)row * column.stride); }

// Half a warp a row: a maximum and sixteen interleaved sums for each block. The sum so far is scaled
// when the maximum grows.
KERNEL(in_batch_lse, InBatch, 256, 4) {
  const u32 total = count(p.total), lane = threadIdx.x & 15, mask = half_warp_mask();
  const u32 end = lesser(p.first_row + p.rows, total);
  const u64 halves = thread_count() / 16;
  for (u64 at = p.first_row + thread_index() / 16; at < end; at += halves) {
    const float* const products = p.products.data + (at - p.first_row) * p.products.stride;
    const u32 item = read_only(p.items + at);
    const auto score = LAMBDA(u32 j)->float {
      if (j != at && read_only(p.items + j) == item) return -infinity();
      const float scaled = p.by * products[j];
      return p.correction.data ? scaled - at_row(p.correction, j) : scaled;
    };
    float most = -infinity(), sum = 0.0f;
    for (u32 begin = 0; begin < total; begin += BLOCK_ROWS) {
      const u32 stop = lesser(begin + BLOCK_ROWS, total);
      float best = most;
      for (u32 j = begin + lane; j < stop; j += SUMS) {
        const float s = score(j);
        best = s > best ? s : best;
      }
      UNROLL for (u32 width = 8; width > 0; width /= 2) {
        const float other = __shfl_xor_sync(mask, best, width);
        best = other > best ? other : best;
      }
      // The maximum is minus infinity if all scores so far were left out.
      if (best > -infinity()) {
        float part = 0.0f;
        for (u32 j = begin + lane; j < stop; j += SUMS) part = part + exp_of(score(j) - best);
        part = sum_of_half_warp(mask, part);
        sum = sum * exp_of(most - best) + part;
        most = best;
      }
    }
    if (lane == 0) p.out[at * p.out_stride] = most + ln_of(sum);
  }
}

// A block a row.
KERNEL(in_batch_shares, InBatch, 256, 4) {
  const u32 total = count(p.total), end = lesser(p.first_row + p.rows, total);
  const bool of_queries = p.kind == OF_QUERIES;
  for (u32 at = p.first_row + blockIdx.x; at < end; at += gridDim.x) {
    float* const products = p.products.data + (u64)(at - p.first_row) * p.products.stride;
    const u32 item = read_only(p.items + at);
    for (u32 k = threadIdx.x; k < total; k += 256) {
      const u32 query = of_queries ? at : k, other = of_queries ? k : at;
      const float c = p.correction.data ? at_row(p.correction, other) : 0.0f;
      const float share = p.by * at_row(p.g, query) * exp_of(p.by * products[k] - c - at_row(p.lse, query));
      products[k] = k != at && read_only(p.items + k) == item ? 0.0f : share;
    }
  }
}
