//! The settings that determine how text files are decoded.

use super::records::Dialect;
use crate::arrays::TextRules;
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

/// The settings that determine how text files are decoded.
#[derive(Clone, Debug)]
pub(crate) struct TextSettings {
    pub(crate) grammar: Grammar,
    pub(crate) rules: TextRules,
    pub(crate) decimal: Decimal,
}

impl TextSettings {
    /// Returns the settings for the files of one format, as the `[data]` section of a job sets
    /// them.
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
            rules: TextRules::new(config),
            decimal: config.decimal,
        }
    }
}
