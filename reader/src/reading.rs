//! The state of one pass over the data, which all tasks of the pass share.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::arrays::TextRules;

use crate::counts::Counts;
use crate::error::{ReaderError, Result};
use crate::field::{Field, Slot};
use crate::policy::{Picker, RowPolicy};
use crate::rejects::RejectLog;
use crate::source::{DataFile, FilePlan, Unit};
use crate::text::OtherColumns;

/// The state of one pass over a list of files.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) files: Arc<Vec<DataFile>>,
    /// The plan for each file.
    pub(crate) plans: Vec<FilePlan>,
    pub(crate) fields: Vec<Field>,
    pub(crate) units: Vec<Unit>,
    pub(crate) rules: TextRules,
    /// The rules for the rows of each file.
    pub(crate) pickers: Vec<Picker>,
    /// The log of the bad rows that are left out.
    pub(crate) rejects: Arc<RejectLog>,
    /// The root folder of the data. The log of bad rows names files relative to this folder.
    pub(crate) root: PathBuf,
    pub(crate) counts: Arc<Counts>,
}

impl Reading {
    /// Returns the plan of a pass that decodes `fields` of every row.
    ///
    /// # Errors
    /// Returns an error if a file lacks the column of a field, or if the type of a column does not
    /// fit.
    pub(crate) fn new(
        files: &Arc<Vec<DataFile>>,
        fields: Vec<Field>,
        rules: TextRules,
        others: OtherColumns,
    ) -> Result<Self> {
        let mut plans = Vec::with_capacity(files.len());
        for (index, file) in files.iter().enumerate() {
            let first = (index > 0).then(|| files[0].path());
            plans.push(file.plan(&fields, first, others)?);
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

    /// Returns an error if no file has a row.
    pub(crate) fn refuse_empty(&self) -> Result<()> {
        match self.units.is_empty() {
            true => Err(DataFile::no_rows(&self.files)),
            false => Ok(()),
        }
    }

    /// Sets the rules by which the pass leaves out rows in an epoch, and the log for bad rows.
    pub(crate) fn leave_out(
        &mut self,
        policy: &RowPolicy,
        epoch: u64,
        rejects: &Arc<RejectLog>,
        root: &Path,
    ) {
        let label = policy.thinning.negatives.map(|(label, _)| Slot::Label(label));
        let field = label.and_then(|slot| self.fields.iter().position(|f| f.slot == slot));
        self.pickers =
            (0..self.files.len()).map(|file| policy.of_file(file, epoch, field)).collect();
        self.rejects = rejects.clone();
        self.root = root.to_owned();
    }

    /// Returns the number of bad rows that the pass may leave out.
    pub(crate) fn max_bad(&self) -> u64 {
        self.pickers.first().map_or(0, |picker| picker.max_bad)
    }

    /// Counts and logs a bad row.
    pub(crate) fn reject(&self, file: usize, error: &ReaderError, line: Option<&[u8]>) {
        self.counts.add_bad_row(error);
        let path = self.files[file].path();
        let name = path.strip_prefix(&self.root).unwrap_or(path).to_string_lossy();
        self.rejects.add(file, &name, error, line);
    }

    /// Returns the error for a pass that meets more bad rows than it may leave out.
    pub(crate) fn too_many_bad_rows(&self) -> ReaderError {
        ReaderError::TooManyBadRows { limit: self.max_bad(), examples: self.rejects.examples() }
    }

    /// Returns whether the rows come from a stream. Reading from a stream may block until more data
    /// arrives.
    pub(crate) fn is_stream(&self) -> bool {
        self.files.iter().any(|file| file.text().is_some_and(|text| text.is_stream()))
    }
}
