//! The fuzz targets of Zillion. Each target is a constant. The programs in `fuzz_targets` give
//! bytes to the targets. The tests `hostile.rs` of the crates check the same targets with mutations
//! of valid inputs.

pub mod access;
pub mod harness;
pub mod nn;
pub mod ps;
pub mod reader;
pub mod registry;
pub mod rows;
pub mod scorer;
pub mod serving;
pub mod stream;
pub mod trainer;
