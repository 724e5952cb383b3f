// Functions of elements, one after the other, without memory between them. The references are
// nn/src/ops/elementwise.rs, functions.rs and fused.rs.
//
// A chain begins with an element of `start` and applies up to eight links to it. The links are data
// and not code, so that any graph runs with this one kernel; all threads take the same branch. A
// separate operation is a chain of one link, and a broadcast is a chain of none. `out` may be the
// same memory as `start` or as an operand of the same shape: an element is read before it is
// written, and by the thread that writes it.
#include "half.cuh"

// Values of Link::kind. `o` is the running value, `x` and `y` are operands.
const u32 LINK_UNARY = 0;        // f(o)
const u32 LINK_UNARY_GRAD = 1;   // f'(o, x): `o` is the gradient, `x` the point
const u32 LINK_POINT_OF = 2;     // f'(x, o): `x` is the gradient, `o` the point
const u32 LINK_BINARY = 3;       // f(o, x)
const u32 LINK_BINARY_OF = 4;    // f(x, o)
const u32 LINK_MUL_ADD = 5;      // o * x + y
const u32 LINK_ADD_PRODUCT = 6;  // x * y + o
const u32 LINK_OVER_ROWS = 7;    // o / n, as (1 / n) * o, with the number of rows n

// Values of Link::function for unary functions and their gradients, and for binary functions.
const u32 RELU = 0, LEAKY_RELU = 1, SIGMOID = 2, TANH = 3, GELU = 4, SILU = 5, SOFTPLUS = 6, SQUARE = 7, SQRT = 8, EXP = 9,
          LN = 10, SCALE = 11, OFFSET = 12;
const u32 ADD = 0, SUB = 1, MUL = 2, DIV = 3, SAFE_DIV = 4;

struct Link {
  u32 kind, function;
  float by;              // the slope, the factor or the summand of a function
  u32 unused;
  Rows x, y;
};
struct Chain {
  Rows start;
  RowsMut out;
  Count rows;
  Count divisor;         // the number of rows of LINK_OVER_ROWS
  u32 links;
  u32 unused;
  Link link[8];
};
static_assert(sizeof(Link) == 48 && sizeof(Chain) == 456, "twin of Chain");

#define GELU_SCALE 0.7978846f
#define GELU_CUBE 0.044715f

// Reads the elements of four columns. An operand of one column is the same for all columns.
DEVICE float4 read_operand(const Rows& from, u32 row, u32 col, u32 floats, u32 cols) {
  const float* const at = from.data + (u64)row * from.stride;
  if (from.cols == 1 && cols > 1) {
    const float v = at[0];
    return make_float4(v, v, v, v);
  }
  if (floats == 4 && (((u64)from.data | (u64)from.stride * 4) & 15) == 0) return *(const float4*)(at + col);
  float4 v = zero4();
  v.x = at[col];
  if (floats > 1) v.y = at[col + 1];
  if (floats > 2) v.z = at[col + 2];
  if (floats > 3) v.w = at[col + 3];
  return v;
}

template <class F> DEVICE float4 each1(float4 o, F f) { return make_float4(f(o.x), f(o.y), f(o.z), f(o.w)); }
template <class F> DEVICE float4 each2(float4 a, float4 b, F f) {
  return make_float4(f(a.x, b.x), f(a.y, b.y), f(a.z, b.z), f(a.w, b.w));
}

DEVICE float4 apply_unary(u32 function, float by, float4 o) {
  switch (function) {
    case RELU: return each1(o, LAMBDA(float x) { return x < 0.0f ? 0.0f : x; });
    case LEAKY_RELU: return each1(o, LAMBDA(float x) { return x > 0.0f ? x : by * x; });
    case SIGMOID: return each1(o, LAMBDA(float x) { return sigmoid_of(x); });
    case TANH: return each1(o, LAMBDA(float x) { return tanh_of(x); });
    case GELU:
      return each1(o, LAMBDA(float x) {
        const float inner = GELU_SCALE * (x + GELU_CUBE * x * x * x);
        return 0.5f * x * (1.0f + tanh_of(inner));
      });
    case SILU: return each1(o, LAMBDA(float x) { return x * sigmoid_of(x); });
    case SOFTPLUS: return each1(o, LAMBDA(float x) { return log1p_exp_of(x); });
    case SQUARE: return each1(o, LAMBDA(float x) { return x * x; });
    case SQRT: return each1(o, LAMBDA(float x) { return root(x); });
    case EXP: return each1(o, LAMBDA(float x) { return exp_of(x); });
    case LN: return each1(o, LAMBDA(float x) { return ln_of(x); });
    case SCALE: return each1(o, LAMBDA(float x) { return by * x; });
    default: return each1(o, LAMBDA(float x) { return x + by; });
  }
}

// The gradient of a unary function for the gradient `a` of its result. The point `b` is its result
// for relu, sigmoid, tanh, sqrt, exp and scale, and else its argument.
DEVICE float4 apply_unary_grad(u32 function, float by, float4 a, float4 b) {
  switch (function) {
    case RELU: return each2(a, b, LAMBDA(float g, float y) { return y > 0.0f ? g : 0.0f; });
    case LEAKY_RELU: return each2(a, b, LAMBDA(float g, float x) { return x > 0.0f ? g : by * g; });
    case SIGMOID: return each2(a, b, LAMBDA(float g, float y) { return g * y * (1.0f - y); });
    case TANH: return each2(a, b, LAMBDA(float g, float y) { return g * (1.0f - y * y); });
    case GELU:
      return each2(a, b, LAMBDA(float g, float x) {
        const float inner = GELU_SCALE * (x + GELU_CUBE * x * x * x);
        const float t = tanh_of(inner);
        const float slope = GELU_SCALE * (1.0f + 3.0f * GELU_CUBE * x * x);
        return g * (0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * slope);
      });
    case SILU:
      return each2(a, b, LAMBDA(float g, float x) {
        const float s = sigmoid_of(x);
        return g * s * (1.0f + x * (1.0f - s));
      });
    case SOFTPLUS: return each2(a, b, LAMBDA(float g, float x) { return g * sigmoid_of(x); });
    case SQUARE: return each2(a, b, LAMBDA(float g, float x) { return 2.0f * g * x; });
    case SQRT: return each2(a, b, LAMBDA(float g, float y) { return 0.5f * g / y; });
    case EXP: return each2(a, b, LAMBDA(float g, float y) { return g * y; });
    case LN: return each2(a, b, LAMBDA(float g, float x) { return g / x; });
    case SCALE: return each2(a, b, LAMBDA(float g, float) { return by * g; });
    default: return a;
  }
}

DEVICE float4 apply_binary(u32 function, float4 a, float4 b) {
  switch (function) {
    case ADD: return each2(a, b, LAMBDA(float a, float b) { return a + b; });
    case SUB: return each2(a, b, LAMBDA(float a, float b) { return a - b; });
    case MUL: return each2(a, b, LAMBDA(float a, float b) { return a * b; });
    case DIV: return each2(a, b, LAMBDA(float a, float b) { return a / b; });
    default: return each2(a, b, LAMBDA(float a, float b) { return b == 0.0f ? 0.0f : a / b; });
  }
}

KERNEL(chain, Chain, 256, 4) {
  const u32 rows = count(p.rows), cols = p.out.cols, quads = quotient_up(cols, 4);
  const u64 all = (u64)rows * quads;
  const float by_rows = 1.0f / (float)count(p.divisor);
  for (u64 i = thread_index(); i < all; i += thread_count()) {
    const u32 row = all >> 32 ? (u32)(i / quads) : (u32)i / quads, col = (u32)(i - (u64)row * quads) * 4;
    const u32 floats = lesser(cols - col, 4u);
    float4 o = read_operand(p.start, row, col, floats, cols);
    NO_UNROLL for (u32 number = 0; number < p.links; number++) {
      const Link& link = p.link[number];
      const u32 kind = link.kind;
      float4 x = zero4();
      if (kind != LINK_UNARY && kind != LINK_OVER_ROWS) x = read_operand(link.x, row, col, floats, cols);
      if (kind == LINK_UNARY) {
        o = apply_unary(link.function, link.by, o);
      } else if (kind <= LINK_POINT_OF) {
        const bool of = kind == LINK_POINT_OF;
        o = apply_unary_grad(link.function, link.by, of ? x : o, of ? o : x);
      } else if (kind <= LINK_BINARY_OF) {
        const bool of = kind == LINK_BINARY_OF;
        o = apply_binary(link.function, of ? x : o, of ? o : x);
      } else if (kind == LINK_OVER_ROWS) {
        o = each1(o, LAMBDA(float v) { return by_rows * v; });
      } else {
        const float4 y = read_operand(link.y, row, col, floats, cols);
        const bool mul_add = kind == LINK_MUL_ADD;
        const float4 product = each2(mul_add ? o : x, mul_add ? x : y, LAMBDA(float a, float b) { return a * b; });
        o = add4(product, mul_add ? y : o);
      }
    }
    float* const to = p.out.data + (u64)row * p.out.stride + col;
    if (floats == 4 && (((u64)p.out.data | (u64)p.out.stride * 4) & 15) == 0) {
      *(float4*)to = o;
    } else {
      to[0] = o.x;
      if (floats > 1) to[1] = o.y;
      if (floats > 2) to[2] = o.z;
      if (floats > 3) to[3] = o.w;
    }
  }
}

// Inverted dropout (nn/src/ops/dropout.rs), forward and backward: the mask depends on the seed of
// the job, the step, the layer, the row and the unit alone.
struct Dropout {
  Rows x;
  RowsMut out;
  Count rows;
  const u64* seed;       // the seed and the step
  u32 salt;
  u32 threshold;         // the share of units that are dropped, of 2^32
  float factor;
  u32 unused;
};
static_assert(sizeof(Dropout) == 72, "twin of Dropout");

KERNEL(dropout, Dropout, 256, 4) {
  const u32 rows = count(p.rows), cols = p.out.cols;
  const u64 all = (u64)rows * cols;
  const u64 layer = combine(combine(p.seed[0], p.seed[1]), p.salt);
  for (u64 i = thread_index(); i < all; i += thread_count()) {
    const u32 row = (u32)(i / cols), unit = (u32)(i % cols);
    const u32 stream = (u32)(combine(layer, row) >> 32);
    const bool kept = mix32(stream ^ (unit * 0x9e3779b9u)) >= p.threshold;
    p.out.data[(u64)row * p.out.stride + unit] = kept ? p.x.data[(u64)row * p.x.stride + unit] * p.factor : 0.0f;
  }
}

// Copies rows of floats into some columns of wider rows, and zeros into the other ones: the parts of
// a concatenation, a slice, a padding.
struct CopyColumns {
  Rows x;
  RowsMut out;           // `cols` is the width of the result
  Count rows;
  u32 start;             // the first column of the copy
  u32 fill;              // whether the other columns become zero
};
static_assert(sizeof(CopyColumns) == 56, "twin of CopyColumns");

KERNEL(copy_columns, CopyColumns, 256, 4) {
  const u32 rows = count(p.rows), cols = p.fill ? p.out.cols : p.x.cols, first = p.fill ? 0 : p.start;
  const u64 all = (u64)rows * cols;
  for (u64 i = thread_index(); i < all; i += thread_count()) {
    const u32 row = (u32)(i / cols), col = (u32)(i % cols) + first;
    const bool inside = col >= p.start && col - p.start < p.x.cols;
    p.out.data[(u64)row * p.out.stride + col] = inside ? p.x.data[(u64)row * p.x.stride + (col - p.start)] : 0.0f;
  }
}

// Rounds floats to bf16, to the nearest and of two equally near ones to the even one. NaN becomes one
// NaN.
struct Narrow {
  const float* x;
  unsigned short* out;
  u64 n;
};
static_assert(sizeof(Narrow) == 24, "twin of Narrow");

// Both addresses are multiples of sixteen.
KERNEL(narrow, Narrow, 256, 4) {
  const u64 quads = p.n / 4;
  for (u64 i = thread_index(); i < quads; i += thread_count()) {
    const float4 v = ((const float4*)p.x)[i];
    ((u64*)p.out)[i] = bf16_of_quad(v);
  }
  for (u64 i = quads * 4 + thread_index(); i < p.n; i += thread_count()) p.out[i] = (unsigned short)bf16_of(p.x[i]);
}

// Copies the rows of a batch for a product of the library, which reads whole rows of `stride`
// elements and `total` rows. What the batch does not have is zero.
struct PaddedRows {
  Rows x;
  void* out;
  Count rows;
  u32 total;    // the rows of the copy
  u32 stride;   // of the copy, in elements: a multiple of 4
  u32 narrow;   // 1 for a copy of type bf16
  u32 unused;
};
static_assert(sizeof(PaddedRows) == 56, "twin of PaddedRows");

KERNEL(padded_rows, PaddedRows, 256, 4) {
  const u32 rows = count(p.rows), quads = p.stride / 4;
  const bool aligned = ((u64)p.x.data & 15) == 0 && (p.x.stride & 3) == 0;
  const u64 all = (u64)p.total * quads;
  for (u64 i = thread_index(); i < all; i += thread_count()) {
    const u32 row = (u32)(i / quads), col = (u32)(i % quads) * 4;
    const u32 live = row < rows && col < p.x.cols ? lesser(p.x.cols - col, 4u) : 0;
    const float* from = p.x.data + (u64)row * p.x.stride + col;
    float4 v = zero4();
    if (live == 4 && aligned) {
      v = *(const float4*)from;
    } else {
      if (live > 0) v.x = from[0];
      if (live > 1) v.y = from[1];
      if (live > 2) v.z = from[2];
      if (live > 3) v.w = from[3];
    }
    if (p.narrow) ((u64*)p.out)[i] = bf16_of_quad(v);
    else ((float4*)p.out)[i] = v;
  }
}

// Writes zeros where a product of the library reads rows in place: to the columns from `x.cols` to
// `width` of each row, and to all of them in the rows that the batch does not have.
struct ClearPadding {
  RowsMut x;
  Count rows;
  u32 total;    // the rows that the product reads
  u32 width;
};
static_assert(sizeof(ClearPadding) == 40, "twin of ClearPadding");

KERNEL(clear_padding, ClearPadding, 256, 4) {
  const u32 rows = lesser(count(p.rows), p.total), gap = p.width - p.x.cols;
  const u64 gaps = (u64)rows * gap, all = gaps + (u64)(p.total - rows) * p.width;
  for (u64 i = thread_index(); i < all; i += thread_count()) {
    const bool in_gap = i < gaps;
    const u64 at = in_gap ? i : i - gaps;
    const u32 width = in_gap ? gap : p.width;
    const u64 row = at / width + (in_gap ? 0 : rows);
    const u32 col = (u32)(at % width) + (in_gap ? p.x.cols : 0);
    p.x.data[row * p.x.stride + col] = 0.0f;
  }
}
