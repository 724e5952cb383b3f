//! The text formats: CSV, TSV, JSON lines and libsvm. One thread cuts the bytes into chunks of
//! whole records, and the pool decodes the chunks in parallel.
//!
//! The tokenisers ([`Chunks`], [`Records`], [`Lines`], [`JsonRow`], [`SvmRow`]) are public. Tools
//! use them to read files without a schema.

mod cell;
mod cells;
mod chunks;
mod count;
mod decode;
mod encoding;
mod file;
mod json;
mod line_rows;
mod lines;
mod open;
mod plan;
mod records;
mod rows;
mod settings;
mod svm;

pub(crate) use cell::{Cell, TextCell, push};
pub use chunks::{Chunk, Chunks};
pub use count::count_rows;
pub(crate) use decode::{OtherColumns, TextBlock};
pub use encoding::Encoding;
pub use file::TextFile;
pub(crate) use json::JsonPlan;
pub use json::{JsonKeys, JsonRow, JsonValue};
pub use lines::Lines;
pub use open::open_stream;
pub(crate) use plan::TextPlan;
pub use records::{Dialect, Records, Step};
pub(crate) use rows::{BadRow, Problem, bad_value};
pub use settings::Grammar;
pub(crate) use settings::TextSettings;
pub use svm::{SvmColumn, SvmEntry, SvmRow};
