//! The errors of tables, which are those of rows.

pub use zillion_rows::{Error, Result};
