//! The settings by which the text files of a dataset are read.

use std::sync::Arc;

use super::records::Dialect;
use crate::config::{DataConfig, Decimal};
use crate::format::TextFormat;

/// The grammar of the rows of a text file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grammar {
    /// Records of cells: CSV and TSV.
    Cells(Dialect),
    /// Lines with one JSON object each.
    Json,
    /// Lines with one sparse vector each: libsvm, libfm and libffm.
    Svm,
}

/// The settings by which the text files of a dataset are read.
#[derive(Clone, Debug)]
pub(crate) struct TextSettings {
    pub(crate) grammar: Grammar,
    pub(crate) null: Arc<Vec<Vec<u8>>>,
    pub(crate) list_separator: u8,
    pub(crate) decimal: Decimal,
}

impl TextSettings {
    /// Returns the settings of a job for files of a format.
    pub(crate) fn new(config: &DataConfig, format: TextFormat) -> Self {
        Self {
            grammar: match format {
                TextFormat::Csv | TextFormat::Tsv => Grammar::Cells(Dialect {
                    delimiter: config.delimiter_for(format),
                    quote: config.quote.byte(),
                }),
                TextFormat::Json => Grammar::Json,
                TextFormat::Svm => Grammar::Svm,
            },
            null: Arc::new(config.null.iter().map(|text| text.clone().into_bytes()).collect()),
            list_separator: config.list_separator.byte(),
            decimal: config.decimal,
        }
    }

    /// Returns whether a cell stands for a missing value: it is empty or one of the null markers.
    #[inline]
    pub(crate) fn is_missing(&self, cell: &[u8]) -> bool {
        cell.is_empty() || self.null.iter().any(|marker| marker == cell)
    }
}
