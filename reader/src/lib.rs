//! The reader of data files, which makes batches of a schema.
//!
//! The reader accepts Parquet and Arrow files, and text files with CSV, TSV, JSON lines or libsvm.
//! A text file may be compressed with gzip or zstd. The reader returns [`Batch`]es of a [`Schema`]:
//! it reads only the needed columns, converts ids to keys, and transforms numbers. The order of the
//! rows is a pure function of the seed, the epoch and the files. Input that does not fit the schema
//! is refused with the file, the row, the column and a remedy. [`RawRows`] returns the same rows in
//! the form of requests. [`MessageDecoder`] returns batches of the messages of a stream. The crate
//! knows neither tables nor models.
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

mod arrays;
mod arrow_rows;
mod assembly;
mod block;
mod config;
mod counts;
mod dataset;
mod derived;
mod error;
mod estimate;
mod explain;
mod feed;
mod field;
mod files;
mod format;
mod groups;
mod header;
mod input;
mod ipc;
mod messages;
mod order;
mod parquet;
mod passes;
mod permute;
mod policy;
mod quantiles;
mod raw;
mod reading;
mod rejects;
mod row_count;
mod side_files;
mod side_lookup;
mod side_tables;
mod source;
mod stores;
mod stream;
mod sums;
pub mod text;
mod value;
mod windows;

pub use arrays::{plain_type, visit_texts};
pub use arrow_rows::{ArrowRows, ColumnType, RowSpan};
pub use config::{
    Byte, DataConfig, Decimal, Header, NegativesConfig, Paths, Quote, SHUFFLE_WINDOW, Share,
    WindowRows,
};
pub use counts::{BAD_ROWS, BadRowKind, ReadCounts};
pub use dataset::{Dataset, Labels};
pub use error::{Near, Place, ReaderError, Result};
pub use estimate::{Estimate, Frequencies, Sketch};
pub use format::{Compression, FileFormat, Format, TextFormat, format_of};
pub use input::FileFacts;
pub use ipc::make_arrow_file;
pub use messages::{
    AvroFraming, AvroSchemas, DecodedMessages, MessageDecoder, MessageFormat, ProtobufSchemas,
    ReferencedSchema, RejectedMessage, Rejection, RejectionKind, SchemaLanguage, WriterSchema,
};
pub use parquet::ParquetFile;
pub use passes::{decode_columns, frequencies, labels, statistics, texts, vocabulary};
pub use quantiles::Sample;
pub use raw::{RawBlock, RawRows};
pub use rejects::Reject;
pub use row_count::{estimated_rows, estimated_rows_of};
pub use side_tables::SideTables;
pub use source::{ArraySource, Batches, DataFile};
pub use stores::Stores;
pub use stream::{BatchOrder, BatchStream};
