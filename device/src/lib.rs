//! The machine: memory, SIMD, matrix products, workers, durable writes, clocks.
