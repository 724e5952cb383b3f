//! The CPU: the plan of a lowered graph in phases of tiles, and the executor that runs the plan.

pub(crate) mod dense_type;
pub(crate) mod executor;
mod narrow;
pub(crate) mod packed_params;
pub(crate) mod packing;
pub(crate) mod placement;
pub(crate) mod program;
mod schedule;
