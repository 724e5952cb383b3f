//! The plan by which the fields of a pass are decoded from one text file.

use std::sync::Arc;

use super::chunks::Chunk;
use super::count::count_rows;
use super::decode::{Decoding, RowPlan, TextBlock};
use super::file::TextFile;
use super::rows::BadRow;

use crate::field::Field;
use crate::policy::Picker;

/// A text file, with the plan that decodes its rows.
#[derive(Debug)]
pub(crate) struct TextPlan {
    pub(crate) file: Arc<TextFile>,
    pub(crate) rows: Box<dyn RowPlan>,
}

impl TextPlan {
    /// Returns the number of rows of a chunk.
    pub(crate) fn count_rows(&self, chunk: &Chunk) -> usize {
        count_rows(chunk, self.file.grammar())
    }

    /// Decodes a chunk without its first `skip` rows. `first` is the index in the file of the
    /// chunk's first row; it is used only if rows are sampled.
    ///
    /// # Errors
    /// Returns the first bad row that may not be left out.
    pub(crate) fn decode(
        &self,
        chunk: &Chunk,
        fields: &[Field],
        skip: usize,
        first: u64,
        picker: &Picker,
    ) -> Result<TextBlock, BadRow> {
        let settings = self.file.settings();
        self.rows.decode(&Decoding { chunk, fields, skip, first, picker, settings })
    }
}
