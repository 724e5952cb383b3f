//! What all the tasks of one pass over the data share: files, fields, units.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::counts::Counts;
use crate::error::{ReaderError, Result};
use crate::field::{Field, Slot};
use crate::ipc::IpcFile;
use crate::parquet::{GroupPlan, GroupSource, ParquetFile, TextRules};
use crate::policy::{Picker, RowPolicy};
use crate::rejects::RejectLog;
use crate::text::{Chunks, TextFile, TextPlan, TextSettings};

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
    Ipc(IpcFile),
    Text(TextFile),
    /// A stream behind its header, until somebody reads it.
    Stream(TextFile, Mutex<Option<Chunks>>),
}

/// How the fields of one pass are decoded from one file.
#[derive(Debug)]
pub(crate) enum FilePlan {
    Groups(GroupPlan),
    Text(TextPlan),
}

/// What the order of rows permutes as a whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unit {
    /// Index of the file.
    pub(crate) file: usize,
    pub(crate) kind: UnitKind,
}

/// A row group (of an Arrow file a record batch) or a whole text file.
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
    /// What is left out of each file.
    pub(crate) pickers: Vec<Picker>,
    /// Where bad rows that are left out are noted.
    pub(crate) rejects: Arc<RejectLog>,
    /// What the names of files in that log are relative to.
    pub(crate) root: PathBuf,
    pub(crate) counts: Arc<Counts>,
}

impl SourceFile {
    /// Finds and checks the columns of the fields. `first` is the first file of the list.
    pub(crate) fn plan(&self, fields: &[Field], first: Option<&Path>) -> Result<FilePlan> {
        match &self.kind {
            FileKind::Parquet(file) => file.plan(&self.path, fields, first).map(FilePlan::Groups),
            FileKind::Ipc(file) => {
                let (plan, columns) = file.plan(&self.path, fields, first)?;
                let source = GroupSource::Ipc(plan);
                Ok(FilePlan::Groups(GroupPlan { source, columns }))
            }
            FileKind::Text(file) | FileKind::Stream(file, _) => {
                file.plan(&self.path, fields, first).map(FilePlan::Text)
            }
        }
    }

    /// Whether the file has a column of this name.
    pub(crate) fn has_column(&self, name: &str) -> bool {
        match &self.kind {
            FileKind::Parquet(file) => file.has_column(name),
            FileKind::Ipc(file) => file.has_column(name),
            FileKind::Text(file) | FileKind::Stream(file, _) => {
                file.columns.iter().any(|column| column == name)
            }
        }
    }

    /// Number of rows, where the file says it.
    pub(crate) fn rows(&self) -> Option<u64> {
        match &self.kind {
            FileKind::Parquet(file) => Some(file.groups.iter().sum()),
            FileKind::Ipc(file) => Some(file.groups.iter().sum()),
            FileKind::Text(file) if !file.has_rows => Some(0),
            _ => None,
        }
    }

    /// How rows are written, of a file of text.
    pub(crate) fn text_settings(&self) -> Option<&TextSettings> {
        match &self.kind {
            FileKind::Text(file) | FileKind::Stream(file, _) => Some(&file.settings),
            FileKind::Parquet(_) | FileKind::Ipc(_) => None,
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
            FileKind::Parquet(_) | FileKind::Ipc(_) => unreachable!("row groups are not text"),
        }
    }

    fn units(&self, file: usize) -> Vec<Unit> {
        match &self.kind {
            FileKind::Parquet(parquet) => groups(file, &parquet.groups),
            FileKind::Ipc(ipc) => groups(file, &ipc.groups),
            FileKind::Text(text) | FileKind::Stream(text, _) => {
                text.has_rows.then_some(Unit { file, kind: UnitKind::Text }).into_iter().collect()
            }
        }
    }
}

/// Row groups of a file that have rows.
fn groups(file: usize, groups: &[u64]) -> Vec<Unit> {
    let mut rows_before = 0;
    let mut units = Vec::with_capacity(groups.len());
    for (group, &rows) in groups.iter().enumerate() {
        if rows > 0 {
            units.push(Unit { file, kind: UnitKind::RowGroup { group, rows_before, rows } });
        }
        rows_before += rows;
    }
    units
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
        Ok(Self {
            files: files.clone(),
            plans,
            fields,
            units,
            rules,
            pickers: vec![Picker::default(); files.len()],
            rejects: Arc::default(),
            root: PathBuf::new(),
            counts: Arc::default(),
        })
    }

    /// The pass leaves rows out, in this epoch, and notes the bad ones.
    pub(crate) fn leave_out(
        &mut self,
        policy: &RowPolicy,
        epoch: u64,
        rejects: &Arc<RejectLog>,
        root: &Path,
    ) {
        let label = policy.thinning.negatives.map(|negatives| Slot::Label(negatives.label));
        let field = label.and_then(|slot| self.fields.iter().position(|f| f.slot == slot));
        self.pickers =
            (0..self.files.len()).map(|file| policy.of_file(file, epoch, field)).collect();
        self.rejects = rejects.clone();
        self.root = root.to_owned();
    }

    /// Bad rows that the pass may leave out.
    pub(crate) fn max_bad(&self) -> u64 {
        self.pickers.first().map_or(0, |picker| picker.max_bad)
    }

    /// Notes a bad row.
    pub(crate) fn reject(&self, file: usize, error: &ReaderError, line: Option<&[u8]>) {
        self.counts.left_out(error);
        let path = &self.files[file].path;
        let name = path.strip_prefix(&self.root).unwrap_or(path).to_string_lossy();
        self.rejects.add(file, &name, error, line);
    }

    /// The error of a pass with more bad rows than it may have.
    pub(crate) fn too_many_bad_rows(&self) -> ReaderError {
        ReaderError::TooManyBadRows { limit: self.max_bad(), examples: self.rejects.examples() }
    }

    /// Whether rows come from a stream, which may make a reader wait.
    pub(crate) fn is_stream(&self) -> bool {
        self.files.iter().any(|file| matches!(file.kind, FileKind::Stream(..)))
    }
}
