//! The writing of one part. The pool encodes the row groups, and the caller writes them in their
//! order.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_ipc::writer::FileWriter;
use arrow_schema::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::{
    ArrowColumnChunk, ArrowColumnWriter, ArrowRowGroupWriterFactory, compute_leaves,
};
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use zillion_device::{Files, Task, Workers};
use zillion_reader::{ArrowRows, ReaderError, Reject, Result, RowSpan};

use super::{ConvertSpec, ConvertTo};
use crate::parquet_files::failed;

/// The task of writing one part.
pub(super) struct PartTask<'a> {
    pub(super) spec: &'a ConvertSpec,
    pub(super) rows: &'a mut ArrowRows,
    /// The maximum number of rows of the data that the part covers.
    pub(super) part_rows: u64,
    /// The number of bad rows in the finished parts.
    pub(super) bad_before: u64,
    pub(super) workers: &'a Arc<Workers>,
    pub(super) seen: &'a mut dyn FnMut(u64),
}

/// The counts and the bad rows of a finished part.
pub(super) struct Written {
    pub(super) span: u64,
    pub(super) rows: u64,
    pub(super) rejects: Vec<Reject>,
}

/// A row group or record batch in the form in which it is written to the file.
enum Encoded {
    Parquet(Vec<ArrowColumnChunk>),
    Arrow(RecordBatch),
}

impl PartTask<'_> {
    /// Writes the file of the part. The file appears only when it is complete. Returns `None` if
    /// there are no more rows.
    pub(super) fn write(mut self, path: &Path, files: &Files) -> Result<Option<Written>> {
        // The file is not created before there is a row.
        let Some(first) = self.read_group(0)? else { return Ok(None) };
        let mut outcome = None;
        let written = files.write_file(path, |out| {
            let done = self.fill(out, first);
            let failed = done.is_err();
            outcome = Some(done);
            if failed { Err(io::Error::other("the part is incomplete")) } else { Ok(()) }
        });
        match (outcome, written) {
            (Some(Err(error)), _) => Err(error),
            (Some(Ok(part)), Ok(_)) => Ok(Some(part)),
            (_, Err(error)) => Err(failed("write the file", path, error)),
            (None, Ok(_)) => unreachable!("a file is filled before it is written"),
        }
    }

    /// Reads the next row group of the part. `span` is the number of rows of the data that the part
    /// already covers. Returns `None` if the part is full or if there are no more rows.
    fn read_group(&mut self, span: u64) -> Result<Option<RowSpan>> {
        let left = (self.part_rows - span).min(self.spec.group_rows as u64);
        if left == 0 {
            return Ok(None);
        }
        self.rows.next(left as usize)
    }

    fn fill(&mut self, out: &mut dyn Write, first: RowSpan) -> Result<Written> {
        let schema = self.rows.schema().clone();
        let mut sink = Sink::new(self.spec.to, &schema, out).map_err(not_written)?;
        let mut flight: VecDeque<Task<Result<Encoded>>> = VecDeque::new();
        let most = 2 * self.workers.threads();
        let (mut span, mut rows, mut bad) = (0, 0, 0);
        let mut next = Some(first);
        loop {
            while flight.len() < most
                && let Some(group) = next.take()
            {
                span += group.span;
                rows += group.rows;
                bad += group.bad;
                if self.bad_before + bad > self.spec.max_bad_rows {
                    let examples = self.rows.examples();
                    return Err(ReaderError::TooManyBadRows {
                        limit: self.spec.max_bad_rows,
                        examples,
                    });
                }
                if group.rows > 0 {
                    let writers = sink.column_writers().map_err(not_written)?;
                    let schema = schema.clone();
                    flight.push_back(self.workers.spawn(move || encode(writers, group, &schema)));
                }
                (self.seen)(self.rows.position());
                next = self.read_group(span)?;
            }
            let Some(task) = flight.pop_front() else { break };
            sink.push(task.join()?).map_err(not_written)?;
        }
        sink.finish().map_err(not_written)?;
        Ok(Written { span, rows, rejects: self.rows.take_rejects(bad) })
    }
}

fn not_written(source: io::Error) -> ReaderError {
    ReaderError::Io { what: "write a part", source, path: Default::default() }
}

/// A writer of row groups or record batches to the file of a part.
enum Sink<'a> {
    Parquet {
        // The writer must own its target, so it writes to memory, which is copied to the file after
        // each row group.
        writer: Box<SerializedFileWriter<Vec<u8>>>,
        factory: ArrowRowGroupWriterFactory,
        groups: usize,
        out: &'a mut dyn Write,
    },
    Arrow(Box<FileWriter<&'a mut dyn Write>>),
}

impl<'a> Sink<'a> {
    fn new(to: ConvertTo, schema: &SchemaRef, out: &'a mut dyn Write) -> io::Result<Self> {
        match to {
            ConvertTo::Parquet => {
                let properties = WriterProperties::builder()
                    .set_compression(Compression::ZSTD(ZstdLevel::default()))
                    .build();
                let writer = ArrowWriter::try_new(Vec::new(), schema.clone(), Some(properties))?;
                let (writer, factory) = writer.into_serialized_writer()?;
                Ok(Self::Parquet { writer: Box::new(writer), factory, groups: 0, out })
            }
            ConvertTo::Arrow => {
                let writer = FileWriter::try_new(out, schema).map_err(io::Error::other)?;
                Ok(Self::Arrow(Box::new(writer)))
            }
        }
    }

    /// Returns the encoders for the columns of the next row group, or `None` for an Arrow file,
    /// which needs no encoders.
    fn column_writers(&mut self) -> io::Result<Option<Vec<ArrowColumnWriter>>> {
        let Self::Parquet { factory, groups, .. } = self else { return Ok(None) };
        *groups += 1;
        Ok(Some(factory.create_column_writers(*groups - 1)?))
    }

    fn push(&mut self, encoded: Encoded) -> io::Result<()> {
        match (self, encoded) {
            (Self::Parquet { writer, out, .. }, Encoded::Parquet(chunks)) => {
                let mut group = writer.next_row_group()?;
                for chunk in chunks {
                    chunk.append_to_row_group(&mut group)?;
                }
                group.close()?;
                writer.flush()?;
                out.write_all(writer.inner())?;
                writer.inner_mut().clear();
                Ok(())
            }
            (Self::Arrow(writer), Encoded::Arrow(batch)) => {
                writer.write(&batch).map_err(io::Error::other)
            }
            _ => unreachable!("only the writers of a Parquet sink encode Parquet"),
        }
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Self::Parquet { mut writer, out, .. } => {
                writer.finish()?;
                out.write_all(writer.inner())
            }
            Self::Arrow(mut writer) => writer.finish().map_err(io::Error::other),
        }
    }
}

/// Encodes a row group with the encoders of its columns. If there are no encoders, returns the rows
/// as a record batch.
fn encode(
    writers: Option<Vec<ArrowColumnWriter>>,
    group: RowSpan,
    schema: &SchemaRef,
) -> Result<Encoded> {
    let batch = group.batch(schema)?;
    let Some(writers) = writers else { return Ok(Encoded::Arrow(batch)) };
    let chunks = encode_columns(writers, &batch, schema);
    Ok(Encoded::Parquet(chunks.map_err(|e| not_written(e.into()))?))
}

fn encode_columns(
    mut writers: Vec<ArrowColumnWriter>,
    batch: &RecordBatch,
    schema: &SchemaRef,
) -> std::result::Result<Vec<ArrowColumnChunk>, ParquetError> {
    let mut own = writers.iter_mut();
    for (field, column) in schema.fields().iter().zip(batch.columns()) {
        for leaf in compute_leaves(field, column)? {
            let writer = own.next().ok_or_else(|| {
                ParquetError::General("more columns than the schema has".to_owned())
            })?;
            writer.write(&leaf)?;
        }
    }
    writers.into_iter().map(ArrowColumnWriter::close).collect()
}
