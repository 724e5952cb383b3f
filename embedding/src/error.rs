//! The errors of this crate. They are those of `zillion_rows`.

pub use zillion_rows::{Error, Result};
