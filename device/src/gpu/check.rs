//! The checks of a device's kernels: each kernel against the processor's own code, by bits.
//!
//! One body of checks runs on a real device (`zillion gpu check`) and on the emulated one (tests).
//! A check allocates memory whose bytes are all `0xff`, which is a NaN as a float, uploads its
//! inputs, launches the kernel, and compares every result with the reference. Behind each
//! allocation lies a margin whose bytes must not change. A NaN equals a NaN: the processors differ
//! in its payload.

mod chain;
mod clip;
mod fields;
mod gather;
mod in_batch;
mod index;
mod loss;
mod math;
mod operands;
mod optimizer;
#[cfg(all(test, feature = "emulated-gpu"))]
mod planted;
mod product;
mod ranges;
mod reduce;
mod rows;
mod rules;
mod segment;
mod session;
mod stored;
mod table;
mod table_rows;
#[cfg(all(test, feature = "emulated-gpu"))]
mod tests;

use super::{Gpu, GpuError};

/// The sizes of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Small shapes, for an emulated device and for tools that slow a device down.
    Small,
    /// The shapes of training, and all inputs of the elementary functions.
    Full,
}

/// The work of a check that found no difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The number of elements that were compared by their bits.
    pub compared: u64,
}

/// A check of some kernels.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// The name, such as `product`.
    pub name: &'static str,
    /// The function that runs the check. A difference is [`GpuError::Check`].
    pub run: fn(&dyn Gpu, Size) -> Result<Outcome, GpuError>,
}

/// All checks, in the order of their runs.
pub const CHECKS: &[Check] = &[
    Check { name: "math", run: math::values },
    Check { name: "math_all_inputs", run: math::all_inputs },
    Check { name: "product", run: product::products },
    Check { name: "product_of_layers", run: product::layers },
    Check { name: "outer_product", run: product::outer_products },
    Check { name: "row_dot", run: product::row_dots },
    Check { name: "transpose", run: product::transposes },
    Check { name: "copy_weights", run: fields::weight_copies },
    Check { name: "gather", run: gather::copies },
    Check { name: "gather_lists", run: gather::lists },
    Check { name: "list_factors", run: gather::factors },
    Check { name: "field_lookup", run: fields::lookups },
    Check { name: "row_update", run: rows::fast_updates },
    Check { name: "row_rules", run: rows::general_updates },
    Check { name: "table_rules", run: table::rules },
    Check { name: "initial_rows", run: table_rows::new_rows },
    Check { name: "grow_rows", run: table_rows::grown_rows },
    Check { name: "chain", run: chain::chains },
    Check { name: "dropout", run: chain::dropouts },
    Check { name: "copy_columns", run: chain::copies },
    Check { name: "narrow", run: chain::narrowings },
    Check { name: "padded_rows", run: operands::copies },
    Check { name: "clear_padding", run: operands::clearings },
    Check { name: "sum_columns", run: reduce::columns },
    Check { name: "sum_rows", run: reduce::rows },
    Check { name: "sum_ranges", run: ranges::sums },
    Check { name: "head_gradient", run: ranges::heads },
    Check { name: "batch_norm", run: reduce::batch_norms },
    Check { name: "row_norm", run: reduce::row_norms },
    Check { name: "segment", run: segment::segments },
    Check { name: "interaction", run: segment::interactions },
    Check { name: "in_batch", run: in_batch::softmaxes },
    Check { name: "index", run: index::finds },
    Check { name: "loss", run: loss::losses },
    Check { name: "assemble", run: loss::assemblies },
    Check { name: "dense_update", run: optimizer::dense },
    Check { name: "clip", run: clip::clips },
];
