//! The parser of a line of libsvm or libffm, which finds the label, the query and the entries.

use crate::value;
use zillion_feature::raw_value::{parse_f64, parse_i64, parse_u64};

pub(super) const LABEL: &str = "label";
pub(super) const QUERY: &str = "qid";
pub(super) const FEATURES: &str = "features";
pub(super) const FIELD: &str = "field_";

/// A column of a libsvm or libffm file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SvmColumn {
    /// The label of the row, in column `label`.
    Label,
    /// The query or group of the row, in column `qid`.
    Query,
    /// The sparse vector of libsvm, in column `features`.
    Features,
    /// The part of the sparse vector that belongs to one field of libffm, in a column such as
    /// `field_0`.
    Field(u32),
}

impl SvmColumn {
    /// Returns the column with this name, or `None` if the formats have no such column.
    pub fn of(column: &str) -> Option<Self> {
        Some(match column {
            LABEL => Self::Label,
            QUERY => Self::Query,
            FEATURES => Self::Features,
            other => Self::Field(other.strip_prefix(FIELD)?.parse().ok()?),
        })
    }
}

/// One entry of a sparse vector.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SvmEntry<'a> {
    /// The number of the field in libffm; `None` in libsvm.
    pub field: Option<u32>,
    /// The text of the index, which is a whole number.
    pub index: &'a [u8],
    /// The value, which is finite.
    pub value: f32,
}

/// The parts of a parsed row. Its memory is reused for the next row.
#[derive(Clone, Debug, Default)]
pub struct SvmRow<'a> {
    /// The text of the label; empty if the row has no label.
    pub label: &'a [u8],
    /// The text of the query, or `None` if the row has no query.
    pub query: Option<&'a [u8]>,
    /// The entries of all fields.
    pub entries: Vec<SvmEntry<'a>>,
}

impl<'a> SvmRow<'a> {
    /// Parses a line.
    ///
    /// # Errors
    /// Returns a message with the problem and the remedy if the line does not follow the grammar.
    pub fn read(&mut self, line: &'a [u8]) -> Result<(), String> {
        let line = match memchr::memchr(b'#', line) {
            Some(comment) => &line[..comment],
            None => line,
        };
        (self.label, self.query) = (&[], None);
        self.entries.clear();
        let words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        for (at, word) in words.enumerate() {
            match memchr::memchr(b':', word) {
                None if at == 0 => self.label = word,
                None => return Err(not_an_entry(word)),
                Some(3) if self.entries.is_empty() && word.starts_with(b"qid") => {
                    self.query = Some(&word[4..]);
                }
                Some(colon) => {
                    let entry = SvmEntry::read(word, colon).ok_or_else(|| not_an_entry(word))?;
                    self.entries.push(entry);
                }
            }
        }
        Ok(())
    }

    /// Returns the entries of the row that belong to a column.
    pub fn entries_of(&self, read: SvmColumn) -> impl Iterator<Item = &SvmEntry<'a>> {
        let field = match read {
            SvmColumn::Field(number) => Some(number),
            _ => None,
        };
        self.entries.iter().filter(move |entry| entry.field == field)
    }
}

impl<'a> SvmEntry<'a> {
    #[inline]
    fn read(word: &'a [u8], colon: usize) -> Option<Self> {
        let (first, rest) = (&word[..colon], &word[colon + 1..]);
        let (field, index, value) = match memchr::memchr(b':', rest) {
            Some(second) => {
                let number = parse_u64(first).ok().and_then(|n| u32::try_from(n).ok())?;
                (Some(number), &rest[..second], &rest[second + 1..])
            }
            None => (None, first, rest),
        };
        let value = parse_f64(value).ok()? as f32;
        let whole = parse_i64(index).is_ok() || parse_u64(index).is_ok();
        (whole && value.is_finite()).then_some(Self { field, index, value })
    }
}

#[cold]
fn not_an_entry(word: &[u8]) -> String {
    format!(
        "\"{}\" is not an entry; write `index:value` or `field:index:value` with whole numbers and a finite value",
        value::shorten(word)
    )
}
