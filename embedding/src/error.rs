//! The errors of this crate, which are the errors of `zillion_rows`.

pub use zillion_rows::{Error, Result};
