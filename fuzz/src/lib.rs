//! The fuzz targets of Zillion, one constant each. The programs in `fuzz_targets` hand them bytes;
//! the tests `hostile.rs` of the crates check the same targets with mutations of valid inputs.

pub mod access;
pub mod harness;
pub mod nn;
pub mod registry;
pub mod rows;
pub mod scorer;
pub mod serving;
pub mod trainer;
