//! The rows of sparse embedding tables, and the files that hold rows.
//!
//! The crate has the settings of a table ([`TableSpec`]), the layout of its rows, their initial
//! values and number types, the parts of a checkpoint ([`part`]), the layers of a version
//! ([`layer`]), and the trait [`RowSource`], from which scorers read their rows. Live tables and
//! optimizers are in `embedding/`. Training links both crates, and serving links only this one.

mod arrow_file;
mod arrow_writer;
pub mod candidate;
pub mod dtype;
mod error;
pub mod filter;
mod initializer;
pub mod layer;
mod layout;
pub mod memory;
pub mod part;
mod rounded_rows;
pub mod row;
mod row_type;
mod shape;
mod source;
mod spec;

pub use candidate::Candidate;
pub use dtype::Dtype;
pub use error::{Error, Result};
pub use initializer::InitializerSpec;
pub use layout::{HotRule, SegmentLayout, TableLayout};
pub use memory::DEFAULT_SHARDS;
pub use part::{
    ChangedParts, ListedParts, MAX_PART_ROWS, PartInfo, PartSource, PartsBelow, RowDigest,
    TableParts,
};
pub use rounded_rows::RoundedRows;
pub use row_type::RowType;
pub use shape::{RowShape, SegmentPlace};
pub use source::{FetchedRows, LookupReport, RowSource, conformance, shape_rows};
pub use spec::{
    Admission, Bounds, ByteSize, ClipSpec, DEFAULT_DENSE_ROWS, EventSpan, Eviction, Growth,
    META_WORDS, OptimizerSpec, PinnedId, Scope, SegmentSpec, Span, TableClock, TableSpec, Unknown,
    UseStatistics, is_drawn,
};
