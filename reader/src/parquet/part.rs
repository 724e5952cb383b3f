//! One decoder: some columns of one row group, read on from where the last piece ended.
//!
//! A row group is decoded piece by piece, because it may be larger than a window, and where it is large
//! by several parts side by side, because columns do not depend on each other.

use std::fs::File;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{BooleanArray, RecordBatch};
use arrow_select::filter::filter_record_batch;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};

use super::decode::{Bad, append, append_or_reject};
use super::numbers::scan;
use super::pages::{Inflater, PagedColumn};
use super::positioned::PositionedFile;
use super::texts::{DictionaryKeys, TextRules};
use super::{GroupPlan, GroupSource};
use crate::block::Column;
use crate::error::{Near, Place, ReaderError, Result};
use crate::field::{Field, Role};
use crate::ipc::{IpcBatches, plain_type};
use crate::policy::{Draw, Kept, Picker};
use crate::value;

/// Rows that Arrow decodes at a time: small enough that a column stays in the first cache.
const ARROW_ROWS: usize = 8192;

/// A decoder of some fields of one row group.
pub(crate) struct Part {
    /// The fields, and how those are decoded that can be without arrays; empty where none can.
    fields: Range<usize>,
    paged: Vec<Option<PagedColumn>>,
    inflater: Inflater,
    /// The others, if there are any, and for each field the position of its column in what it returns.
    reader: Option<Batches>,
    positions: Vec<usize>,
    plan: GroupPlan,
    dictionaries: Vec<DictionaryKeys>,
    /// What the reader returned and the last piece did not take.
    rest: Option<RecordBatch>,
    /// Rows of the row group that are decoded or skipped.
    row: u64,
    rules: TextRules,
    picker: Picker,
    /// Of the rows labelled 0, who stays, and the position of the label in what the reader returns.
    negatives: Option<(usize, Draw)>,
    group: usize,
    /// Rows of the file before the row group.
    rows_before: u64,
    path: PathBuf,
}

/// Which row group, and from which row on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub(crate) group: usize,
    pub(crate) rows_before: u64,
    pub(crate) row: u64,
}

/// What a part has decoded of some rows.
#[derive(Debug, Default)]
pub(crate) struct Decoded {
    /// One a field; stand-ins where a value is bad.
    pub(crate) columns: Vec<Column>,
    /// Which of the rows the columns hold.
    pub(crate) kept: Kept,
    /// Bad values, by their rows in the columns.
    pub(crate) bad: Vec<BadValue>,
}

/// A value that makes its row a bad one.
#[derive(Debug)]
pub(crate) struct BadValue {
    pub(crate) row: u32,
    pub(crate) error: ReaderError,
}

impl Decoded {
    /// Takes in what another part has decoded of the same rows: of other fields, those that follow.
    pub(crate) fn beside(&mut self, other: Self) {
        self.columns.extend(other.columns);
        self.bad.extend(other.bad);
    }
}

impl Part {
    pub(crate) fn open(
        path: &Path,
        plan: &GroupPlan,
        (roles, fields): (&[Field], Range<usize>),
        start: Start,
        rules: TextRules,
        picker: Picker,
    ) -> Result<Self> {
        let mut part = Self {
            paged: Vec::new(),
            inflater: Inflater::default(),
            reader: None,
            dictionaries: vec![DictionaryKeys::default(); fields.len()],
            fields,
            positions: Vec::new(),
            plan: plan.clone(),
            rest: None,
            row: start.row,
            rules,
            picker,
            negatives: None,
            group: start.group,
            rows_before: start.rows_before,
            path: path.to_owned(),
        };
        // Pages are decoded from the first row on, and whole.
        if start.row == 0 && !picker.thins() {
            part.paged = part.open_pages(roles)?;
        }
        part.open_reader()?;
        Ok(part)
    }

    fn open_pages(&self, fields: &[Field]) -> Result<Vec<Option<PagedColumn>>> {
        let GroupSource::Parquet(metadata) = &self.plan.source else { return Ok(Vec::new()) };
        let file = Arc::new(open_file(&self.path)?);
        let columns = &self.plan.columns[self.fields.clone()];
        let paged = columns.iter().zip(&fields[self.fields.clone()]).map(|(&column, field)| {
            let uses = columns.iter().filter(|&&other| other == column).count();
            let found = plain_type(metadata.schema().field(column).data_type());
            let of_group = (metadata.metadata().as_ref(), self.group, column);
            let open = || PagedColumn::open(&file, of_group, &found, &field.role, &self.rules);
            (uses == 1).then(|| without_panic(|| Ok::<_, String>(open())).ok().flatten()).flatten()
        });
        let paged: Vec<Option<PagedColumn>> = paged.collect();
        Ok(if paged.iter().any(Option::is_some) { paged } else { Vec::new() })
    }

    /// Opens a reader, from where this part stands, of the columns that are not decoded from their pages.
    fn open_reader(&mut self) -> Result<()> {
        let columns = &self.plan.columns[self.fields.clone()];
        let is_paged = |field: usize| self.paged.get(field).is_some_and(Option::is_some);
        let others = columns.iter().enumerate().filter(|&(field, _)| !is_paged(field));
        let mut roots: Vec<usize> = others.map(|(_, &column)| column).collect();
        // The label decides who stays, so every part reads it.
        let label = self.picker.negatives.map(|(field, draw)| (self.plan.columns[field], draw));
        roots.extend(label.map(|(column, _)| column));
        roots.sort_unstable();
        roots.dedup();
        let position = |column: &usize| roots.partition_point(|root| root < column);
        self.positions = columns.iter().map(position).collect();
        self.negatives = label.map(|(column, draw)| (position(&column), draw));
        self.rest = None;
        let start = Start { group: self.group, rows_before: self.rows_before, row: self.row };
        self.reader = match roots.is_empty() && !self.paged.is_empty() {
            true => None,
            false => Some(Batches::open(&self.path, &self.plan, roots, start)?),
        };
        Ok(())
    }

    /// Decodes what can be decoded from pages; `false`: it cannot after all.
    fn decode_pages(&mut self, rows: usize, fields: &[Field], columns: &mut [Column]) -> bool {
        let each = self.paged.iter_mut().zip(fields).zip(columns);
        for ((paged, field), column) in each {
            let Some(paged) = paged else { continue };
            let mut decode = || paged.decode(rows, &field.role, column, &mut self.inflater);
            if !without_panic(|| Ok::<_, String>(decode())).is_ok_and(|done| done.is_some()) {
                return false;
            }
        }
        true
    }

    /// Decodes the next `rows` rows into one column a field.
    pub(crate) fn decode(&mut self, rows: usize, fields: &[Field]) -> Result<Decoded> {
        let label = self.picker.negatives.map(|(field, _)| &fields[field].role);
        let fields = &fields[self.fields.clone()];
        let empty = || fields.iter().map(|f| Column::with_capacity(&f.role, rows)).collect();
        let mut decoded = Decoded { columns: empty(), ..Decoded::default() };
        if !self.decode_pages(rows, fields, &mut decoded.columns) {
            // Something that needs a closer look: from here on through arrays, which report it.
            decoded.columns = empty();
            self.paged.clear();
            self.open_reader()?;
        }
        if self.reader.is_none() {
            self.row += rows as u64;
            decoded.kept.keep_all(rows);
            return Ok(decoded);
        }
        let mut left = rows;
        while left > 0 {
            let batch = self.next_batch()?;
            let taken = batch.num_rows().min(left);
            if taken < batch.num_rows() {
                self.rest = Some(batch.slice(taken, batch.num_rows() - taken));
            }
            let batch = self.draw(batch.slice(0, taken), label, &mut decoded.kept)?;
            // With more bad rows than a pass may have, what follows does not matter any more.
            if decoded.bad.len() as u64 <= self.picker.max_bad {
                self.append(&batch, fields, &mut decoded, rows - left)?;
            }
            self.row += taken as u64;
            left -= taken;
        }
        Ok(decoded)
    }

    /// The rows of a batch that are drawn. `label` is the role of the label whose zeros are thinned out: it
    /// says which numbers of its column are zeros.
    fn draw(
        &self,
        batch: RecordBatch,
        label: Option<&Role>,
        kept: &mut Kept,
    ) -> Result<RecordBatch> {
        let rows = batch.num_rows();
        if !self.picker.thins() {
            kept.keep_all(rows);
            return Ok(batch);
        }
        let first = self.rows_before + self.row;
        let mut drawn: Vec<bool> = (first..).take(rows).map(|r| self.picker.samples(r)).collect();
        if let (Some((position, draw)), Some(Role::Label { at_least, .. })) =
            (self.negatives, label)
        {
            let mut row = 0;
            // A label that is none is refused where it is decoded; nothing is refused here.
            let scanned = scan(batch.column(position), |x| {
                let is_negative = x.is_some_and(|x| value::label(x, *at_least) == Ok(0.0));
                drawn[row] &= !is_negative || draw.keeps(first + row as u64);
                row += 1;
                Ok(())
            });
            debug_assert!(scanned.is_ok(), "the scan itself refuses nothing");
        }
        drawn.iter().for_each(|&stays| if stays { kept.keep() } else { kept.leave() });
        filter_record_batch(&batch, &BooleanArray::from(drawn))
            .map_err(|error| self.plan.source.damaged(self.group, error.to_string(), &self.path))
    }

    fn next_batch(&mut self) -> Result<RecordBatch> {
        if let Some(rest) = self.rest.take() {
            return Ok(rest);
        }
        let Some(reader) = &mut self.reader else { unreachable!("`decode` has looked") };
        match reader.next_batch() {
            Ok(Some(batch)) => Ok(batch),
            Ok(None) => {
                let reason = format!("it ends after its row {}", self.row);
                Err(self.plan.source.damaged(self.group, reason, &self.path))
            }
            Err(reason) => Err(self.plan.source.damaged(self.group, reason, &self.path)),
        }
    }

    /// Appends the rows of a batch that were drawn. `begun` rows of the piece stand before the batch, those
    /// that were not drawn among them.
    fn append(
        &mut self,
        batch: &RecordBatch,
        fields: &[Field],
        decoded: &mut Decoded,
        begun: usize,
    ) -> Result<()> {
        let Decoded { columns, kept, bad } = decoded;
        let first = kept.rows - batch.num_rows();
        // Rows of the file, counted from 1, of rows of the batch.
        let start = self.rows_before + self.row + 1;
        let (group, source) = (self.group, &self.plan.source);
        let path = &self.path;
        let error = |refused: &Bad, field: &Field| ReaderError::Value {
            column: field.column.clone(),
            place: Place {
                row: start + (kept.place(first + refused.row) - begun) as u64,
                near: source.near(group),
            },
            problem: refused.refusal.explain(field, refused.text.as_deref()),
            path: path.clone(),
        };
        // All columns, even behind a bad value: the row that is reported must not depend on how the
        // columns were split between parts.
        let mut first_bad: Option<(Bad, &Field)> = None;
        for (i, field) in fields.iter().enumerate() {
            if self.paged.get(i).is_some_and(Option::is_some) {
                continue;
            }
            let array = batch.column(self.positions[i]);
            let (column, keys) = (&mut columns[i], &mut self.dictionaries[i]);
            let mut refused = Vec::new();
            let appended = if self.picker.max_bad == 0 {
                append(column, &field.role, array, &self.rules, keys)
            } else {
                append_or_reject(column, &field.role, array, &self.rules, keys, 0, &mut refused)
            };
            if let Err(bad) = appended
                && first_bad.as_ref().is_none_or(|(known, _)| bad.row < known.row)
            {
                first_bad = Some((bad, field));
            }
            bad.extend(refused.iter().map(|refused| BadValue {
                row: (first + refused.row) as u32,
                error: error(refused, field),
            }));
        }
        match first_bad {
            None => Ok(()),
            Some((bad, field)) => Err(error(&bad, field)),
        }
    }
}

fn open_file(path: &Path) -> Result<PositionedFile> {
    File::open(path).and_then(PositionedFile::new).map_err(|source| ReaderError::Io {
        what: "open the file",
        source,
        path: path.to_owned(),
    })
}

/// Arrays of one row group, or of one record batch of an Arrow file, some rows at a time.
enum Batches {
    Parquet(ParquetRecordBatchReader),
    Ipc(IpcBatches),
}

impl Batches {
    /// The columns `roots`, which ascend.
    fn open(path: &Path, plan: &GroupPlan, roots: Vec<usize>, start: Start) -> Result<Self> {
        let metadata = match &plan.source {
            GroupSource::Parquet(metadata) => metadata,
            GroupSource::Ipc(plan) => {
                let batches = IpcBatches::open(path, plan, roots, start.group, start.row)?;
                return Ok(Self::Ipc(batches));
            }
        };
        let file = open_file(path)?;
        let mask = ProjectionMask::roots(metadata.parquet_schema(), roots);
        let reader = without_panic(|| {
            ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata.clone())
                .with_projection(mask)
                .with_row_groups(vec![start.group])
                .with_batch_size(ARROW_ROWS)
                .with_offset(usize::try_from(start.row).unwrap_or(usize::MAX))
                .build()
        });
        let damaged = |reason| plan.source.damaged(start.group, reason, path);
        reader.map(Self::Parquet).map_err(damaged)
    }

    fn next_batch(&mut self) -> std::result::Result<Option<RecordBatch>, String> {
        match self {
            Self::Parquet(reader) => without_panic(|| reader.next().transpose()),
            Self::Ipc(batches) => without_panic(|| batches.next_batch().transpose()),
        }
    }
}

impl GroupSource {
    fn near(&self, group: usize) -> Near {
        match self {
            Self::Parquet(_) => Near::RowGroup(group),
            Self::Ipc(_) => Near::RecordBatch(group),
        }
    }

    fn damaged(&self, group: usize, reason: String, path: &Path) -> ReaderError {
        let unit = match self {
            Self::Parquet(_) => "row group",
            Self::Ipc(_) => "record batch",
        };
        let what = format!("{unit} {group} cannot be decoded");
        ReaderError::Damaged { what, reason, path: path.to_owned() }
    }
}

/// Runs a call into the Parquet decoder. It checks most of what it reads, but on damaged bytes some of
/// its paths panic; a damaged file is an error like any other.
pub(crate) fn without_panic<T, E: std::fmt::Display>(
    call: impl FnOnce() -> std::result::Result<T, E>,
) -> std::result::Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(panic) => Err(panic_text(panic.as_ref())),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("damaged data").to_owned()
}
