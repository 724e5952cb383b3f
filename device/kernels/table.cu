// Rows of resident tables in all their forms: weights of 16 bits (rows/src/dtype.rs), narrow rows
// (embedding/src/narrow), and rows that change without a gradient (embedding/src/table/sweep.rs).
//
// A row has its weights first, in the type of the table, and its optimizer state behind them, in
// single precision. Where rows grow, a slot with its top bit set belongs to the narrow rows. They are
// the rows of a smaller table: the same kernels with another slab and other rules.
#include "half.cuh"
#include "rules.cuh"

const u32 NARROW_ROW = 0x80000000u;
const u32 NO_GRADIENT = 0xffffffffu;

// The slab of full or of narrow rows, and what is applied to them.
struct StoredRows {
  float* slab;
  const RowRule* rules;
  u32 stride;            // in floats
  u32 width;             // the number of weights of a row
  u32 rule_count;
  u32 unused;
};

struct TableRules {
  StoredRows rows[2];          // full rows, then narrow ones
  const u32* slots;            // the slab's row of each row of the launch; null if they are the same
  const float* sums;           // the gradients of the unique rows
  const u32* unique_of;        // of a sweep: the unique row of each row, or NO_GRADIENT; null without a sweep
  const u64* keys;             // of the rows of the launch; read for 16 bits alone
  const u64* rounding;         // the seed of the step's random bits; read for 16 bits alone
  const float* scale;          // the factor of a clipped step; null for 1
  const u32* skip;             // nonzero where the step changes no row; or null
  u32* nonfinite;              // counts rows whose gradient is not finite; or null
  u32* saturated;              // counts weights beyond the largest number of the type; or null
  Count count;                 // of the rows of the launch
  u32 width;                   // the floats of a gradient
  u32 sum_stride;
  u32 dtype;
  u32 scratch;                 // the floats of shared memory of a warp, for weights of 16 bits
};
static_assert(sizeof(StoredRows) == 32 && sizeof(TableRules) == 168, "twins of StoredRows and TableRules");

// A warp a row. Weights of 16 bits are widened into shared memory, changed there and rounded once, so
// a row whose values do not change keeps its bits.
KERNEL(table_rules, TableRules, 256, 2) {
  DYNAMIC_SHARED(float, widened);
  const u32 lane = threadIdx.x & 31, rows = count(p.count);
  const float scale = p.scale ? *p.scale : 1.0f;
  const u64 warps = thread_count() / 32;
  if (p.skip && *p.skip) return;
  for (u64 u = thread_index() / 32; u < rows; u += warps) {
    const u32 slot = p.slots ? read_only(p.slots + u) : (u32)u, from = p.unique_of ? p.unique_of[u] : (u32)u;
    if (slot == NO_ROW) continue;
    const StoredRows& stored = p.rows[slot / NARROW_ROW];
    float* const row = stored.slab + (u64)(slot & ~NARROW_ROW) * stored.stride;
    const float* const sums = p.sums + (u64)from * p.sum_stride;
    bool touched = from != NO_GRADIENT, finite = true;
    for (u32 i = lane; touched && i < p.width; i += 32) finite = finite && is_finite(sums[i]);
    if (__any_sync(ALL_LANES, !finite)) {
      if (lane == 0 && p.nonfinite) atomicAdd(p.nonfinite, 1u);
      if (!p.unique_of) continue;
      // A sweep changes the row as one without a gradient.
      touched = false;
    }
    unsigned short* const halves = (unsigned short*)row;
    float* weights = row;
    if (p.dtype != STORED_F32) {
      weights = widened + threadIdx.x / 32 * p.scratch;
      for (u32 i = lane; i < stored.width; i += 32) weights[i] = widen(p.dtype, halves[i]);
      __syncwarp(ALL_LANES);
    }
    for (u32 number = 0; number < stored.rule_count; number++) {
      const RowRule& rule = stored.rules[number];
      if (!touched && !(rule.flags & RULE_SWEPT)) continue;
      const float l2 = touched || (rule.flags & RULE_L2_WHOLE) ? rule.l2 : 0.0f;
      const float* const raw = touched ? sums + rule.begin + rule.shift : nullptr;
      // A sweep adds the gradient to a zero first, which makes a zero without a sign of it.
      const bool staged = p.unique_of;
      apply_rule(rule, lane, weights + rule.begin, row + rule.state, l2, scale,
                 LAMBDA(u32 i)->float { return !raw ? 0.0f : staged ? 0.0f + raw[i] : raw[i]; });
      __syncwarp(ALL_LANES);
    }
    if (p.dtype != STORED_F32) {
      const u64 seed = combine(*p.rounding, read_only(p.keys + u));
      u32 beyond = 0;
      for (u32 i = lane; i < stored.width; i += 32) {
        halves[i] = (unsigned short)stochastic_half(p.dtype, weights[i], random_of_unit(seed, i));
        beyond += magnitude(weights[i]) > largest_stored(p.dtype);
      }
      if (beyond && p.saturated) atomicAdd(p.saturated, beyond);
      __syncwarp(ALL_LANES);
    }
  }
}

// The place of the gradient of each row of a swept table: unique_of[slots[u]] = u. The other places
// have been filled with NO_GRADIENT. A key without a row has no place.
struct MarkRows {
  const u32* slots;
  u32* unique_of;
  Count count;
};
static_assert(sizeof(MarkRows) == 32, "twin of MarkRows");

KERNEL(mark_rows, MarkRows, 256, 4) {
  const u32 rows = count(p.count);
  for (u64 u = thread_index(); u < rows; u += thread_count()) {
    const u32 slot = read_only(p.slots + u);
    if (slot != NO_ROW) p.unique_of[slot] = (u32)u;
  }
}

// How a segment of a full row begins (rows/src/initializer.rs).
const u32 INITIAL_CONSTANT = 0;   // a
const u32 INITIAL_UNIFORM = 1;    // from a to b
const u32 INITIAL_NORMAL = 2;     // the mean a, the deviation b
const u32 INITIAL_TRUNCATED = 3;  // the same, cut at two deviations

struct InitialSegment {
  u64 seed;              // of the segment
  u32 kind;
  u32 begin, end;        // its weights
  float a, b;
  float low, high;       // its bounds
  u32 state, state_end;  // its state, counted in floats from the start of the row
  float state_value;
};
static_assert(sizeof(InitialSegment) == 48, "twin of InitialSegment");

DEVICE float unit_of_bits(u32 bits) { return (float)(bits >> 8) * (1.0f / 16777216.0f); }

DEVICE float initial_weight(const InitialSegment& s, u64 key, u32 unit) {
  float x = s.a;
  if (s.kind != INITIAL_CONSTANT) {
    const u64 bits = mix64(combine(s.seed, key) + unit * 0x9e3779b97f4a7c15ull);
    if (s.kind == INITIAL_UNIFORM) {
      const float width = s.b - s.a;
      x = s.a + width * unit_of_bits((u32)bits);
      x = x < s.b || width == 0.0f ? x : s.a;
    } else if (s.kind == INITIAL_NORMAL) {
      const float radius = 1.0f - unit_of_bits((u32)(bits >> 32));
      float sine, cosine;
      sin_cos_of_turns(unit_of_bits((u32)bits), sine, cosine);
      const float square = -2.0f * ln_of(radius);
      x = s.a + s.b * (root(square > 0.0f ? square : 0.0f) * cosine);
    } else {
      const float centred = 2.0f * unit_of_bits((u32)(bits >> 32)) - (1.0f - 1.0f / 16777216.0f);
      x = s.a + s.b * (1.41421356237309504880f * erf_inv_of(centred * 0.9544997f));
    }
  }
  return held(x, s.low, s.high);
}

// Returns the float of a key's initial row, rounded to the type of the table.
DEVICE float initial_float(const InitialSegment* segments, u32 count, u32 dtype, u64 key, u32 e) {
  for (u32 number = 0; number < count; number++) {
    const InitialSegment& segment = segments[number];
    if (e >= segment.begin && e < segment.end) {
      const float x = initial_weight(segment, key, e - segment.begin);
      return dtype == STORED_F32 ? x : widen(dtype, nearest_half(dtype, x));
    }
  }
  return 0.0f;
}

// New rows: their initial weights and their initial state. What lies behind both is not written.
struct InitialRows {
  float* slab;
  const u32* slots;
  const u64* keys;
  const InitialSegment* segments;
  Count count;
  u32 stride;
  u32 width;             // the number of weights of a row
  u32 segment_count;
  u32 dtype;
};
static_assert(sizeof(InitialRows) == 64, "twin of InitialRows");

// A warp a row.
KERNEL(initial_rows, InitialRows, 256, 4) {
  const u32 lane = threadIdx.x & 31, rows = count(p.count);
  for (u64 u = thread_index() / 32; u < rows; u += thread_count() / 32) {
    float* const row = p.slab + (u64)read_only(p.slots + u) * p.stride;
    const u64 key = read_only(p.keys + u);
    for (u32 i = lane; i < p.width; i += 32) {
      const float x = initial_float(p.segments, p.segment_count, p.dtype, key, i);
      if (p.dtype == STORED_F32) row[i] = x;
      else ((unsigned short*)row)[i] = (unsigned short)nearest_half(p.dtype, x);
    }
    for (u32 number = 0; number < p.segment_count; number++) {
      const InitialSegment& segment = p.segments[number];
      for (u32 i = segment.state + lane; i < segment.state_end; i += 32) row[i] = segment.state_value;
    }
  }
}

// Floats `to .. to + n` of a full row are the floats from `from` on of a narrow row.
struct NarrowPart {
  u32 from, to, n;
  u32 unused;
};

// The rows of a batch in single precision: what a lookup of the processor returns. Floats that a
// narrow row does not have are those of the key's initial row, and so is all of a key without a row;
// what is behind the weights is zero.
struct PullRows {
  StoredRows rows[2];    // full rows, then narrow ones; rules are not read
  const u32* slots;      // null if they are the same
  const u64* keys;       // read for narrow rows and for keys without a row
  const InitialSegment* segments;
  const NarrowPart* parts;
  float* out;
  Count count;
  u32 out_stride;
  u32 segment_count, part_count;
  u32 dtype;
};
static_assert(sizeof(NarrowPart) == 16 && sizeof(PullRows) == 136, "twins of NarrowPart and PullRows");

KERNEL(pull_rows, PullRows, 256, 4) {
  const u32 rows = count(p.count), stride = p.out_stride;
  const u64 all = (u64)rows * stride;
  for (u64 i = thread_index(); i < all; i += thread_count()) {
    const u32 u = (u32)(i / stride), e = (u32)(i % stride);
    const u32 slot = p.slots ? read_only(p.slots + u) : u;
    const StoredRows& stored = p.rows[slot / NARROW_ROW];
    u32 at = e;
    bool inside = e < p.rows[0].width, is_stored = inside;
    if (inside && slot / NARROW_ROW) {
      is_stored = false;
      const u32 parts = slot == NO_ROW ? 0 : p.part_count;
      for (u32 number = 0; number < parts; number++) {
        const NarrowPart part = p.parts[number];
        if (e >= part.to && e - part.to < part.n) {
          is_stored = true;
          at = part.from + (e - part.to);
        }
      }
    }
    float x = 0.0f;
    if (is_stored) {
      const float* const row = stored.slab + (u64)(slot & ~NARROW_ROW) * stored.stride;
      x = p.dtype == STORED_F32 ? row[at] : widen(p.dtype, ((const unsigned short*)row)[at]);
    } else if (inside) {
      x = initial_float(p.segments, p.segment_count, p.dtype, read_only(p.keys + u), e);
    }
    p.out[i] = x;
  }
}

// Narrow rows that become full: their weights and their state are copied to where a full row has them.
// `initial_rows` has written the rest of the full row before.
struct GrowRows {
  StoredRows rows[2];        // full rows, then narrow ones; rules are not read
  const u32* from;           // the narrow rows, without their top bit
  const u32* to;             // the full rows
  const NarrowPart* weights;
  const NarrowPart* states;  // counted in floats from the start of the row
  Count count;
  u32 weight_parts, state_parts;
  u32 dtype;
  u32 unused;
};
static_assert(sizeof(GrowRows) == 128, "twin of GrowRows");

// A warp a row.
KERNEL(grow_rows, GrowRows, 256, 4) {
  const u32 lane = threadIdx.x & 31, rows = count(p.count);
  for (u64 u = thread_index() / 32; u < rows; u += thread_count() / 32) {
    const float* const from = p.rows[1].slab + (u64)read_only(p.from + u) * p.rows[1].stride;
    float* const to = p.rows[0].slab + (u64)read_only(p.to + u) * p.rows[0].stride;
    for (u32 number = 0; number < p.weight_parts; number++) {
      const NarrowPart part = p.weights[number];
      for (u32 i = lane; i < part.n; i += 32) {
        if (p.dtype == STORED_F32) to[part.to + i] = from[part.from + i];
        else ((unsigned short*)to)[part.to + i] = ((const unsigned short*)from)[part.from + i];
      }
    }
    for (u32 number = 0; number < p.state_parts; number++) {
      const NarrowPart part = p.states[number];
      for (u32 i = lane; i < part.n; i += 32) to[part.to + i] = from[part.from + i];
    }
  }
}
