//! What all the tasks of one pass over the data share: files, fields, units.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{ReaderError, Result};
use crate::field::Field;
use crate::parquet::{ParquetFile, ParquetPlan, TextRules};
use crate::text::{Chunks, TextFile, TextPlan};

/// A file that has been opened and checked.
#[derive(Debug)]
pub(crate) struct SourceFile {
    pub(crate) path: PathBuf,
    pub(crate) kind: FileKind,
}

/// How it is read.
#[derive(Debug)]
pub(crate) enum FileKind {
    Parquet(ParquetFile),
    Text(TextFile),
    /// A stream behind its header, until somebody reads it.
    Stream(TextFile, Mutex<Option<Chunks>>),
}

/// How the fields of one pass are decoded from one file.
#[derive(Debug)]
pub(crate) enum FilePlan {
    Parquet(ParquetPlan),
    Text(TextPlan),
}

/// What the order of rows permutes as a whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unit {
    /// Index of the file.
    pub(crate) file: usize,
    pub(crate) kind: UnitKind,
}

/// A row group or a whole text file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum UnitKind {
    RowGroup { group: usize, rows_before: u64, rows: u64 },
    Text,
}

/// One pass.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) files: Arc<Vec<SourceFile>>,
    pub(crate) plans: Vec<FilePlan>,
    pub(crate) fields: Vec<Field>,
    pub(crate) units: Vec<Unit>,
    pub(crate) rules: TextRules,
}

impl SourceFile {
    /// Finds and checks the columns of the fields. `first` is the first file of the list.
    pub(crate) fn plan(&self, fields: &[Field], first: Option<&Path>) -> Result<FilePlan> {
        match &self.kind {
            FileKind::Parquet(file) => file.plan(&self.path, fields, first).map(FilePlan::Parquet),
            FileKind::Text(file) | FileKind::Stream(file, _) => {
                file.plan(&self.path, fields, first).map(FilePlan::Text)
            }
        }
    }

    /// Whether the file has a column of this name.
    pub(crate) fn has_column(&self, name: &str) -> bool {
        match &self.kind {
            FileKind::Parquet(file) => file.has_column(name),
            FileKind::Text(file) | FileKind::Stream(file, _) => {
                file.columns.iter().any(|column| column == name)
            }
        }
    }

    /// Number of rows, where the file says it.
    pub(crate) fn rows(&self) -> Option<u64> {
        match &self.kind {
            FileKind::Parquet(file) => Some(file.groups.iter().sum()),
            FileKind::Text(file) if !file.has_rows => Some(0),
            _ => None,
        }
    }

    /// The text from the first data row on.
    pub(crate) fn chunks(&self) -> Result<Chunks> {
        match &self.kind {
            FileKind::Text(file) => file.chunks(&self.path),
            FileKind::Stream(_, chunks) => {
                let taken = chunks.lock().unwrap_or_else(PoisonError::into_inner).take();
                taken.ok_or_else(|| ReaderError::StreamConsumed { path: self.path.clone() })
            }
            FileKind::Parquet(_) => unreachable!("row groups are not text"),
        }
    }

    fn units(&self, file: usize) -> Vec<Unit> {
        match &self.kind {
            FileKind::Parquet(parquet) => {
                let mut rows_before = 0;
                let mut units = Vec::with_capacity(parquet.groups.len());
                for (group, &rows) in parquet.groups.iter().enumerate() {
                    if rows > 0 {
                        let kind = UnitKind::RowGroup { group, rows_before, rows };
                        units.push(Unit { file, kind });
                    }
                    rows_before += rows;
                }
                units
            }
            FileKind::Text(text) | FileKind::Stream(text, _) => {
                text.has_rows.then_some(Unit { file, kind: UnitKind::Text }).into_iter().collect()
            }
        }
    }
}

impl Reading {
    pub(crate) fn new(
        files: &Arc<Vec<SourceFile>>,
        fields: Vec<Field>,
        rules: TextRules,
    ) -> Result<Self> {
        let mut plans = Vec::with_capacity(files.len());
        for (index, file) in files.iter().enumerate() {
            let first = (index > 0).then(|| files[0].path.as_path());
            plans.push(file.plan(&fields, first)?);
        }
        let units = files.iter().enumerate().flat_map(|(i, file)| file.units(i)).collect();
        Ok(Self { files: files.clone(), plans, fields, units, rules })
    }

    /// Whether rows come from a stream, which may make a reader wait.
    pub(crate) fn is_stream(&self) -> bool {
        self.files.iter().any(|file| matches!(file.kind, FileKind::Stream(..)))
    }
}
