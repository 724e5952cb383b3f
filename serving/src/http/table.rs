//! The reader of rows and columns in JSON, which fills raw columns value by value and keeps the
//! place of a problem.
//!
//! serde's derived readers were rejected: they build a tree of JSON values first, which doubles the
//! memory, and their errors do not name the input and the row.
//!
//! # Invariants
//! Between two rows every column has as many rows as the table.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use zillion_feature::{RawColumn, RawValue, RawValues};

use super::values::{Meter, Nesting, Seed, Values};
use crate::error::ServeError;
use crate::tensor::{MOST_INPUTS, MOST_NAME_BYTES, too_many_inputs};
use crate::text::shorten;

/// The values that a row may hold.
const IN_ROW: Nesting = Nesting { lists: 1, base64: true };

/// The columns of a request while they are being read.
#[derive(Debug, Default)]
pub(super) struct Table<'a> {
    columns: Vec<Column<'a>>,
    /// The place of each named column in `columns`.
    places: HashMap<Cow<'a, str>, usize>,
    rows: usize,
    /// Whether the rows have no names, so that each row is the value of the one input.
    is_nameless: bool,
}

/// The values of one input that have been read so far.
#[derive(Debug)]
pub(super) struct Column<'a> {
    pub(super) name: Cow<'a, str>,
    values: Vec<RawValue<'a>>,
    /// The number of values of each row, from the first list on.
    lengths: Option<Vec<usize>>,
    rows: usize,
    /// The first row that has a text outside of a list.
    pub(super) bare_text: Option<usize>,
}

/// The place and the reason of a problem, kept beside the parser's own error, and the meter of the
/// request, because a limit that it exceeds is a problem too.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) meter: Meter,
    /// The reason that replaces the parser's reason.
    pub(super) reason: Option<String>,
    /// The name of the input.
    pub(super) input: Option<String>,
    /// The part of the request, and the row in it if it has rows.
    pub(super) part: Option<(&'static str, Option<usize>)>,
}

impl<'a> Column<'a> {
    fn new(name: Cow<'a, str>) -> Self {
        Self { name, values: Vec::new(), lengths: None, rows: 0, bare_text: None }
    }

    fn end_row(&mut self, before: usize, is_list: bool) {
        let count = self.values.len() - before;
        if is_list && self.lengths.is_none() {
            self.lengths = Some(vec![1; self.rows]);
        }
        if let Some(lengths) = &mut self.lengths {
            lengths.push(count);
        }
        if !is_list && self.bare_text.is_none() {
            let is_text = matches!(self.values.last(), Some(RawValue::Text(_)));
            self.bare_text = is_text.then_some(self.rows);
        }
        self.rows += 1;
    }

    /// Returns the column in the form of the encoder.
    pub(super) fn finish(self, is_shared: bool) -> RawColumn<'a> {
        RawColumn { values: RawValues::Any(self.values), lengths: self.lengths, is_shared }
    }
}

impl<'a> Table<'a> {
    /// Returns the number of rows.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Returns whether the one column has no name.
    pub(super) fn is_nameless(&self) -> bool {
        self.is_nameless
    }

    /// Returns the columns, in the order of their appearance.
    pub(super) fn into_columns(self) -> Vec<Column<'a>> {
        self.columns
    }

    /// Returns the place of the column of a name, and creates the column if there is none. `guess`
    /// is tried first, because most rows have the same order.
    fn place(&mut self, name: Cow<'a, str>, guess: usize) -> usize {
        if self.columns.get(guess).is_some_and(|column| column.name == name) {
            return guess;
        }
        if let Some(&place) = self.places.get(&name) {
            return place;
        }
        self.places.insert(name.clone(), self.columns.len());
        self.columns.push(Column::new(name));
        self.columns.len() - 1
    }
}

impl Trouble {
    /// Creates the trouble of a request that has none yet.
    pub(super) fn new(meter: Meter) -> Self {
        Self { meter, reason: None, input: None, part: None }
    }

    /// Returns the error of a body that is not `request`: the limit that it exceeds, or the line,
    /// the column and the place of what cannot be read.
    pub(super) fn describe(&mut self, error: &serde_json::Error, request: &str) -> ServeError {
        if let Some(exceeded) = self.meter.exceeded.take() {
            return exceeded;
        }
        let reason = match &self.reason {
            Some(reason) => reason.clone(),
            // The parser's own words come before its line and column.
            None => error.to_string().split(" at line ").next().unwrap_or_default().to_owned(),
        };
        ServeError::Malformed(format!(
            "the body is not {request}: line {}, column {}{self}: {reason}",
            error.line(),
            error.column(),
        ))
    }

    /// Checks a column that was just added to `columns` columns.
    fn check_new<E: Error>(&mut self, columns: usize, name: &str) -> Result<(), E> {
        if columns >= MOST_INPUTS {
            return Err(self.refuse(too_many_inputs().to_string()));
        }
        if name.len() > MOST_NAME_BYTES {
            let reason = format!(
                "the name of an input has more than {MOST_NAME_BYTES} bytes; send only the inputs \
                 of the model"
            );
            return Err(self.refuse(reason));
        }
        Ok(())
    }

    /// Keeps a reason of this module, and returns the error that ends the parser.
    fn refuse<E: Error>(&mut self, reason: impl Into<String>) -> E {
        let reason = reason.into();
        self.reason.get_or_insert_with(|| reason.clone());
        E::custom(reason)
    }

    /// Records the place of an error that is being returned.
    fn at(&mut self, input: &str, part: Option<(&'static str, Option<usize>)>) {
        self.input.get_or_insert_with(|| shorten(input).into_owned());
        self.part = self.part.or(part);
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(input) = &self.input {
            write!(f, ", input `{input}`")?;
        }
        match self.part {
            Some((part, Some(row))) => write!(f, ", row {row} of `{part}`"),
            Some((part, None)) => write!(f, ", `{part}`"),
            None => Ok(()),
        }
    }
}

/// A reader of a list of rows.
pub(super) struct RowsVisitor<'s, 'a> {
    pub(super) table: &'s mut Table<'a>,
    pub(super) trouble: &'s mut Trouble,
    /// The key of the list.
    pub(super) list: &'static str,
    /// Whether rows without names are accepted.
    pub(super) nameless: bool,
}

impl<'de: 'a, 'a> Visitor<'de> for RowsVisitor<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of rows")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let Self { table, trouble, list, nameless } = self;
        loop {
            let row = table.rows;
            let part = (list, Some(row));
            let seed = RowVisitor { table, trouble, part, nameless };
            match seq.next_element_seed(Seed(seed)) {
                Ok(Some(())) => table.rows += 1,
                Ok(None) => return Ok(()),
                Err(error) => {
                    trouble.part.get_or_insert((list, Some(row)));
                    return Err(error);
                }
            }
        }
    }
}

/// A reader of one row: an object, or the value of the one input.
pub(super) struct RowVisitor<'s, 'a> {
    pub(super) table: &'s mut Table<'a>,
    pub(super) trouble: &'s mut Trouble,
    /// The place of the row in the request.
    pub(super) part: (&'static str, Option<usize>),
    pub(super) nameless: bool,
}

impl<'a> RowVisitor<'_, 'a> {
    /// Adds a row without names. `read` puts the value of the row into the only column.
    fn add_nameless<'de: 'a, E: Error>(
        self,
        read: impl FnOnce(Values<'_, 'a>) -> Result<bool, E>,
    ) -> Result<(), E> {
        let Self { table, trouble, nameless, .. } = self;
        trouble.meter.take_row(table.rows)?;
        if !nameless {
            return Err(trouble
                .refuse("the row is not an object; send an object with a value for each input"));
        }
        if table.rows == 0 {
            table.is_nameless = true;
            table.columns.push(Column::new(Cow::Borrowed("")));
        }
        if !table.is_nameless {
            return Err(trouble.refuse(
                "the row is not an object, but earlier rows are objects; send all rows in the \
                 same form",
            ));
        }
        let column = &mut table.columns[0];
        let before = column.values.len();
        let (into, meter) = (&mut column.values, &mut trouble.meter);
        let is_list = read(Values { into, nesting: IN_ROW, meter })?;
        column.end_row(before, is_list);
        Ok(())
    }
}

impl<'de: 'a, 'a> Visitor<'de> for RowVisitor<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a value for each input")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { table, trouble, part, .. } = self;
        if table.is_nameless {
            return Err(trouble.refuse(
                "the row is an object, but earlier rows are not; send all rows in the same form",
            ));
        }
        let row = table.rows;
        trouble.meter.take_row(row)?;
        let place = Some(part);
        let (mut guess, mut count) = (0, 0);
        while let Some(name) = map.next_key_seed(Seed(Name))? {
            let known = table.columns.len();
            let at = table.place(name, guess);
            let column = &mut table.columns[at];
            if at == known {
                trouble.check_new(known, &column.name)?;
            }
            if column.rows > row {
                trouble.at(&column.name, place);
                return Err(trouble.refuse("the key appears twice"));
            }
            if at == known && row > 0 {
                trouble.at(&column.name, place);
                return Err(trouble.refuse(UNEVEN));
            }
            let before = column.values.len();
            let (into, meter) = (&mut column.values, &mut trouble.meter);
            match map.next_value_seed(Seed(Values { into, nesting: IN_ROW, meter })) {
                Ok(is_list) => column.end_row(before, is_list),
                Err(error) => {
                    trouble.at(&column.name, place);
                    return Err(error);
                }
            }
            (guess, count) = (at + 1, count + 1);
        }
        if count < table.columns.len() {
            let missing = table.columns.iter().find(|column| column.rows == row);
            trouble.at(missing.map_or("", |column| &column.name), place);
            return Err(trouble.refuse(UNEVEN));
        }
        Ok(())
    }

    fn visit_bool<E: Error>(self, x: bool) -> Result<(), E> {
        self.add_nameless(|values| values.visit_bool(x))
    }

    fn visit_i64<E: Error>(self, x: i64) -> Result<(), E> {
        self.add_nameless(|values| values.visit_i64(x))
    }

    fn visit_u64<E: Error>(self, x: u64) -> Result<(), E> {
        self.add_nameless(|values| values.visit_u64(x))
    }

    fn visit_f64<E: Error>(self, x: f64) -> Result<(), E> {
        self.add_nameless(|values| values.visit_f64(x))
    }

    fn visit_str<E: Error>(self, x: &str) -> Result<(), E> {
        self.add_nameless(|values| values.visit_str(x))
    }

    fn visit_borrowed_str<E: Error>(self, x: &'de str) -> Result<(), E> {
        self.add_nameless(|values| values.visit_borrowed_str(x))
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.add_nameless(|values| values.visit_unit())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<(), A::Error> {
        self.add_nameless(|values| values.visit_seq(list))
    }
}

const UNEVEN: &str = "the row does not have the same inputs as the rows before it; send the same \
                      inputs in every row, with `null` for a missing value";

/// A reader of columns: an object of lists, or the list of the one input.
pub(super) struct ColumnsVisitor<'s, 'a> {
    pub(super) table: &'s mut Table<'a>,
    pub(super) trouble: &'s mut Trouble,
}

impl<'de: 'a, 'a> Visitor<'de> for ColumnsVisitor<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a list for each input")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<(), A::Error> {
        let Self { table, trouble } = self;
        let mut column = Column::new(Cow::Borrowed(""));
        ColumnVisitor { column: &mut column, trouble }.visit_seq(seq)?;
        table.is_nameless = true;
        table.rows = column.rows;
        table.columns.push(column);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { table, trouble } = self;
        while let Some(name) = map.next_key_seed(Seed(Name))? {
            let known = table.columns.len();
            let at = table.place(name, known);
            let column = &mut table.columns[at];
            if at < known {
                trouble.at(&column.name, None);
                return Err(trouble.refuse("the key appears twice"));
            }
            trouble.check_new(known, &column.name)?;
            if let Err(error) = map.next_value_seed(Seed(ColumnVisitor { column, trouble })) {
                trouble.at(&column.name, None);
                return Err(error);
            }
            let rows = column.rows;
            if at == 0 {
                table.rows = rows;
            } else if rows != table.rows {
                let others = table.rows;
                let first = shorten(&table.columns[0].name);
                let reason = format!(
                    "the input has {rows} rows, but input `{first}` has {others}; send one value \
                     for each row"
                );
                trouble.at(&table.columns[at].name, None);
                return Err(trouble.refuse(reason));
            }
        }
        Ok(())
    }
}

/// A reader of the rows of one column.
struct ColumnVisitor<'s, 'a> {
    column: &'s mut Column<'a>,
    trouble: &'s mut Trouble,
}

impl<'de: 'a, 'a> Visitor<'de> for ColumnVisitor<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list with a value for each row")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let Self { column, trouble } = self;
        loop {
            let before = column.values.len();
            let (into, meter) = (&mut column.values, &mut trouble.meter);
            match seq.next_element_seed(Seed(Values { into, nesting: IN_ROW, meter })) {
                Ok(Some(is_list)) => {
                    trouble.meter.take_row(column.rows)?;
                    column.end_row(before, is_list);
                }
                Ok(None) => return Ok(()),
                Err(error) => {
                    trouble.part.get_or_insert(("inputs", Some(column.rows)));
                    return Err(error);
                }
            }
        }
    }
}

/// A reader of a key, which borrows the key from the body if possible.
pub(super) struct Name;

impl<'de> Visitor<'de> for Name {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }
}
