//! One decoder: some columns of one row group, read on from where the last piece ended.
//!
//! A row group is decoded piece by piece, because it may be larger than a window, and where it is large
//! by several parts side by side, because columns do not depend on each other.

use std::fs::File;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use arrow_array::RecordBatch;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};

use super::ParquetPlan;
use super::decode::{Bad, append};
use super::positioned::PositionedFile;
use super::texts::{DictionaryKeys, TextRules};
use crate::block::Column;
use crate::error::{Near, Place, ReaderError, Result};
use crate::field::Field;

/// Rows that Arrow decodes at a time: small enough that a column stays in the first cache.
const ARROW_ROWS: usize = 8192;

/// A decoder of some fields of one row group.
pub(crate) struct Part {
    reader: ParquetRecordBatchReader,
    /// The fields, and for each the position of its column in what the reader returns.
    fields: Range<usize>,
    positions: Vec<usize>,
    dictionaries: Vec<DictionaryKeys>,
    /// What the reader returned and the last piece did not take.
    rest: Option<RecordBatch>,
    /// Rows of the row group that are decoded or skipped.
    row: u64,
    rules: TextRules,
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

impl Part {
    pub(crate) fn open(
        path: &Path,
        plan: &ParquetPlan,
        fields: Range<usize>,
        start: Start,
        rules: TextRules,
    ) -> Result<Self> {
        let file = File::open(path).and_then(PositionedFile::new).map_err(|source| {
            ReaderError::Io { what: "open the file", source, path: path.to_owned() }
        })?;
        let mut roots: Vec<usize> = plan.columns[fields.clone()].to_vec();
        roots.sort_unstable();
        roots.dedup();
        let positions = plan.columns[fields.clone()]
            .iter()
            .map(|column| roots.partition_point(|root| root < column))
            .collect();
        let mask = ProjectionMask::roots(plan.metadata.parquet_schema(), roots);
        let reader = without_panic(|| {
            ParquetRecordBatchReaderBuilder::new_with_metadata(file, plan.metadata.clone())
                .with_projection(mask)
                .with_row_groups(vec![start.group])
                .with_batch_size(ARROW_ROWS)
                .with_offset(usize::try_from(start.row).unwrap_or(usize::MAX))
                .build()
        })
        .map_err(|reason| damaged(start.group, reason, path))?;
        Ok(Self {
            reader,
            dictionaries: vec![DictionaryKeys::default(); fields.len()],
            fields,
            positions,
            rest: None,
            row: start.row,
            rules,
            group: start.group,
            rows_before: start.rows_before,
            path: path.to_owned(),
        })
    }

    /// Decodes the next `rows` rows into one column a field.
    pub(crate) fn decode(&mut self, rows: usize, fields: &[Field]) -> Result<Vec<Column>> {
        let fields = &fields[self.fields.clone()];
        let mut columns: Vec<Column> =
            fields.iter().map(|f| Column::with_capacity(&f.role, rows)).collect();
        let mut left = rows;
        while left > 0 {
            let batch = self.next_batch()?;
            let taken = batch.num_rows().min(left);
            if taken < batch.num_rows() {
                self.rest = Some(batch.slice(taken, batch.num_rows() - taken));
            }
            let batch = batch.slice(0, taken);
            self.append(&batch, fields, &mut columns)?;
            self.row += taken as u64;
            left -= taken;
        }
        Ok(columns)
    }

    fn next_batch(&mut self) -> Result<RecordBatch> {
        if let Some(rest) = self.rest.take() {
            return Ok(rest);
        }
        match without_panic(|| self.reader.next().transpose()) {
            Ok(Some(batch)) => Ok(batch),
            Ok(None) => {
                let reason = format!("it ends after row {} of its row group", self.row);
                Err(damaged(self.group, reason, &self.path))
            }
            Err(reason) => Err(damaged(self.group, reason, &self.path)),
        }
    }

    fn append(
        &mut self,
        batch: &RecordBatch,
        fields: &[Field],
        columns: &mut [Column],
    ) -> Result<()> {
        // All columns, even behind a bad value: the row that is reported must not depend on how the
        // columns were split between parts.
        let mut first_bad: Option<(Bad, &Field)> = None;
        for (i, field) in fields.iter().enumerate() {
            let array = batch.column(self.positions[i]);
            let keys = &mut self.dictionaries[i];
            if let Err(bad) = append(&mut columns[i], &field.role, array, &self.rules, keys)
                && first_bad.as_ref().is_none_or(|(known, _)| bad.row < known.row)
            {
                first_bad = Some((bad, field));
            }
        }
        let Some((bad, field)) = first_bad else { return Ok(()) };
        Err(ReaderError::Value {
            column: field.column.clone(),
            place: Place {
                row: self.rows_before + self.row + bad.row as u64 + 1,
                near: Near::RowGroup(self.group),
            },
            problem: bad.refusal.explain(field, bad.text.as_deref()),
            path: self.path.clone(),
        })
    }
}

fn damaged(group: usize, reason: String, path: &Path) -> ReaderError {
    let what = format!("row group {group} cannot be decoded");
    ReaderError::Damaged { what, reason, path: path.to_owned() }
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
