// The lookup of table rows for a batch. The reference is nn/src/ops/gather.rs.
//
// One launch serves all gathers of a table with the same number of rows. A job is one gather: it
// reads floats `offset..offset + dim` of the rows of its column's keys, and writes them where its
// consumer reads them, for example into some columns of a concatenation. The jobs are cut into
// units: four floats where all addresses of the job are multiples of 16 bytes, else one. A thread
// has one unit for all of its rows: threads in x are neighbouring units, threads in y are rows.
#include "half.cuh"

// Values of GatherJob::kind.
const u32 GATHER_COPY = 0;     // one value a row, times its factor if there are factors
const u32 GATHER_SUM = 1;      // the sum of the list's values, each times its factor
const u32 GATHER_MAX = 2;      // the largest value, each times its factor
const u32 GATHER_ARG_MAX = 3;  // the index in the list of the first largest value, or -1

struct GatherJob {
  const u32* inverse;    // the unique row of each value
  const u32* offsets;    // the first value of each row's list; null if each row has one value
  const float* factors;  // of each value; null if all are 1
  float* out;
  u32 out_stride;
  u32 offset, dim;       // in the floats of a table's row
  u32 kind;
};
static_assert(sizeof(GatherJob) == 48, "twin of GatherJob");

struct Gather {
  const float* table;
  const u32* slots;      // the table's row of each unique row; null if they are the same
  const GatherJob* jobs;
  const u32* units;      // job << 16 | first float << 1 | whether the unit has four floats
  Count rows;
  u32 unit_count;
  u32 table_stride;
};
static_assert(sizeof(Gather) == 56, "twin of Gather");

DEVICE u32 table_row(const Gather& p, u32 unique) { return p.slots ? read_only(p.slots + unique) : unique; }

// Neighbouring rows that a thread looks up at a time, so that their loads are under way together.
const int GATHER_ROWS = 4;

// Copies: all jobs have the kind GATHER_COPY.
KERNEL(gather, Gather, 256, 4) {
  const u32 number = blockIdx.y * blockDim.x + threadIdx.x;
  if (number >= p.unit_count) return;
  const u32 rows = count(p.rows), unit = read_only(p.units + number);
  const GatherJob job = p.jobs[unit >> 16];
  const u32 first = unit >> 1 & 0x7fff, step = gridDim.x * blockDim.y * GATHER_ROWS;
  const bool vector = (unit & 1) != 0;
  const float* const table = p.table + job.offset + first;
  float* const out = job.out + first;
  for (u32 begin = (blockIdx.x * blockDim.y + threadIdx.y) * GATHER_ROWS; begin < rows; begin += step) {
    u32 place[GATHER_ROWS];
    UNROLL for (int i = 0; i < GATHER_ROWS; i++) {
      const u32 row = begin + i;
      place[i] = row < rows ? read_only(job.inverse + row) : 0;
    }
    UNROLL for (int i = 0; i < GATHER_ROWS; i++)
      if (begin + i < rows) place[i] = table_row(p, place[i]);
    if (vector) {
      float4 value[GATHER_ROWS];
      UNROLL for (int i = 0; i < GATHER_ROWS; i++)
        value[i] = begin + i < rows ? read4(table + (u64)place[i] * p.table_stride) : zero4();
      UNROLL for (int i = 0; i < GATHER_ROWS; i++) {
        const u32 row = begin + i;
        if (row < rows) {
          float4 v = value[i];
          if (job.factors) {
            const float by = read_only(job.factors + row);
            v = make_float4(v.x * by, v.y * by, v.z * by, v.w * by);
          }
          store_streaming((float4*)(out + (u64)row * job.out_stride), v);
        }
      }
    } else {
      float value[GATHER_ROWS];
      UNROLL for (int i = 0; i < GATHER_ROWS; i++)
        value[i] = begin + i < rows ? read_only(table + (u64)place[i] * p.table_stride) : 0.0f;
      UNROLL for (int i = 0; i < GATHER_ROWS; i++) {
        const u32 row = begin + i;
        if (row < rows) store_streaming(out + (u64)row * job.out_stride, job.factors ? value[i] * read_only(job.factors + row) : value[i]);
      }
    }
  }
}

// The pooling of one float of a list.
DEVICE void pool_float(const Gather& p, const GatherJob& job, u32 begin, u32 end, u32 float_at, float* out) {
  const float* const table = p.table + job.offset + float_at;
  float best = -from_bits(0x7f800000u), winner = -1.0f, sum = 0.0f;
  for (u32 value = begin; value < end; value++) {
    const float x = read_only(table + (u64)table_row(p, read_only(job.inverse + value)) * p.table_stride);
    const float scaled = (job.factors ? read_only(job.factors + value) : 1.0f) * x;
    sum = sum + scaled;
    if (scaled > best) {
      best = scaled;
      winner = (float)(value - begin);
    }
  }
  if (job.kind == GATHER_MAX) sum = begin == end ? 0.0f : best;
  if (job.kind == GATHER_ARG_MAX) sum = winner;
  *out = sum;
}

// Lists and largest values: any kind of job.
KERNEL(gather_lists, Gather, 256, 4) {
  const u32 number = blockIdx.y * blockDim.x + threadIdx.x;
  if (number >= p.unit_count) return;
  const u32 rows = count(p.rows), unit = read_only(p.units + number);
  const GatherJob job = p.jobs[unit >> 16];
  const u32 first = unit >> 1 & 0x7fff, step = gridDim.x * blockDim.y;
  for (u32 row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += step) {
    const u32 begin = job.offsets ? read_only(job.offsets + row) : row;
    const u32 end = job.offsets ? read_only(job.offsets + row + 1) : row + 1;
    float* const out = job.out + (u64)row * job.out_stride + first;
    if (job.kind == GATHER_SUM && (unit & 1)) {
      float4 sum = zero4();
      for (u32 value = begin; value < end; value++) {
        const u32 from = table_row(p, read_only(job.inverse + value));
        const float4 x = read4(p.table + (u64)from * p.table_stride + job.offset + first);
        const float by = job.factors ? read_only(job.factors + value) : 1.0f;
        sum = add4(sum, make_float4(by * x.x, by * x.y, by * x.z, by * x.w));
      }
      *(float4*)out = sum;
    } else {
      const u32 floats = unit & 1 ? 4 : 1;
      for (u32 i = 0; i < floats; i++) pool_float(p, job, begin, end, first + i, out + i);
    }
  }
}

// Lookups in a table with weights of 16 bits: any kind of job. A row begins with its weights.
struct GatherHalves {
  Gather all;            // the distance of two rows is in floats
  u32 dtype;
  u32 unused;
};
static_assert(sizeof(GatherHalves) == 64, "twin of GatherHalves");

DEVICE const unsigned short* halves_of(const Gather& p, const GatherJob& job, u32 value) {
  const u32 row = table_row(p, read_only(job.inverse + value));
  return (const unsigned short*)(p.table + (u64)row * p.table_stride) + job.offset;
}
DEVICE float4 widen4(u32 dtype, u64 quad) {
  return make_float4(widen(dtype, (u32)quad & 0xffff), widen(dtype, (u32)(quad >> 16) & 0xffff),
                     widen(dtype, (u32)(quad >> 32) & 0xffff), widen(dtype, (u32)(quad >> 48)));
}

KERNEL(gather_halves, GatherHalves, 256, 4) {
  const Gather& all = p.all;
  const u32 number = blockIdx.y * blockDim.x + threadIdx.x;
  if (number >= all.unit_count) return;
  const u32 rows = count(all.rows), unit = read_only(all.units + number);
  const GatherJob job = all.jobs[unit >> 16];
  const u32 first = unit >> 1 & 0x7fff, step = gridDim.x * blockDim.y;
  for (u32 row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += step) {
    const bool copies = job.kind == GATHER_COPY;
    const u32 begin = job.offsets && !copies ? read_only(job.offsets + row) : row;
    const u32 end = job.offsets && !copies ? read_only(job.offsets + row + 1) : row + 1;
    float* const out = job.out + (u64)row * job.out_stride + first;
    if (job.kind <= GATHER_SUM && (unit & 1)) {
      float4 sum = zero4();
      for (u32 value = begin; value < end; value++) {
        const float4 x = widen4(p.dtype, read_only((const u64*)(halves_of(all, job, value) + first)));
        const float by = job.factors ? read_only(job.factors + value) : 1.0f;
        const float4 scaled = make_float4(by * x.x, by * x.y, by * x.z, by * x.w);
        sum = copies ? scaled : add4(sum, scaled);
      }
      *(float4*)out = sum;
      continue;
    }
    const u32 floats = unit & 1 ? 4 : 1;
    for (u32 i = 0; i < floats; i++) {
      float best = -from_bits(0x7f800000u), winner = -1.0f, sum = 0.0f;
      for (u32 value = begin; value < end; value++) {
        const float x = widen(p.dtype, read_only(halves_of(all, job, value) + first + i));
        const float scaled = (job.factors ? read_only(job.factors + value) : 1.0f) * x;
        sum = copies ? scaled : sum + scaled;
        if (scaled > best) {
          best = scaled;
          winner = (float)(value - begin);
        }
      }
      if (job.kind == GATHER_MAX) sum = begin == end ? 0.0f : best;
      if (job.kind == GATHER_ARG_MAX) sum = winner;
      out[i] = sum;
    }
  }
}

// The input of a factorisation machine with layers in one launch: the vectors of the fields and the
// numbers side by side, the interaction of the vectors, the sum of the linear weights, and the linear
// part of the numbers. The bits are those of `assemble`, `gather`, `fm_interaction`, `sum_columns` and
// `row_dot`, one after the other. A linear weight lies behind its vector.
struct FieldLookup {
  const float* table;
  const u32* slots;      // the table's row of each unique row
  const u32* inverse;    // column after column, `value_stride` apart
  const float* numbers;  // column after column, `value_stride` apart
  const float* weights;  // of the numbers
  float* out;            // columns behind the numbers become zero
  unsigned short* narrow;  // the same as bf16, with the same stride; or null
  float* interaction;
  float* linear;
  float* of_numbers;
  Count rows;
  u32 fields, dim, number_count;
  u32 table_stride, out_stride, value_stride;
};
static_assert(sizeof(FieldLookup) == 120, "twin of FieldLookup");

// Half a warp a row. A lane finds the places of every sixteenth field, which the others then read
// from it, and has every sixteenth float of the vectors.
KERNEL(field_lookup, FieldLookup, 256, 4) {
  constexpr u32 DEEP = 8;
  const u32 rows = count(p.rows), lane = threadIdx.x & 15, mask = half_warp_mask();
  const u32 vectors = p.fields * p.dim, used = vectors + p.number_count;
  const u64 halves = thread_count() / 16;
  for (u64 row = thread_index() / 16; row < rows; row += halves) {
    float* const out = p.out + row * p.out_stride;
    unsigned short* const narrow = p.narrow ? p.narrow + row * p.out_stride : nullptr;
    const auto write = LAMBDA(u32 col, float x) {
      out[col] = x;
      if (narrow) narrow[col] = (unsigned short)bf16_of(x);
    };
    float total = 0.0f, linear = 0.0f;
    for (u32 first = 0; first < p.dim; first += SUMS) {
      const u32 k = first + lane;
      float sum = 0.0f, squares = 0.0f;
      for (u32 field = 0; field < p.fields; field += SUMS) {
        u32 mine = 0;
        if (field + lane < p.fields) {
          mine = read_only(p.slots + read_only(p.inverse + (u64)(field + lane) * p.value_stride + row));
          if (first == 0) linear = linear + read_only(p.table + (u64)mine * p.table_stride + p.dim);
        }
        const u32 some = lesser(p.fields - field, SUMS);
        for (u32 begin = 0; begin < some; begin += DEEP) {
          float v[DEEP];
          UNROLL for (u32 i = 0; i < DEEP; i++) {
            const u32 slot = __shfl_sync(mask, mine, (threadIdx.x & 16) + ((begin + i) & 15));
            v[i] = begin + i < some && k < p.dim ? read_only(p.table + (u64)slot * p.table_stride + k) : 0.0f;
          }
          UNROLL for (u32 i = 0; i < DEEP; i++)
            if (begin + i < some && k < p.dim) {
              sum = sum + v[i];
              squares = squares + v[i] * v[i];
              write((field + begin + i) * p.dim + k, v[i]);
            }
        }
      }
      if (k < p.dim) total = total + (sum * sum - squares);
    }
    float of_numbers = 0.0f;
    for (u32 i = lane; i < p.number_count; i += SUMS) {
      const float x = p.numbers[(u64)i * p.value_stride + row];
      of_numbers = of_numbers + x * p.weights[i];
      write(vectors + i, x);
    }
    for (u32 i = used + lane; i < p.out_stride; i += SUMS) write(i, 0.0f);
    total = sum_of_half_warp(mask, total);
    linear = sum_of_half_warp(mask, linear);
    of_numbers = sum_of_half_warp(mask, of_numbers);
    if (lane == 0) {
      p.interaction[row] = 0.5f * total;
      p.linear[row] = linear;
      p.of_numbers[row] = of_numbers;
    }
  }
}

// The factors of a column's values (nn/src/ops/list_column.rs): the weight of each value, divided
// for a mean by the sum of its list's weights, and for `sqrtn` by the root of the sum of their
// squares. A divisor of zero makes all factors of its list zero.
const u32 FACTOR_PLAIN = 0;
const u32 FACTOR_MEAN = 1;
const u32 FACTOR_SQRTN = 2;

struct Factors {
  const u32* offsets;    // null if each row has one value
  const float* weights;  // null if all weights are 1
  float* out;
  u32* row_of;           // the row of each value, or null
  Count rows;
  u32 kind;
  u32 unused;
};
static_assert(sizeof(Factors) == 56, "twin of Factors");

KERNEL(list_factors, Factors, 256, 4) {
  const u32 rows = count(p.rows);
  for (u64 row = thread_index(); row < rows; row += thread_count()) {
    const u32 begin = p.offsets ? p.offsets[row] : (u32)row, end = p.offsets ? p.offsets[row + 1] : (u32)row + 1;
    if (p.out) {
      // The processor sums an iterator of floats, which begins at -0.
      float sum = -0.0f;
      for (u32 value = begin; p.weights && value < end; value++) {
        const float w = p.weights[value];
        sum = sum + (p.kind == FACTOR_SQRTN ? w * w : w);
      }
      if (!p.weights) sum = (float)(end - begin);
      const float divisor = p.kind == FACTOR_PLAIN ? 1.0f : p.kind == FACTOR_MEAN ? sum : root(sum);
      const float by = divisor == 0.0f ? 0.0f : 1.0f / divisor;
      for (u32 value = begin; value < end; value++) p.out[value] = p.weights ? p.weights[value] * by : by;
    }
    if (p.row_of)
      for (u32 value = begin; value < end; value++) p.row_of[value] = (u32)row;
  }
}
