//! Files to batches.
//!
//! Parquet and Arrow files, CSV and TSV, JSON lines and libsvm (the text ones plain, gzip or zstd) become [`Batch`]es of a
//! [`Schema`]: columns are projected, ids become keys, numbers are transformed, rows are put into an
//! order that is a pure function of (seed, epoch, files), and everything that does not fit is refused
//! with the file, the row, the column and a remedy. [`RawRows`] has the same rows as requests have them.
//! What it is *not*: it knows no tables and no models.
//!
//! ```
//! use std::num::NonZeroUsize;
//! use std::sync::Arc;
//! use zillion_device::Workers;
//! use zillion_feature::{Cursor, Schema};
//! use zillion_reader::{BatchOrder, DataConfig, Dataset};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let folder = tempfile::tempdir()?;
//! std::fs::write(folder.path().join("train.csv"), "user,label\n7,1\n8,0\n9,1\n")?;
//! let job: toml::Value =
//!     toml::from_str::<toml::Table>("[features.user]\nkind = 'id'\n[labels.label]")?.into();
//! let schema = Schema::from_job(&job)?;
//! let config = DataConfig {
//!     root: folder.path().to_owned(),
//!     train: "*.csv".into(),
//!     ..DataConfig::default()
//! };
//!
//! let dataset = Dataset::open(&config, &config.files(&config.train)?, &schema)?;
//! let order = BatchOrder { seed: 1, shuffle: true, batch_rows: 2, drop_last: false };
//! let workers = Arc::new(Workers::new(NonZeroUsize::MIN)?);
//! let mut rows = 0;
//! for item in dataset.batches(order, Cursor::default(), workers)? {
//!     let (batch, after) = item?;
//!     rows += batch.rows;
//!     assert_eq!(after.row, rows as u64);
//! }
//! assert_eq!(rows, 3);
//! # Ok(())
//! # }
//! ```
//!
//! [`Batch`]: zillion_feature::Batch
//! [`Schema`]: zillion_feature::Schema

mod assembly;
mod block;
mod config;
mod convert;
mod counts;
mod dataset;
mod error;
mod estimate;
mod feed;
mod field;
mod files;
mod guess;
mod header;
mod history;
mod id;
mod ipc;
mod keyed;
mod next_item;
mod order;
mod parquet;
mod passes;
mod permute;
mod policy;
mod profile;
mod quantiles;
mod raw;
mod reading;
mod rejects;
mod sides;
mod sniff;
mod stream;
mod sums;
mod synthesise;
mod text;
mod value;
mod windows;

pub use config::{
    Byte, DataConfig, Decimal, Format, Header, NegativesConfig, Paths, Quote, SHUFFLE_WINDOW,
    Share, WindowRows,
};
pub use convert::{ConvertOutput, ConvertSpec, ConvertTo, ConvertType, Converted, convert};
pub use counts::{BAD_ROWS, BadRowKind, ReadCounts};
pub use dataset::{Dataset, Labels};
pub use error::{Near, Place, ReaderError, Result};
pub use estimate::{Estimate, Frequencies};
pub use guess::{Guess, Guessed, NULL_MARKERS, guess};
pub use history::{HistoryFile, HistorySpec, add_histories};
pub use keyed::{COUNT, ID, IS_MISSING_OF, KEY, KeyedIds, KeyedRow, KeyedRows};
pub use next_item::{NextItemFiles, NextItemSpec, next_items};
pub use passes::{decode_columns, frequencies, statistics, vocabulary};
pub use profile::{
    Cells, ColumnProfile, Count, Drift, Look, Numbers, Profile, Separated, drift, estimated_rows,
    estimated_rows_of, profile,
};
pub use raw::{RawBlock, RawRows};
pub use rejects::Reject;
pub use sides::SideTables;
pub use sniff::{Sniffed, sniff};
pub use stream::{BatchOrder, BatchStream};
pub use synthesise::{ClickLog, Drawn, ID_FIELDS, NUMERIC_FIELDS};
