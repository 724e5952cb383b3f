// The exact products of dense layers, with the bits of device/src/matmul/product.rs.
//
// `product_64x80` and `product_128x80` are `matmul::linear`: the inner dimension is cut into blocks
// of 512, the sum of a block is one chain of fused multiplications and additions in ascending order
// from zero, the sums of the blocks are added in order (to the old value if the product
// accumulates), then comes the bias, then relu. The inner dimension is cut where it ends and never
// padded: another fused step with zeros would turn a sum of -0 into +0.
//
// `outer_80x80` is `matmul::outer_product` over the tiles of each lane: the chains are as long as a
// tile (or 256 rows of it), and the sums of a lane's tiles are added in order. Lanes are added by
// `combine_lanes` (reduce.cu). The product with a transposed weight is a `transpose` and then
// `product_*`.
//
// A block computes a tile of BM x BN elements, each thread M x N of them. Slices of 16 steps of the
// inner dimension are copied to shared memory two slices ahead.
#include "math.cuh"

const u32 CHAIN = 512;
const u32 DEPTH = 16;
const u32 STAGES = 3;

struct Product {
  const float* a;
  const float* b;
  float* c;
  const float* bias;   // or null
  Count rows;          // of a and c
  u32 n, k;
  u32 lda, ldb, ldc;
  u32 relu, accumulate;
  u32 unused;
};
static_assert(sizeof(Product) == 80, "twin of Product");

// The sum over the rows of a batch of a's row (m wide, transposed) times b's row (n wide). Block `i`
// of rows begins at `tiles[i]` and ends at `tiles[i + 1]`; it has at most 256 rows. Lane `z` has the
// blocks from `lanes[z]` to `lanes[z + 1]`, and its sum begins at `c + z * m * n`. A lane without
// rows is not written.
struct Outer {
  const float* a;
  const float* b;
  float* c;
  const u32* tiles;
  const u32* lanes;
  u32 m, n;
  u32 lda, ldb;
  u32 lane_count;
  u32 unused;
};
static_assert(sizeof(Outer) == 64, "twin of Outer");

// The block of a product: its place in the result, and the chains that it adds up.
struct Job {
  const float* a;
  const float* b;
  float* c;
  const float* bias;
  u32 m, n, lda, ldb, ldc;
  u32 row0, col0;      // the tile's first row and column
  u32 begin, end;      // the range of the inner dimension
  const u32* bounds;   // the ends of the chains; null for chains of `CHAIN` steps
  bool relu, accumulate;
};

DEVICE bool is_aligned(const float* p, u32 stride) { return (((u64)p | (u64)stride * 4) & 15) == 0; }

// The lanes of a warp form four rows of eight. A thread's rows are chunks of four neighbours, every
// sixteenth row, and then M % 4 neighbours; its columns are chunks of four, every 32nd column, and
// then N % 4. So the reads of a warp from shared memory are vectors without conflicts of banks.
template <int WARPS_M, int WARPS_N, int M, int N, bool OUTER> DEVICE void compute_tile(const Job& job) {
  constexpr int BM = WARPS_M * 4 * M, BN = WARPS_N * 8 * N, THREADS = WARPS_M * WARPS_N * 32;
  // A row of a's slice. Rows of a product are transposed on the way, element by element, and four
  // floats of padding spread their columns over the banks.
  constexpr int A_ROW = OUTER ? BM : BM + 4, STAGE = DEPTH * (A_ROW + BN);
  constexpr int A_VECTORS = DEPTH * BM / 4, B_VECTORS = DEPTH * BN / 4;
  constexpr int A_COPIES = OUTER ? (A_VECTORS + THREADS - 1) / THREADS : DEPTH * BM / THREADS;
  constexpr int B_COPIES = (B_VECTORS + THREADS - 1) / THREADS;
  constexpr int M_CHUNKS = M / 4, N_CHUNKS = N / 4, M_REST = M % 4, N_REST = N % 4;
  static_assert(M_REST < 3 && N_REST < 3, "a rest of one or two is read at once");
  static_assert(OUTER || (THREADS % DEPTH == 0 && DEPTH * BM % THREADS == 0), "whole rounds of copies");

  DYNAMIC_SHARED(float, stages);
  const u32 t = threadIdx.x, warp = t / 32, lane = t % 32, across = lane % 8, down = lane / 8;
  const u32 warp_row = warp / WARPS_N * (4 * M), warp_col = warp % WARPS_N * (8 * N);
  const bool a_vectors = OUTER && is_aligned(job.a, job.lda), b_vectors = is_aligned(job.b, job.ldb);

  // The place of each of this thread's vectors in a slice, and how many of its floats lie inside of
  // the matrix, four bits a vector.
  u32 b_at[B_COPIES], a_at[A_COPIES], b_live = 0, a_live = 0;
  UNROLL for (int i = 0; i < B_COPIES; i++) {
    const u32 vector = t + i * THREADS, col = job.col0 + vector % (BN / 4) * 4;
    b_at[i] = vector / (BN / 4) * job.ldb + col;
    b_live |= (col < job.n ? lesser(job.n - col, 4u) : 0) << (i * 4);
  }
  if (OUTER) {
    UNROLL for (int i = 0; i < A_COPIES; i++) {
      const u32 vector = t + i * THREADS, row = job.row0 + vector % (BM / 4) * 4;
      a_at[i] = vector / (BM / 4) * job.lda + row;
      a_live |= (row < job.m ? lesser(job.m - row, 4u) : 0) << (i * 4);
    }
  }
  const u32 a_depth = t % DEPTH, a_first = t / DEPTH;
  const u32 a_rows = job.row0 + a_first < job.m ? job.m - job.row0 - a_first : 0;

  // Copies a slice of `depth` steps, of which the first is `from`.
  auto copy_slice = LAMBDA(u32 from, u32 depth, float* to) {
    float* const a_to = to;
    float* const b_to = to + DEPTH * A_ROW;
    const float* const b_from = job.b + (u64)from * job.ldb;
    if (OUTER) {
      const float* const a_from = job.a + (u64)from * job.lda;
      if (a_vectors) {
        UNROLL for (int i = 0; i < A_COPIES; i++) {
          const u32 vector = t + i * THREADS;
          if ((i + 1) * THREADS <= A_VECTORS || vector < A_VECTORS) {
            const u32 bytes = vector < depth * (BM / 4) ? (a_live >> (i * 4) & 15) * 4 : 0;
            copy16_async(a_to + vector * 4, a_from + (bytes ? a_at[i] : 0), bytes);
          }
        }
      } else {
        NO_UNROLL for (u32 e = t; e < DEPTH * BM; e += THREADS) {
          const u32 row = job.row0 + e % BM;
          const bool live = e < depth * BM && row < job.m;
          copy4_async(a_to + e, a_from + (live ? (u64)(e / BM) * job.lda + row : 0), live);
        }
      }
    } else {
      const float* a_from = job.a + (u64)(job.row0 + a_first) * job.lda + from + a_depth;
      const bool inside = a_depth < depth;
      UNROLL for (int i = 0; i < A_COPIES; i++) {
        const bool live = inside && (u32)(i * (THREADS / DEPTH)) < a_rows;
        copy4_async(a_to + a_depth * A_ROW + a_first + i * (THREADS / DEPTH), live ? a_from : job.a, live);
        a_from += (u64)(THREADS / DEPTH) * job.lda;
      }
    }
    if (b_vectors) {
      UNROLL for (int i = 0; i < B_COPIES; i++) {
        const u32 vector = t + i * THREADS;
        if ((i + 1) * THREADS <= B_VECTORS || vector < B_VECTORS) {
          const u32 bytes = vector < depth * (BN / 4) ? (b_live >> (i * 4) & 15) * 4 : 0;
          copy16_async(b_to + vector * 4, b_from + (bytes ? b_at[i] : 0), bytes);
        }
      }
    } else {
      NO_UNROLL for (u32 e = t; e < DEPTH * BN; e += THREADS) {
        const u32 col = job.col0 + e % BN;
        const bool live = e < depth * BN && col < job.n;
        copy4_async(b_to + e, b_from + (live ? (u64)(e / BN) * job.ldb + col : 0), live);
      }
    }
  };

  float sums[M][N];
  // Adds one step of the inner dimension to all sums of the thread.
  auto add_step = LAMBDA(const float* a_slice, const float* b_slice, u32 step) {
    const float* const a_from = a_slice + step * A_ROW;
    const float* const b_from = b_slice + step * BN;
    float left[M], right[N];
    UNROLL for (int i = 0; i < M_CHUNKS; i++) {
      const float4 v = *(const float4*)(a_from + i * 16 + down * 4);
      left[i * 4] = v.x;
      left[i * 4 + 1] = v.y;
      left[i * 4 + 2] = v.z;
      left[i * 4 + 3] = v.w;
    }
    if (M_REST == 2) {
      const float2 v = *(const float2*)(a_from + M_CHUNKS * 16 + down * 2);
      left[M - 2] = v.x;
      left[M - 1] = v.y;
    }
    if (M_REST == 1) left[M - 1] = a_from[M_CHUNKS * 16 + down];
    UNROLL for (int j = 0; j < N_CHUNKS; j++) {
      const float4 v = *(const float4*)(b_from + j * 32 + across * 4);
      right[j * 4] = v.x;
      right[j * 4 + 1] = v.y;
      right[j * 4 + 2] = v.z;
      right[j * 4 + 3] = v.w;
    }
    if (N_REST == 2) {
      const float2 v = *(const float2*)(b_from + N_CHUNKS * 32 + across * 2);
      right[N - 2] = v.x;
      right[N - 1] = v.y;
    }
    if (N_REST == 1) right[N - 1] = b_from[N_CHUNKS * 32 + across];
    UNROLL for (int i = 0; i < M; i++) {
      UNROLL for (int j = 0; j < N; j++) sums[i][j] = fused(left[i], right[j], sums[i][j]);
    }
  };

  // Adds the sums of a chain to the result, or writes them if they are the first.
  auto write_sums = LAMBDA(bool add, bool last) {
    u32 row0 = job.row0 + warp_row, col0 = job.col0 + warp_col, ldc = job.ldc;
    // The addresses are computed here and not kept in registers while the sums are computed.
    OPAQUE(row0);
    OPAQUE(col0);
    OPAQUE(ldc);
    const bool vectors = is_aligned(job.c, ldc);
    UNROLL for (int i = 0; i < M; i++) {
      const u32 row = row0 + (i < M_CHUNKS * 4 ? i / 4 * 16 + down * 4 + i % 4 : M_CHUNKS * 16 + down * M_REST + i % 4);
      float* const to = job.c + (u64)row * ldc;
      UNROLL for (int h = 0; h < N_CHUNKS + (N_REST > 0); h++) {
        const int width = h < N_CHUNKS ? 4 : N_REST;
        const u32 col = col0 + h * 32 + across * width;
        if (row < job.m && col < job.n) {
          const bool whole = col + width <= job.n;
          float v[4];
          UNROLL for (int j = 0; j < width; j++) {
            v[j] = sums[i][h * 4 + j];
            if (whole || col + j < job.n) {
              if (add) v[j] = to[col + j] + v[j];
              if (last && job.bias) v[j] = v[j] + job.bias[col + j];
              if (last && job.relu) v[j] = v[j] < 0.0f ? 0.0f : v[j];
            }
          }
          if (width == 4 && whole && vectors) {
            *(float4*)(to + col) = make_float4(v[0], v[1], v[2], v[3]);
          } else {
            UNROLL for (int j = 0; j < width; j++)
              if (col + j < job.n) to[col + j] = v[j];
          }
        }
      }
    }
  };

  // The slice that is copied next. A slice ends where its chain ends. Chains of 512 steps end where
  // a slice does.
  u32 next = job.begin, next_chain = 0, next_end = job.end;
  if (OUTER) next_end = read_only(job.bounds + 1);
  auto copy_next = LAMBDA(float* to) {
    if (next < job.end) {
      const u32 depth = lesser(next_end - next, DEPTH);
      copy_slice(next, depth, to);
      next += depth;
      if (OUTER && next == next_end && next < job.end) next_end = read_only(job.bounds + ++next_chain + 1);
    }
    commit_copies();
  };
  for (u32 i = 0; i < STAGES - 1; i++) copy_next(stages + i * STAGE);

  u32 read = 0;
  bool add = job.accumulate;
  u32 at = job.begin;
  NO_UNROLL for (u32 chain = 1;; chain++) {
    UNROLL for (int i = 0; i < M; i++) {
      UNROLL for (int j = 0; j < N; j++) sums[i][j] = 0.0f;
    }
    const u32 end = OUTER ? read_only(job.bounds + chain) : lesser(job.end, chain * CHAIN);
    NO_UNROLL while (at < end) {
      wait_copies<STAGES - 2>();
      __syncthreads();
      // The stage that was read last is free: all threads have passed the barrier behind it.
      copy_next(stages + (read == 0 ? (STAGES - 1) * STAGE : read - STAGE));
      const u32 depth = lesser(end - at, DEPTH);
      const float* const a_slice = stages + read + warp_row;
      const float* const b_slice = stages + read + DEPTH * A_ROW + warp_col;
      if (depth == DEPTH) {
        UNROLL for (u32 step = 0; step < DEPTH; step++) add_step(a_slice, b_slice, step);
      } else {
        NO_UNROLL for (u32 step = 0; step < depth; step++) add_step(a_slice, b_slice, step);
      }
      at += depth;
      read = read == (STAGES - 1) * STAGE ? 0 : read + STAGE;
    }
    const bool last = end == job.end;
    write_sums(add, last);
    if (last) return;
    add = true;
  }
}

template <int WARPS_M, int WARPS_N, int M, int N> DEVICE void compute_product(const Product& p) {
  constexpr int BM = WARPS_M * 4 * M, BN = WARPS_N * 8 * N;
  const u32 m = count(p.rows), tiles_n = quotient_up(p.n, BN);
  const u32 row0 = blockIdx.x / tiles_n * BM, col0 = blockIdx.x % tiles_n * BN;
  if (row0 >= m) return;
  const Job job = {p.a, p.b,   p.c,  p.bias, m,   p.n,     p.lda,       p.ldb,
                   p.ldc, row0, col0, 0,      p.k, nullptr, p.relu != 0, p.accumulate != 0};
  compute_tile<WARPS_M, WARPS_N, M, N, false>(job);
}

KERNEL(product_64x80, Product, 128, 5) { compute_product<2, 2, 8, 5>(p); }
KERNEL(product_128x80, Product, 128, 4) { compute_product<4, 1, 8, 10>(p); }

KERNEL(outer_80x80, Outer, 128, 4) {
  const u32 tiles_n = quotient_up(p.n, 80), tiles_m = quotient_up(p.m, 80), tiles = tiles_n * tiles_m;
  const u32 z = blockIdx.x / tiles, at = blockIdx.x % tiles;
  const u32 first = read_only(p.lanes + z), last = read_only(p.lanes + z + 1);
  const u32 begin = read_only(p.tiles + first), end = read_only(p.tiles + last);
  if (begin == end) return;
  const Job job = {p.a, p.b, p.c + (u64)z * p.m * p.n, nullptr, p.m, p.n, p.lda, p.ldb, p.n, at / tiles_n * 80,
                   at % tiles_n * 80, begin, end, p.tiles + first, false, false};
  compute_tile<2, 2, 10, 5, true>(job);
}

// The product with a matrix of one column (`Linear` of one unit): the sixteen interleaved sums of
// `simd::dot`, half a warp a row, then the bias. Without a bias the processor adds a zero, which
// turns -0 into +0.
struct RowDot {
  const float* x;
  const float* w;
  const float* bias;   // or null
  float* out;
  Count rows;
  u32 k, ldx, ldw, ldo;
  u32 add_bias;        // whether a bias, or else zero, is added
  u32 unused;
};
static_assert(sizeof(RowDot) == 72, "twin of RowDot");

// With `ldw` 0, `w` is one row for all rows of `x` (a weight); else it has a row for each (RowDot of
// two values).
KERNEL(row_dot, RowDot, 256, 4) {
  const u32 rows = count(p.rows), lane = threadIdx.x & 15;
  const u64 halves = thread_count() / 16;
  for (u64 row = thread_index() / 16; row < rows; row += halves) {
    const float* const x = p.x + row * p.ldx;
    const float* const w = p.w + row * p.ldw;
    float sum = 0.0f;
    for (u32 i = lane; i < p.k; i += SUMS) sum = sum + x[i] * w[i];
    sum = sum_of_half_warp(half_warp_mask(), sum);
    if (lane == 0) p.out[row * p.ldo] = p.add_bias ? sum + (p.bias ? p.bias[0] : 0.0f) : sum;
  }
}

// out[j][i] = in[i][j], by tiles of 32 x 32 through shared memory. Products with the transpose of a
// weight use it, so that they need no kernel of their own.
struct Transpose {
  const float* in;
  float* out;
  u32 rows, cols;
  u32 ldi, ldo;
};
static_assert(sizeof(Transpose) == 32, "twin of Transpose");

KERNEL(transpose, Transpose, 256, 4) {
  SHARED(float, tile, 32 * 33);
  const u32 tiles = quotient_up(p.cols, 32), x = threadIdx.x & 31, y = threadIdx.x >> 5;
  const u32 row0 = blockIdx.x / tiles * 32, col0 = blockIdx.x % tiles * 32;
  for (u32 i = y; i < 32; i += 8)
    if (row0 + i < p.rows && col0 + x < p.cols) tile[i * 33 + x] = p.in[(u64)(row0 + i) * p.ldi + col0 + x];
  __syncthreads();
  for (u32 i = y; i < 32; i += 8)
    if (col0 + i < p.cols && row0 + x < p.rows) p.out[(u64)(col0 + i) * p.ldo + row0 + x] = tile[x * 33 + i];
}

// The copies of some weights that products read: both orders in single precision and as bf16. One
// launch makes those of all layers. A product of the library is faster where its inner dimension is
// a multiple of a few elements, so the rows of a copy may end in columns of zeros.
struct WeightCopy {
  const float* weight;
  float* straight;                   // in the order of the weight; or null
  float* transposed;                 // or null
  unsigned short* narrow;            // in the order of the weight; or null
  unsigned short* narrow_transposed; // or null
  u32 rows, cols;
  u32 ldi;                           // of the weight
  u32 lds, ldo;                      // of the copies in the order of the weight, and of the transposes
  u32 col_end, row_end;              // the columns of both kinds of copies, with those of zeros
  u32 first_tile;                    // the number of tiles of the weights before
};
struct CopyWeights {
  const WeightCopy* copies;
  u32 copy_count;
  u32 tiles;                         // of 32 x 32 floats, of all weights
};
static_assert(sizeof(WeightCopy) == 72 && sizeof(CopyWeights) == 16, "twins of WeightCopy and CopyWeights");

// A block a tile.
KERNEL(copy_weights, CopyWeights, 256, 4) {
  SHARED(float, tile, 32 * 33);
  const u32 x = threadIdx.x & 31, y = threadIdx.x >> 5;
  u32 number = 0;
  while (number + 1 < p.copy_count && p.copies[number + 1].first_tile <= blockIdx.x) number++;
  const WeightCopy& copy = p.copies[number];
  const u32 tiles = quotient_up(copy.col_end, 32), at = blockIdx.x - copy.first_tile;
  const u32 row0 = at / tiles * 32, col0 = at % tiles * 32;
  for (u32 i = y; i < 32; i += 8) {
    const u32 row = row0 + i, col = col0 + x;
    const float w = row < copy.rows && col < copy.cols ? copy.weight[(u64)row * copy.ldi + col] : 0.0f;
    tile[i * 33 + x] = w;
    if (row < copy.rows && col < copy.col_end) {
      const u64 to = (u64)row * copy.lds + col;
      if (copy.straight) copy.straight[to] = w;
      if (copy.narrow) copy.narrow[to] = (unsigned short)bf16_of(w);
    }
  }
  __syncthreads();
  for (u32 i = y; i < 32; i += 8) {
    const u32 row = row0 + x, col = col0 + i;
    if (col < copy.cols && row < copy.row_end) {
      const u64 to = (u64)col * copy.ldo + row;
      const float w = tile[x * 33 + i];
      if (copy.transposed) copy.transposed[to] = w;
      if (copy.narrow_transposed) copy.narrow_transposed[to] = (unsigned short)bf16_of(w);
    }
  }
}
