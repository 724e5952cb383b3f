//! Rows of the sources, a row group at a time, from any row on.

use std::path::Path;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Field as ArrowField, Schema, SchemaRef};
use arrow_select::concat::concat_batches;
use zillion_device::Workers;

use super::columns::{self, ConvertType};
use super::{ConvertSpec, array_of};
use crate::block::Piece;
use crate::dataset::{open_file, text_rules};
use crate::error::{ReaderError, Result};
use crate::feed::Feed;
use crate::policy::{RowPolicy, Thinning};
use crate::reading::{FileKind, FilePlan, Reading, SourceFile};
use crate::rejects::{Reject, RejectLog};

/// The sources, and the row that comes next.
pub(super) struct Rows {
    kind: Kind,
    schema: SchemaRef,
    at: u64,
}

enum Kind {
    Text {
        feed: Box<Feed>,
        types: Arc<Vec<ConvertType>>,
        log: Arc<RejectLog>,
        /// Bad rows that parts have taken.
        taken: usize,
    },
    Arrays {
        files: Vec<SourceFile>,
        /// The file after the one that is open.
        next: usize,
        open: Option<Batches>,
        rest: Option<RecordBatch>,
    },
}

type Batches = Box<dyn Iterator<Item = Result<RecordBatch>>>;

/// Some rows that have been read and not yet been put together.
pub(super) struct Lump {
    values: Values,
    /// Rows of the data.
    pub(super) span: u64,
    /// Rows that are left of them.
    pub(super) rows: u64,
    /// Rows that were left out as bad.
    pub(super) bad: u64,
}

enum Values {
    Pieces(Vec<Piece>, Arc<Vec<ConvertType>>),
    Batches(Vec<RecordBatch>),
}

impl Rows {
    /// The rows from row `from` of the data on.
    pub(super) fn open(spec: &ConvertSpec, workers: &Arc<Workers>, from: u64) -> Result<Self> {
        let config = &spec.config;
        config.check()?;
        let files: Vec<SourceFile> =
            spec.sources.iter().map(|path| open_file(config, path)).collect::<Result<_>>()?;
        let is_text = |file: &SourceFile| file.text_settings().is_some();
        match (files.iter().find(|f| is_text(f)), files.iter().find(|f| !is_text(f))) {
            (Some(text), Some(other)) => Err(ReaderError::Setting {
                problem: format!(
                    "is text, and {} has columns with types of its own; convert them one after the other",
                    other.path.display()
                ),
                key: text.path.display().to_string(),
            }),
            (None, None) => Err(ReaderError::Setting {
                problem: "no files are given".to_owned(),
                key: "INPUT".to_owned(),
            }),
            (Some(_), None) => Self::of_text(spec, files, workers, from),
            (None, Some(_)) => Self::of_arrays(spec, files, from),
        }
    }

    fn of_text(
        spec: &ConvertSpec,
        files: Vec<SourceFile>,
        workers: &Arc<Workers>,
        from: u64,
    ) -> Result<Self> {
        let mut fields = Vec::with_capacity(spec.columns.len());
        let mut arrow = Vec::with_capacity(spec.columns.len());
        for (name, of) in &spec.columns {
            fields.push(columns::field(name, *of));
            arrow.extend(columns::arrow_fields(name, *of));
        }
        check_names(&arrow)?;
        check_columns(spec, &files)?;
        let files = Arc::new(files);
        let mut reading = Reading::new(&files, fields, text_rules(&spec.config))?;
        if reading.units.is_empty() {
            let path = files[0].path.clone();
            return Err(ReaderError::NoRows { files: files.len(), path });
        }
        // What the types were not chosen for must not get lost in silence.
        for plan in &mut reading.plans {
            if let FilePlan::Text(plan) = plan {
                plan.refuse_others();
            }
        }
        let log = Arc::new(RejectLog::new(true));
        let policy = RowPolicy { max_bad: spec.max_bad_rows, thinning: Thinning::default() };
        reading.leave_out(&policy, 0, &log, Path::new(""));
        let order = (0..reading.units.len() as u32).collect();
        let feed = Feed::new(Arc::new(reading), workers.clone(), Arc::default(), order, from);
        let types = spec.columns.iter().map(|(_, of)| *of).collect();
        let kind = Kind::Text { feed: Box::new(feed), types: Arc::new(types), log, taken: 0 };
        Ok(Self { kind, schema: Arc::new(Schema::new(arrow)), at: from })
    }

    fn of_arrays(spec: &ConvertSpec, files: Vec<SourceFile>, from: u64) -> Result<Self> {
        if !spec.columns.is_empty() {
            return Err(ReaderError::Setting {
                problem: "its columns have types of their own, which are kept".to_owned(),
                key: files[0].path.display().to_string(),
            });
        }
        let mut schema: Option<SchemaRef> = None;
        for file in &files {
            let Some(first) = batches(file)?.next() else { continue };
            let found = plain_schema(first?.schema_ref());
            match &schema {
                None => schema = Some(found),
                Some(schema) if **schema == *found => {}
                Some(schema) => return Err(other_columns(schema, &found, &file.path)),
            }
        }
        let Some(schema) = schema else {
            let path = files[0].path.clone();
            return Err(ReaderError::NoRows { files: files.len(), path });
        };
        let kind = Kind::Arrays { files, next: 0, open: None, rest: None };
        let mut rows = Self { kind, schema, at: 0 };
        while rows.at < from {
            let step = (from - rows.at).min(1 << 16) as usize;
            let Some(lump) = rows.next(step)? else { break };
            debug_assert!(lump.span > 0, "a lump has rows");
        }
        Ok(rows)
    }

    /// The row of the data that comes next.
    pub(super) fn position(&self) -> u64 {
        self.at
    }

    /// Columns of what is written.
    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Up to `limit` rows of the data; `None` at the end.
    pub(super) fn next(&mut self, limit: usize) -> Result<Option<Lump>> {
        let lump = match &mut self.kind {
            Kind::Text { feed, types, .. } => {
                let pieces = feed.fill(limit)?;
                let span = pieces.iter().map(|piece| piece.span as u64).sum();
                let rows = pieces.iter().map(|piece| piece.rows as u64).sum();
                let bad = pieces.iter().map(|piece| piece.rejected().count() as u64).sum();
                Lump { values: Values::Pieces(pieces, types.clone()), span, rows, bad }
            }
            Kind::Arrays { files, next, open, rest } => {
                let mut batches = Vec::new();
                let mut have = 0;
                while have < limit {
                    let batch = match rest.take() {
                        Some(batch) => batch,
                        None => match next_batch(files, next, open)? {
                            Some(batch) => batch,
                            None => break,
                        },
                    };
                    let taken = batch.num_rows().min(limit - have);
                    if taken < batch.num_rows() {
                        *rest = Some(batch.slice(taken, batch.num_rows() - taken));
                    }
                    have += taken;
                    batches.push(batch.slice(0, taken));
                }
                let rows = have as u64;
                Lump { values: Values::Batches(batches), span: rows, rows, bad: 0 }
            }
        };
        self.at += lump.span;
        Ok((lump.span > 0).then_some(lump))
    }

    /// The next so many rows that were left out as bad.
    pub(super) fn take_rejects(&mut self, count: u64) -> Vec<Reject> {
        match &mut self.kind {
            Kind::Text { log, taken, .. } if count > 0 => {
                let rows = log.rows().into_iter().skip(*taken).take(count as usize).collect();
                *taken += count as usize;
                rows
            }
            _ => Vec::new(),
        }
    }

    /// Messages of the first bad rows.
    pub(super) fn examples(&self) -> Vec<String> {
        match &self.kind {
            Kind::Text { log, .. } => log.examples(),
            Kind::Arrays { .. } => Vec::new(),
        }
    }
}

impl Lump {
    /// Puts the rows together.
    pub(super) fn batch(self, schema: &SchemaRef) -> Result<RecordBatch> {
        let together = match self.values {
            Values::Pieces(pieces, types) => {
                let mut columns = Vec::with_capacity(schema.fields().len());
                for (field, of) in types.iter().enumerate() {
                    columns.extend(array_of(&pieces, field, *of)?);
                }
                RecordBatch::try_new(schema.clone(), columns)
            }
            Values::Batches(batches) => {
                let own: std::result::Result<Vec<RecordBatch>, _> = batches
                    .iter()
                    .map(|batch| RecordBatch::try_new(schema.clone(), batch.columns().to_vec()))
                    .collect();
                own.and_then(|own| concat_batches(schema, &own))
            }
        };
        together.map_err(|error| ReaderError::Setting {
            problem: format!("rows cannot be put together: {error}"),
            key: "group rows".to_owned(),
        })
    }
}

fn batches(file: &SourceFile) -> Result<Batches> {
    match &file.kind {
        FileKind::Parquet(parquet) => Ok(Box::new(parquet.batches(&file.path)?)),
        FileKind::Ipc(ipc) => Ok(Box::new(ipc.all_batches(&file.path)?)),
        FileKind::Text(_) | FileKind::Stream(..) => unreachable!("text has no arrays"),
    }
}

fn next_batch(
    files: &[SourceFile],
    next: &mut usize,
    open: &mut Option<Batches>,
) -> Result<Option<RecordBatch>> {
    loop {
        if let Some(batch) = open.as_mut().and_then(Iterator::next) {
            let batch = batch?;
            if batch.num_rows() > 0 {
                return Ok(Some(batch));
            }
            continue;
        }
        let Some(file) = files.get(*next) else { return Ok(None) };
        *open = Some(batches(file)?);
        *next += 1;
    }
}

/// Names and types; what one file says of itself besides is its own.
fn plain_schema(schema: &SchemaRef) -> SchemaRef {
    let field = |f: &Arc<ArrowField>| ArrowField::new(f.name(), f.data_type().clone(), true);
    Arc::new(Schema::new(schema.fields().iter().map(field).collect::<Vec<_>>()))
}

fn other_columns(first: &Schema, found: &Schema, path: &Path) -> ReaderError {
    let list = |schema: &Schema| {
        let fields = schema.fields().iter().map(|f| format!("{} {}", f.name(), f.data_type()));
        fields.collect::<Vec<_>>().join(", ")
    };
    ReaderError::Setting {
        problem: format!(
            "has the columns ({}), and the first file ({}); convert them one after the other",
            list(found),
            list(first)
        ),
        key: path.display().to_string(),
    }
}

fn check_names(fields: &[ArrowField]) -> Result<()> {
    let mut names = std::collections::BTreeSet::new();
    match fields.iter().find(|field| !names.insert(field.name())) {
        None => Ok(()),
        Some(field) => Err(ReaderError::Setting {
            problem: "two columns would have this name".to_owned(),
            key: field.name().clone(),
        }),
    }
}

/// Whether every column of every file has a type: one that has none would get lost.
fn check_columns(spec: &ConvertSpec, files: &[SourceFile]) -> Result<()> {
    for file in files {
        let (FileKind::Text(text) | FileKind::Stream(text, _)) = &file.kind else { continue };
        let is_known = |name: &String| spec.columns.iter().any(|(known, _)| known == name);
        if let Some(name) = text.columns.iter().find(|name| !is_known(name)) {
            return Err(ReaderError::Setting {
                problem: format!(
                    "has a column `{name}` that the first file does not have; convert them one after the other"
                ),
                key: file.path.display().to_string(),
            });
        }
    }
    Ok(())
}
