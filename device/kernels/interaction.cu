// The interactions of fields. The reference is nn/src/ops/interaction.rs.
#include "zillion.cuh"

struct Interaction {
  Rows x;                // `cols` is the number of fields times `dim`
  Rows g;                // the gradient; not read in the forward pass
  RowsMut out;
  Count rows;
  u32 dim;
  // Whether the processor computes in blocks: the sums of `dot_interaction` are then single chains,
  // and those of its gradient have a term of zero for the field itself.
  u32 blocked;
  // Whether a row does not fit in shared memory, so that its vectors are read from where they lie.
  u32 in_place;
  u32 unused;
};
static_assert(sizeof(Interaction) == 80, "twin of Interaction");

// Half of ((sum of v)^2 - sum of v^2) over the fields of a row, with half a warp a row: a lane has
// every sixteenth element of the vectors.
KERNEL(fm_interaction, Interaction, 256, 4) {
  const u32 rows = count(p.rows), lane = threadIdx.x & 15, fields = p.x.cols / p.dim;
  const u64 halves = thread_count() / 16;
  for (u64 row = thread_index() / 16; row < rows; row += halves) {
    const float* const x = p.x.data + row * p.x.stride;
    float total = 0.0f;
    for (u32 k = lane; k < p.dim; k += SUMS) {
      float sum = 0.0f, squares = 0.0f;
#pragma unroll 8
      for (u32 field = 0; field < fields; field++) {
        const float v = x[field * p.dim + k];
        sum = sum + v;
        squares = squares + v * v;
      }
      total = total + (sum * sum - squares);
    }
    total = sum_of_half_warp(half_warp_mask(), total);
    if (lane == 0) p.out.data[row * p.out.stride] = 0.5f * total;
  }
}

KERNEL(fm_interaction_grad, Interaction, 256, 4) {
  const u32 rows = count(p.rows), lane = threadIdx.x & 15, fields = p.x.cols / p.dim;
  const u64 halves = thread_count() / 16;
  for (u64 row = thread_index() / 16; row < rows; row += halves) {
    const float* const x = p.x.data + row * p.x.stride;
    float* const out = p.out.data + row * p.out.stride;
    const float g = p.g.data[row * p.g.stride];
    for (u32 k = lane; k < p.dim; k += SUMS) {
      float sum = 0.0f;
#pragma unroll 8
      for (u32 field = 0; field < fields; field++) sum = sum + x[field * p.dim + k];
#pragma unroll 8
      for (u32 field = 0; field < fields; field++) out[field * p.dim + k] = g * (sum - x[field * p.dim + k]);
    }
  }
}

// The first number of the pairs of field `i`: (i, 0), (i, 1), ..., (i, i - 1).
DEVICE u32 first_pair(u32 i) { return i * (i - 1) / 2; }

// The dot product of two vectors in the order of the processor.
DEVICE float dot_of(const float* a, const float* b, u32 dim, bool blocked) {
  if (blocked) {
    float result = 0.0f;
    for (u32 k = 0; k < dim; k++) result = result + a[k] * b[k];
    return result;
  }
  float sums[SUMS];
  UNROLL for (u32 k = 0; k < SUMS; k++) sums[k] = 0.0f;
  for (u32 first = 0; first < dim; first += SUMS) {
    UNROLL for (u32 k = 0; k < SUMS; k++)
      if (first + k < dim) sums[k] = sums[k] + a[first + k] * b[first + k];
  }
  UNROLL for (u32 width = SUMS / 2; width > 0; width /= 2) {
    UNROLL for (u32 k = 0; k < SUMS / 2; k++)
      if (k < width) sums[k] = sums[k] + sums[k + width];
  }
  return sums[0];
}

// Writes the dot products of all pairs of a row. Neighbouring vectors are `pitch` floats apart.
DEVICE void write_dots(const Interaction& p, u64 row, const float* vectors, u32 pitch) {
  const u32 pairs = first_pair(p.x.cols / p.dim);
  u32 i = 1;
  for (u32 pair = threadIdx.x; pair < pairs; pair += blockDim.x) {
    while (first_pair(i + 1) <= pair) i++;
    const float* const b = vectors + (u64)(pair - first_pair(i)) * pitch;
    p.out.data[row * p.out.stride + pair] = dot_of(vectors + (u64)i * pitch, b, p.dim, p.blocked);
  }
}

// The dot products of all pairs of fields. A block has a row, whose vectors lie in shared memory with
// one float of padding, so that neighbouring fields are in different banks. The dynamic shared
// memory has fields * (dim + 1) floats, or none if the vectors are read in place.
KERNEL(dot_interaction, Interaction, 256, 4) {
  DYNAMIC_SHARED(float, vectors);
  const u32 rows = count(p.rows), dim = p.dim, cols = p.x.cols;
  for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
    const float* const x = p.x.data + (u64)row * p.x.stride;
    if (p.in_place) {
      write_dots(p, row, x, dim);
      continue;
    }
    for (u32 i = threadIdx.x; i < cols; i += blockDim.x) vectors[i / dim * (dim + 1) + i % dim] = x[i];
    __syncthreads();
    write_dots(p, row, vectors, dim + 1);
    __syncthreads();
  }
}

// Writes the gradients of the vectors of a row.
DEVICE void write_dot_gradients(const Interaction& p, u64 row, const float* vectors, const float* gradients) {
  const u32 dim = p.dim, cols = p.x.cols, fields = cols / dim;
  for (u32 e = threadIdx.x; e < cols; e += blockDim.x) {
    const u32 i = e / dim, k = e % dim;
    float sum = 0.0f;
    for (u32 j = 0; j < fields; j++) {
      if (j == i && !p.blocked) continue;
      const float by = j == i ? 0.0f : gradients[j < i ? first_pair(i) + j : first_pair(j) + i];
      sum = sum + by * vectors[(u64)j * dim + k];
    }
    p.out.data[row * p.out.stride + e] = sum;
  }
}

// The gradient of each vector: the sum over the other fields, in order, of the pair's gradient times
// the other vector. The dynamic shared memory has the row and the gradients of its pairs, or nothing
// if both are read in place.
KERNEL(dot_interaction_grad, Interaction, 256, 4) {
  DYNAMIC_SHARED(float, vectors);
  const u32 rows = count(p.rows), cols = p.x.cols, pairs = first_pair(cols / p.dim);
  float* const gradients = vectors + cols;
  for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
    const float* const x = p.x.data + (u64)row * p.x.stride;
    const float* const g = p.g.data + (u64)row * p.g.stride;
    if (p.in_place) {
      write_dot_gradients(p, row, x, g);
      continue;
    }
    for (u32 i = threadIdx.x; i < cols; i += blockDim.x) vectors[i] = x[i];
    for (u32 i = threadIdx.x; i < pairs; i += blockDim.x) gradients[i] = g[i];
    __syncthreads();
    write_dot_gradients(p, row, vectors, gradients);
    __syncthreads();
  }
}
