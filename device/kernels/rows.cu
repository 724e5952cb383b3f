// The gradients of table rows and the row optimizers, in one launch.
//
// The sum of a row's gradients is the processor's chain (nn/src/ops/gather.rs, add_row_gradients):
// it begins at zero, gather follows gather, and inside a gather the values ascend. The host lists
// the occurrences of each unique row in this order. The rules are those of embedding/src/optimizer;
// sums of squares are eight interleaved sums that are added in its fixed tree.
//
// `row_update_*` and `row_update_long_*` serve what is common: rows of at most 128 floats whose parts
// begin at multiples of four floats, sums and four rules without a guard. `row_sums` and
// `row_rules` serve everything, in two launches.
//
// Q neighbouring threads hold a row, four floats each, so Q = 4 serves rows of up to 16 floats. The
// host orders unique rows by their number of occurrences: long rows first, then medium ones, then
// short ones. A short row has Q threads. A medium row has a warp, which reads 32 / Q occurrences
// side by side and passes them along by shuffles, so that the chain stays in order. A long row has a
// block of its own (`row_update_long_*`), which reads a stage of occurrences ahead while the last
// stage is added.
//
// A running sum begins at +0 and can never become -0, so adding +0 for an element that an
// occurrence lacks changes no bit.
#include "rules.cuh"

// The gradient of one gather, as it is for each occurrence. Without `gradient`, the gather does not
// cover the part.
struct GradientSource {
  const float* gradient;
  u32 stride;
  u32 flags;             // SOURCE_*; the rest is not read without them
  const float* factors;  // of each value
  const u32* row_of;     // the gradient's row of each value of a list
  const float* winners;  // a max pooling's winner of each element; a row for each row of the batch
  const u32* offsets;    // the first value of each list; null if each row has one value
  u32 winner_stride;
  u32 unused[3];
};
static_assert(sizeof(GradientSource) == 64, "twin of GradientSource");
const u32 SOURCE_FACTORS = 1;
const u32 SOURCE_LISTS = 2;
const u32 SOURCE_WINNERS = 4;

// Floats `begin..end` of a row that the same gathers cover.
struct RowPart {
  u32 begin, end;
};

// The numbers of unique rows: all of them, and those of the first two classes.
struct RowClasses {
  u32 unique, long_rows, medium_rows, unused;
};

struct RowUpdate {
  float* slab;
  const u32* slots;            // the slab's row of each unique row; null if they are the same
  const GradientSource* sources;  // part by part, a source for each gather
  const RowPart* parts;
  const u32* starts;           // the first occurrence of each unique row; null for one each
  const u32* occurrences;      // value << gather_bits | gather
  const RowClasses* classes;
  const RowRule* rules;        // null to write sums alone
  const float* scale;          // the factor of a clipped step; null for 1
  const u32* skip;             // nonzero where the step changes no row; or null
  u32* nonfinite;              // counts rows whose gradient is not finite; or null
  float* sums;                 // where sums are written, or null
  const u32* places;           // the place of each unique row among the sums; null if they are the same
  u32 stride;                  // of the slab, a multiple of 4
  u32 width;                   // the floats of a gradient
  u32 part_count, gathers, gather_bits;
  u32 rule_count;
  u32 sum_stride;
  u32 unused;
};
static_assert(sizeof(RowUpdate) == 136, "twin of RowUpdate");

DEVICE u32 first_occurrence(const RowUpdate& p, u32 u) { return p.starts ? read_only(p.starts + u) : u; }
DEVICE u32 occurrence_at(const RowUpdate& p, u32 at) { return p.occurrences ? read_only(p.occurrences + at) : at << p.gather_bits; }
DEVICE float* sum_row(const RowUpdate& p, u32 u) { return p.sums + (u64)(p.places ? read_only(p.places + u) : u) * p.sum_stride; }
DEVICE float* slab_row(const RowUpdate& p, u32 u) { return p.slab + (u64)(p.slots ? read_only(p.slots + u) : u) * p.stride; }

// Returns one occurrence's gradient of a float.
DEVICE float gradient_of(const GradientSource* from, u32 value, u32 at) {
  const GradientSource& source = *from;
  if (!source.gradient) return 0.0f;
  const u32 row = source.flags & SOURCE_LISTS ? read_only(source.row_of + value) : value;
  const float g = read_only(source.gradient + (u64)row * source.stride + at);
  const float scaled = source.flags & SOURCE_FACTORS ? read_only(source.factors + value) * g : g;
  if (source.flags & SOURCE_WINNERS) {
    const u32 first = source.offsets ? read_only(source.offsets + row) : row;
    if (read_only(source.winners + (u64)row * source.winner_stride + at) != (float)(value - first)) return 0.0f;
  }
  return scaled;
}

// What a thread of the fast kernels knows of its floats, which belong to one part.
struct Quad {
  u32 q;        // its number among the threads of the row
  u32 floats;   // how many of its four floats exist
  u32 source;   // the part's first source
  u32 at;       // the place in the part
};

template <int Q> DEVICE Quad make_quad(const RowUpdate& p, u32 thread) {
  Quad quad = {thread % Q, 0, 0, 0};
  const u32 e = quad.q * 4;
  for (u32 part = 0; part < p.part_count; part++) {
    const RowPart range = p.parts[part];
    if (e >= range.begin && e < range.end) quad = {quad.q, lesser(range.end - e, 4u), part * p.gathers, e - range.begin};
  }
  return quad;
}

// Reads the floats of a thread; those that do not exist are zero.
DEVICE float4 read_floats(const float* from, u32 floats) {
  if (floats == 4) return read4(from);
  float4 v = zero4();
  if (floats > 0) v.x = read_only(from);
  if (floats > 1) v.y = read_only(from + 1);
  if (floats > 2) v.z = read_only(from + 2);
  return v;
}
DEVICE void write_floats(float* to, float4 v, u32 floats) {
  if (floats == 4) {
    *(float4*)to = v;
    return;
  }
  if (floats > 0) to[0] = v.x;
  if (floats > 1) to[1] = v.y;
  if (floats > 2) to[2] = v.z;
}

DEVICE float4 read_gradient(const RowUpdate& p, const Quad& quad, u32 occurrence) {
  const u32 value = occurrence >> p.gather_bits, gather = occurrence & ((1u << p.gather_bits) - 1);
  const GradientSource* const source = p.sources + quad.source + gather;
  // The address, the stride and the flags.
  const ulonglong2 head = read_only((const ulonglong2*)source);
  const float* const gradient = (const float*)head.x;
  const u32 stride = (u32)head.y, flags = (u32)(head.y >> 32);
  if (!gradient) return zero4();
  const u32 row = flags & SOURCE_LISTS ? read_only(source->row_of + value) : value;
  float4 g = read_floats(gradient + (u64)row * stride + quad.at, quad.floats);
  if (flags & SOURCE_FACTORS) {
    const float by = read_only(source->factors + value);
    g = make_float4(by * g.x, by * g.y, by * g.z, by * g.w);
  }
  return g;
}

// Returns the sum of the squares of `n` numbers: eight interleaved sums, added in a fixed tree. Q
// threads of the row call it together, and each of them gets the sum.
template <int Q, class Sum> DEVICE Sum sum_of_squares(const float* numbers, u32 n, u32 q) {
  Sum sums[8];
  // Each of eight threads has one of the sums; fewer threads have several.
  constexpr int EACH = Q >= 8 ? 1 : 8 / Q;
  UNROLL for (int k = 0; k < EACH; k++) {
    Sum sum = 0;
    for (u32 i = Q >= 8 ? q % 8 : q + k * Q; i < n; i += 8) {
      const Sum x = (Sum)numbers[i];
      sum = sum + x * x;
    }
    sums[k] = sum;
  }
  if (Q == 1) return ((sums[0] + sums[EACH > 4 ? 4 : 0]) + (sums[EACH > 2 ? 2 : 0] + sums[EACH > 6 ? 6 : 0])) +
                     ((sums[EACH > 1 ? 1 : 0] + sums[EACH > 5 ? 5 : 0]) + (sums[EACH > 3 ? 3 : 0] + sums[EACH > 7 ? 7 : 0]));
  Sum sum = sums[0];
  if (Q == 4) sum = sums[0] + sums[EACH > 1 ? 1 : 0];
  if (Q >= 8) sum = sum + __shfl_xor_sync(ALL_LANES, sum, 4);
  sum = sum + __shfl_xor_sync(ALL_LANES, sum, 2);
  return sum + __shfl_xor_sync(ALL_LANES, sum, 1);
}

// The row of a unique row and what its rule will need, read before its occurrences.
struct RowState {
  float* row;
  float4 weights;
  float first_state;
};
DEVICE RowState read_row(const RowUpdate& p, const Quad& quad, u32 u, bool live) {
  RowState s = {nullptr, zero4(), 0.0f};
  if (p.rules && live) {
    s.row = slab_row(p, u);
    // The row is written by this kernel, so it is not read through the cache of constants.
    const float* const from = s.row + quad.q * 4;
    if (quad.floats == 4) {
      s.weights = *(const float4*)from;
    } else {
      if (quad.floats > 0) s.weights.x = from[0];
      if (quad.floats > 1) s.weights.y = from[1];
      if (quad.floats > 2) s.weights.z = from[2];
    }
    if (p.rules[0].kind == RULE_ROWWISE_ADAGRAD) s.first_state = s.row[p.rules[0].state];
  }
  return s;
}

DEVICE float4 xor4(float4 v, int by) {
  return make_float4(__shfl_xor_sync(ALL_LANES, v.x, by), __shfl_xor_sync(ALL_LANES, v.y, by),
                     __shfl_xor_sync(ALL_LANES, v.z, by), __shfl_xor_sync(ALL_LANES, v.w, by));
}

// The floats of scratch memory of a row, and of a warp. Eight floats of padding put the rows of a
// warp into different banks.
template <int Q> struct Scratch {
  static constexpr u32 ROW = 4 * Q + 8, WARP = 32 / Q * ROW;
};

// What follows the sum of a row, by its Q threads: its sum is written, and its rules are applied. All
// lanes of the warp call it; those whose row is not `live` change nothing. `scratch` has
// `Scratch<Q>::ROW` floats.
template <int Q>
DEVICE void finish_row(const RowUpdate& p, const Quad& quad, u32 u, float4 sum, const RowState& s, bool live, float* scratch) {
  if (p.sums && live) write_floats(sum_row(p, u) + quad.q * 4, sum, quad.floats);
  if (!p.rules) return;
  const float scale = p.scale ? *p.scale : 1.0f;
  // A row whose gradient is not finite keeps its weights and its state.
  const bool finite = is_finite(sum.x) && is_finite(sum.y) && is_finite(sum.z) && is_finite(sum.w);
  const u32 lane = threadIdx.x & 31, mine = Q == 32 ? ALL_LANES : ((1u << (Q & 31)) - 1) << (lane / Q * Q);
  const bool row_finite = (__ballot_sync(ALL_LANES, !finite) & mine) == 0;
  if (live && !row_finite && quad.q == 0 && p.nonfinite) atomicAdd(p.nonfinite, 1u);
  const bool change = live && row_finite && !(p.skip && *p.skip);
  for (u32 number = 0; number < p.rule_count; number++) {
    const RowRule& rule = p.rules[number];
    const u32 kind = rule.kind, begin = rule.begin, dim = rule.end - begin, e = quad.q * 4;
    // Segments begin at multiples of four floats, as parts do.
    const u32 floats = e >= begin && e < rule.end ? lesser(rule.end - e, 4u) : 0;
    const float w[4] = {s.weights.x, s.weights.y, s.weights.z, s.weights.w};
    const float raw[4] = {sum.x, sum.y, sum.z, sum.w};
    float g[4], after[4];
    UNROLL for (int i = 0; i < 4; i++) g[i] = (raw[i] + rule.l2 * w[i]) * scale;
    float* const state = s.row + rule.state;
    if (kind == RULE_ROWWISE_ADAGRAD) {
      float squares;
      if (Q == 4) {
        // Two terms a partial sum: those of threads two apart. Then the tree, across neighbours first.
        float4 k = zero4();
        if (floats > 0) k.x = g[0] * g[0];
        if (floats > 1) k.y = g[1] * g[1];
        if (floats > 2) k.z = g[2] * g[2];
        if (floats > 3) k.w = g[3] * g[3];
        k = add4(k, xor4(k, 2));
        k = add4(k, xor4(k, 1));
        squares = (k.x + k.z) + (k.y + k.w);
      } else {
        __syncwarp(ALL_LANES);
        if (floats) *(float4*)(scratch + e - begin) = make_float4(g[0], g[1], g[2], g[3]);
        __syncwarp(ALL_LANES);
        squares = sum_of_squares<Q, float>(scratch, dim, quad.q);
      }
      const float before = number == 0 ? s.first_state : live ? state[0] : 0.0f;
      const float accumulated = before + squares / (float)dim;
      const float step = rule.lr / (root(accumulated) + rule.eps);
      UNROLL for (int i = 0; i < 4; i++) after[i] = w[i] - step * g[i];
      // The state is written when all threads of the row have read it.
      __syncwarp(ALL_LANES);
      if (change && quad.q == 0) state[0] = accumulated;
    } else if (change && floats) {
      float* const mine = state + e - begin;
      UNROLL for (u32 i = 0; i < 4; i++)
        if (i < floats) {
          if (kind == RULE_SGD) {
            after[i] = w[i] - rule.lr * g[i];
          } else if (kind == RULE_ADAGRAD) {
            const float accumulated = mine[i] + g[i] * g[i];
            after[i] = w[i] - rule.lr * g[i] / (root(accumulated) + rule.eps);
            mine[i] = accumulated;
          } else {
            const float m = mine[i] + rule.b * (g[i] - mine[i]);
            const float v = rule.a * mine[dim + i] + rule.c * (g[i] * g[i]);
            const float denominator = root(v) / rule.d + rule.eps;
            after[i] = w[i] - rule.lr * (m / denominator);
            mine[i] = m;
            mine[dim + i] = v;
          }
        }
    }
    if (change && floats) write_floats(s.row + e, make_float4(after[0], after[1], after[2], after[3]), floats);
  }
}

const u32 ROW_THREADS = 256;
const u32 ROW_WARPS = ROW_THREADS / 32;

// Medium and short rows. Virtual blocks go over both classes.
template <int Q> DEVICE void update_rows(const RowUpdate& p, float* scratch) {
  constexpr int GROUPS = ROW_THREADS / Q, SIDE = 32 / Q, DEEP = 4;
  const RowClasses classes = *p.classes;
  const u32 t = threadIdx.x, lane = t % 32, warp = t / 32;
  const u32 medium_blocks = quotient_up(classes.medium_rows, ROW_WARPS);
  const u32 first_short = classes.long_rows + classes.medium_rows;
  const u32 blocks = medium_blocks + quotient_up(classes.unique - first_short, GROUPS);
  const Quad quad = make_quad<Q>(p, t);
  float* const here = scratch + warp * Scratch<Q>::WARP + lane / Q * Scratch<Q>::ROW;
  for (u32 block = blockIdx.x; block < blocks; block += gridDim.x) {
    float4 sum = zero4();
    if (block < medium_blocks) {
      const u32 u = classes.long_rows + block * ROW_WARPS + warp;
      if (u < first_short) {
        const RowState s = read_row(p, quad, u, true);
        const u32 begin = first_occurrence(p, u), end = first_occurrence(p, u + 1);
        for (u32 at = begin; at < end; at += SIDE * DEEP) {
          float4 x[DEEP];
          UNROLL for (int k = 0; k < DEEP; k++) {
            const u32 mine = at + k * SIDE + lane / Q;
            x[k] = mine < end ? read_gradient(p, quad, occurrence_at(p, mine)) : zero4();
          }
          UNROLL for (int k = 0; k < DEEP; k++) {
            UNROLL for (int j = 0; j < SIDE; j++) {
              if (SIDE == 1) {
                sum = add4(sum, x[k]);
              } else {
                const u32 from = j * Q + quad.q;
                sum = add4(sum, make_float4(__shfl_sync(ALL_LANES, x[k].x, from), __shfl_sync(ALL_LANES, x[k].y, from),
                                            __shfl_sync(ALL_LANES, x[k].z, from), __shfl_sync(ALL_LANES, x[k].w, from)));
              }
            }
          }
        }
        finish_row<Q>(p, quad, u, sum, s, lane < Q, here);
      }
    } else {
      const u32 u = first_short + (block - medium_blocks) * GROUPS + t / Q;
      const bool live = u < classes.unique;
      const RowState s = read_row(p, quad, u, live);
      if (live) {
        const u32 begin = first_occurrence(p, u), end = first_occurrence(p, u + 1);
        for (u32 at = begin; at < end; at += 4) {
          float4 x[4];
          UNROLL for (int k = 0; k < 4; k++) x[k] = at + k < end ? read_gradient(p, quad, occurrence_at(p, at + k)) : zero4();
          UNROLL for (int k = 0; k < 4; k++) sum = add4(sum, x[k]);
        }
      }
      finish_row<Q>(p, quad, u, sum, s, live, here);
    }
  }
}

const u32 LONG_THREADS = 512;

// Long rows, a block each. A stage of occurrences is on its way while the last one is added; the
// places of a stage are read one stage before its gradients.
template <int Q> DEVICE void update_long_rows(const RowUpdate& p, float* scratch) {
  constexpr int GROUPS = LONG_THREADS / Q, DEEP = Q >= 32 ? 4 : 2, STAGE = GROUPS * DEEP, FLOATS = 4 * Q;
  DYNAMIC_SHARED(float, stages);  // two stages of STAGE occurrences
  const u32 t = threadIdx.x, group = t / Q, lane = t % 32;
  const Quad quad = make_quad<Q>(p, t);
  const u32 rows = p.classes->long_rows;
  for (u32 u = blockIdx.x; u < rows; u += gridDim.x) {
    const u32 begin = first_occurrence(p, u), end = first_occurrence(p, u + 1);
    u32 place[DEEP];
    float4 next[DEEP];
    auto read_places = LAMBDA(u32 at) {
      UNROLL for (int k = 0; k < DEEP; k++) {
        const u32 mine = at + k * GROUPS + group;
        place[k] = mine < end ? occurrence_at(p, mine) : 0;
      }
    };
    auto read_stage = LAMBDA(u32 at) {
      UNROLL for (int k = 0; k < DEEP; k++)
        next[k] = at + k * GROUPS + group < end ? read_gradient(p, quad, place[k]) : zero4();
    };
    read_places(begin);
    read_stage(begin);
    read_places(begin + STAGE);
    float chain = 0.0f;
    u32 side = 0;
    for (u32 at = begin; at < end; at += STAGE, side ^= 1) {
      float* const stage = stages + side * (STAGE * FLOATS);
      UNROLL for (int k = 0; k < DEEP; k++) ((float4*)stage)[(k * GROUPS + group) * Q + quad.q] = next[k];
      __syncthreads();
      read_stage(at + STAGE);
      read_places(at + 2 * STAGE);
      if (t < FLOATS) {
        const u32 n = lesser(end - at, (u32)STAGE);
        if (n == STAGE) {
#pragma unroll 16
          for (u32 i = 0; i < STAGE; i++) chain = chain + stage[i * FLOATS + t];
        } else {
          for (u32 i = 0; i < n; i++) chain = chain + stage[i * FLOATS + t];
        }
      }
    }
    __syncthreads();
    if (t < FLOATS) stages[t] = chain;
    __syncthreads();
    if (t < 32) {
      const RowState s = read_row(p, quad, u, true);
      finish_row<Q>(p, quad, u, ((const float4*)stages)[quad.q], s, lane < Q, scratch + lane / Q * Scratch<Q>::ROW);
    }
    __syncthreads();
  }
}

#define ROW_KERNELS(Q)                                          \
  KERNEL(row_update_##Q, RowUpdate, 256, 4) {                   \
    SHARED(float, scratch, ROW_WARPS * Scratch<Q>::WARP);                    \
    update_rows<Q>(p, scratch);                                 \
  }                                                             \
  KERNEL(row_update_long_##Q, RowUpdate, 512, 1) {              \
    SHARED(float, scratch, Scratch<Q>::WARP);                                \
    update_long_rows<Q>(p, scratch);                            \
  }
ROW_KERNELS(1)
ROW_KERNELS(4)
ROW_KERNELS(8)
ROW_KERNELS(16)
ROW_KERNELS(32)

// The general sums: a thread a float of a unique row. It serves rows of any width, any parts and
// poolings of the largest value.
KERNEL(row_sums, RowUpdate, 256, 4) {
  const u64 floats = (u64)p.classes->unique * p.sum_stride;
  for (u64 i = thread_index(); i < floats; i += thread_count()) {
    const u32 u = (u32)(i / p.sum_stride), e = (u32)(i % p.sum_stride);
    u32 source = 0, at = 0;
    bool covered = false;
    for (u32 part = 0; part < p.part_count; part++) {
      const RowPart range = p.parts[part];
      if (e >= range.begin && e < range.end) {
        covered = true;
        source = part * p.gathers;
        at = e - range.begin;
      }
    }
    float sum = 0.0f;
    const u32 end = covered ? first_occurrence(p, u + 1) : 0;
    for (u32 k = covered ? first_occurrence(p, u) : 0; k < end; k++) {
      const u32 occurrence = occurrence_at(p, k), gather = occurrence & ((1u << p.gather_bits) - 1);
      sum = sum + gradient_of(p.sources + source + gather, occurrence >> p.gather_bits, at);
    }
    sum_row(p, u)[e] = sum;
  }
}

// All rules with their guards, from the sums of the rows: a warp a row.
KERNEL(row_rules, RowUpdate, 256, 2) {
  const u32 lane = threadIdx.x & 31, rows = p.classes->unique;
  const float scale = p.scale ? *p.scale : 1.0f;
  const u64 warps = thread_count() / 32;
  if (p.skip && *p.skip) return;
  for (u64 u = thread_index() / 32; u < rows; u += warps) {
    const float* const sums = sum_row(p, (u32)u);
    float* const row = slab_row(p, (u32)u);
    bool finite = true;
    for (u32 i = lane; i < p.width; i += 32) finite = finite && is_finite(sums[i]);
    if (__any_sync(ALL_LANES, !finite)) {
      if (lane == 0 && p.nonfinite) atomicAdd(p.nonfinite, 1u);
      continue;
    }
    for (u32 number = 0; number < p.rule_count; number++) {
      const RowRule& rule = p.rules[number];
      const float* const raw = sums + rule.begin;
      apply_rule(rule, lane, row + rule.begin, row + rule.state, rule.l2, scale, LAMBDA(u32 i)->float { return raw[i]; });
      __syncwarp(ALL_LANES);
    }
  }
}
