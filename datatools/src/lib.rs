//! The tools for data files. Most of them work on whole files and not on batches.
//!
//! They convert, split, filter and profile files, change lists to rows, guess a schema, compute
//! histories, counters and next items, generate synthetic click logs, and write tables as Parquet
//! files. The crate does not make the batches of training and evaluation; the reader does.

mod condition;
mod convert;
mod counters;
mod explode;
mod filter;
mod guess;
mod history;
mod keyed;
mod next_item;
mod parquet_files;
mod profile;
mod recipe;
mod relation;
mod rewrite;
mod sniff;
mod split;
mod synthesise;
mod weight;

pub use condition::Condition;
pub use convert::{ConvertOutput, ConvertSpec, ConvertTo, Converted, convert};
pub use counters::{Counted, CounterSpec, Span, add_counters};
pub use explode::{ExplodeSpec, Exploded, explode};
pub use filter::{FilterSpec, Filtered, filter};
pub use guess::{Amount, EventTime, Guess, Guessed, GuessedLabel, TextLabel, guess, null_markers};
pub use history::{HistoryFile, HistorySpec, add_histories};
pub use keyed::{COUNT, ID, IS_MISSING_OF, KEY, KeyedIds, KeyedRow, KeyedRows};
pub use next_item::{NextItemFiles, NextItemSpec, next_items};
pub use profile::{
    Cells, ColumnProfile, Count, Drift, Numbers, Profile, ProfileSpec, Separated, Times, drift,
    profile,
};
pub use recipe::{DraftedModel, Recipe};
pub use rewrite::{RewrittenFile, RowFiles};
pub use sniff::{Sniffed, sniff};
pub use split::{SplitBy, SplitFile, SplitSpec, split};
pub use synthesise::{ClickLog, Drawn, ID_FIELDS, NUMERIC_FIELDS};
