//! The errors of this crate, which are those of `zillion_rows`.

pub use zillion_rows::{Error, Result};
