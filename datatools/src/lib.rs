//! The tools for data files. Most of them work on whole files and not on batches.
//!
//! They convert, split and profile files, guess a schema, compute histories and next items,
//! generate synthetic click logs, and write tables as Parquet files. The crate does not make the
//! batches of training and evaluation; the reader does.

mod convert;
mod guess;
mod history;
mod keyed;
mod next_item;
mod parquet_files;
mod profile;
mod recipe;
mod relation;
mod sniff;
mod split;
mod synthesise;

pub use convert::{ConvertOutput, ConvertSpec, ConvertTo, Converted, convert};
pub use guess::{EventTime, Guess, Guessed, GuessedLabel, guess, null_markers};
pub use history::{HistoryFile, HistorySpec, add_histories};
pub use keyed::{COUNT, ID, IS_MISSING_OF, KEY, KeyedIds, KeyedRow, KeyedRows};
pub use next_item::{NextItemFiles, NextItemSpec, next_items};
pub use profile::{
    Cells, ColumnProfile, Count, Drift, Numbers, Profile, ProfileSpec, Separated, drift, profile,
};
pub use recipe::{DraftedModel, Recipe};
pub use sniff::{Sniffed, sniff};
pub use split::{SplitBy, SplitFile, SplitSpec, split};
pub use synthesise::{ClickLog, Drawn, ID_FIELDS, NUMERIC_FIELDS};
