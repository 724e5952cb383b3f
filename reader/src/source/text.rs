//! The implementation of `Source` for text files and text streams.

use std::path::Path;
use std::sync::Arc;

use super::{FilePlan, Source, Unit};
use crate::error::Result;
use crate::field::Field;
use crate::text::{OtherColumns, TextFile, TextPlan};

impl Source for TextFile {
    fn path(&self) -> &Path {
        self.path()
    }

    fn columns(&self) -> Vec<&str> {
        self.columns().iter().map(String::as_str).collect()
    }

    fn rows(&self) -> Option<u64> {
        (!self.has_rows() && !self.is_stream()).then_some(0)
    }

    fn units(&self, file: usize) -> Vec<Unit> {
        let unit = Unit { file, group: 0, rows_before: 0, rows: 0 };
        self.has_rows().then_some(unit).into_iter().collect()
    }

    fn plan(
        self: Arc<Self>,
        fields: &[Field],
        first: Option<&Path>,
        others: OtherColumns,
    ) -> Result<FilePlan> {
        let rows = self.row_plan(fields, first, others)?;
        Ok(FilePlan::Text(Arc::new(TextPlan { file: self, rows })))
    }

    fn text(&self) -> Option<&TextFile> {
        Some(self)
    }
}
