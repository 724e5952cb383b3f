//! Tests of graphs: shapes, values, gradients and determinism. Each module tests one behaviour.

mod batch_norm;
mod bits;
mod check;
mod compare;
mod data;
mod fake_quantize;
mod gpu;
mod gradients;
mod learning;
mod library;
mod lookups;
mod params;
mod passes;
mod printing;
mod products;
mod random;
mod reference;
mod refusals;
mod sequences;
mod shared;
mod steps;
mod without;
