//! The format of JSON lines: each line holds one object, and the keys of the objects are the
//! columns.
//!
//! The visitors of serde write the values of a line directly into a flat row. This avoids a tree of
//! values and shows which keys are missing. The value of a key that no field reads is skipped
//! without conversion.

mod cell;
mod row;

use std::collections::HashMap;

pub use row::{JsonRow, JsonValue};

use super::decode::{Decoding, OtherColumns, RowPlan, TextBlock};
use super::line_rows::{LinePlan, LineRows, decode_line};
use super::lines::read_some;
use super::rows::{BadRow, Problem};
use super::settings::{Grammar, TextSettings};
use crate::block::Column;
use crate::field::Field;
use cell::JsonCell;

/// The plan for JSON lines: the keys that are decoded, and their fields.
#[derive(Debug)]
pub(crate) struct JsonPlan {
    keys: JsonKeys,
    /// The number of the key that each field reads.
    key_of: Vec<usize>,
}

impl JsonPlan {
    /// Returns the plan that decodes the fields. `others` is the rule for keys that no field reads.
    pub(crate) fn new(fields: &[Field], others: OtherColumns) -> Self {
        let mut keys =
            JsonKeys { refuses_others: others == OtherColumns::Refuse, ..JsonKeys::default() };
        let key_of = fields.iter().map(|field| keys.add(&field.column)).collect();
        Self { keys, key_of }
    }

    /// Parses a text that holds one object, and appends the values of the fields to the columns.
    /// The memory of `row` is reused for the next text.
    ///
    /// # Errors
    /// Returns the problem if the text is bad. In this case, some of the columns may already hold
    /// the row.
    #[inline]
    pub(crate) fn append<'a>(
        &self,
        row: &mut JsonRow<'a>,
        text: &'a [u8],
        settings: &TextSettings,
        columns: &mut [Column],
        fields: &[Field],
    ) -> Result<(), Problem> {
        decode_line(self, row, text, settings, columns, fields)
    }
}

impl RowPlan for JsonPlan {
    fn decode(&self, task: &Decoding<'_>) -> Result<TextBlock, BadRow> {
        let rows = LineRows::new(self, &task.chunk.bytes, task.settings);
        task.run(rows, 8 * task.fields.len())
    }
}

impl LinePlan for JsonPlan {
    type Row<'a> = JsonRow<'a>;
    type Cell<'a> = JsonCell<'a>;

    #[inline]
    fn read<'a>(&self, row: &mut JsonRow<'a>, line: &'a [u8]) -> Result<(), String> {
        row.read(line, &self.keys)
    }

    #[inline]
    fn cell<'a>(
        &'a self,
        row: &'a JsonRow<'_>,
        field: usize,
        settings: &'a TextSettings,
    ) -> JsonCell<'a> {
        JsonCell { value: row.value(self.key_of[field]), row, settings }
    }
}

/// The keys of objects whose values are read. The keys are numbered from 0.
#[derive(Clone, Debug, Default)]
pub struct JsonKeys {
    names: Vec<String>,
    numbers: HashMap<String, usize>,
    /// Whether an object is refused if it has a key outside this set.
    refuses_others: bool,
}

impl JsonKeys {
    /// Returns the number of a key. Adds the key with the next number if it is new.
    pub fn add(&mut self, name: &str) -> usize {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), self.names.len() - 1);
        self.names.len() - 1
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns the name of the key with this number.
    pub fn name(&self, number: usize) -> &str {
        &self.names[number]
    }

    /// Returns the number of a key, or `None` if the key has no number. The number `guess` is tried
    /// first, because the keys of most lines have the same order.
    #[inline]
    fn find(&self, name: &str, guess: usize) -> Option<usize> {
        if self.names.get(guess).is_some_and(|known| known == name) {
            return Some(guess);
        }
        self.numbers.get(name).copied()
    }
}

/// Returns the keys of all objects in a text, in the order in which they first appear. A line that
/// cannot be read is ignored if any other line can be read.
///
/// # Errors
/// Returns the problem of the first line if none of the lines can be read.
pub(super) fn columns(text: &[u8]) -> Result<Vec<String>, String> {
    let mut keys = JsonKeys::default();
    read_some(Grammar::Json, text, |line| row::keys_of(line, &mut keys))?;
    Ok(keys.names)
}
