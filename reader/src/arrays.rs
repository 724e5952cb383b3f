//! The conversion of Arrow arrays to columns. Every file format whose decoder returns arrays uses
//! it.
//!
//! A format with row groups implements [`GroupSource`]. The [`Part`]s of a row group decode its
//! arrays.

mod append;
mod bad;
mod check;
mod decimals;
mod kept;
mod labels;
mod numbers;
mod panic;
mod part;
mod plain_type;
mod plan;
mod texts;
mod times;
mod vectors;

pub(crate) use append::append;
pub(crate) use bad::Bad;
pub(crate) use check::check_type;
pub(crate) use panic::without_panic;
pub(crate) use part::{Decoded, Part};
pub use plain_type::plain_type;
pub(crate) use plan::{GroupBatches, GroupPlan, GroupSource, PagedFields, Start};
pub use texts::visit_texts;
pub(crate) use texts::{DictionaryKeys, TextRules};
