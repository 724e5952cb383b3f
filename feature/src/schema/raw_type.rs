//! The declared type of an id.

use serde::{Deserialize, Serialize};

/// The declared type of an id. With it, the id 42 has the same meaning in CSV, Parquet and JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RawType {
    /// Signed integers of 64 bits.
    #[default]
    I64,
    /// Unsigned integers of 64 bits. A negative value is an error.
    U64,
    /// Texts that are encoded in UTF-8.
    String,
}
