//! The counting of values in formats in which each line is one row: JSON lines and libsvm.

use std::path::Path;

use zillion_feature::FeatureKey;
use zillion_reader::{Near, Place, ReaderError, Result};

use super::Reading;
use super::tally::Tally;
use zillion_reader::text::{
    Grammar, JsonKeys, JsonRow, JsonValue, Lines, SvmColumn, SvmRow, TextFile,
};

/// The value of [`super::ColumnProfile::data_type`] for the label column of libsvm files.
pub(crate) const SVM_LABEL: &str = "libsvm label";
pub(crate) const SVM_QUERY: &str = "libsvm query";
pub(crate) const SVM_VECTOR: &str = "libsvm vector";

/// Returns the type of a column of a text file, which is known before the values are read.
pub(super) fn type_name(grammar: Grammar, column: &str) -> String {
    let name = match (grammar, SvmColumn::of(column)) {
        (Grammar::Cells(_), _) => "text",
        (Grammar::Json, _) => "json",
        (Grammar::Svm, Some(SvmColumn::Label)) => SVM_LABEL,
        (Grammar::Svm, Some(SvmColumn::Query)) => SVM_QUERY,
        (Grammar::Svm, _) => SVM_VECTOR,
    };
    name.to_owned()
}

/// A parsed line of JSON or libsvm.
enum Row<'a> {
    Json(JsonRow<'a>),
    Svm(SvmRow<'a>),
}

impl Reading<'_> {
    /// Adds the rows of a file with JSON lines or libsvm.
    pub(super) fn lines(&mut self, file: &TextFile, path: &Path) -> Result<()> {
        let grammar = file.grammar();
        let mut keys = JsonKeys::default();
        for column in file.columns() {
            keys.add(column);
        }
        let reads: Vec<Option<SvmColumn>> =
            file.columns().iter().map(|name| SvmColumn::of(name)).collect();
        let is_missing = |text: &[u8]| file.is_missing(text);
        let mut chunks = file.chunks()?;
        let mut rows_of_file = 0;
        while let Some(chunk) = chunks.next_chunk()? {
            let mut lines = Lines::new(grammar, &chunk.bytes);
            let mut rows = Vec::new();
            let left = self.left();
            while let Some(line) = lines.advance() {
                if rows.len() == left {
                    self.complete = false;
                    break;
                }
                let row = match grammar {
                    Grammar::Svm => {
                        let mut row = SvmRow::default();
                        row.read(line).map(|()| Row::Svm(row))
                    }
                    _ => {
                        let mut row = JsonRow::default();
                        row.read(line, &keys).map(|()| Row::Json(row))
                    }
                };
                rows.push(row.map_err(|problem| ReaderError::Record {
                    place: Place {
                        row: rows_of_file + rows.len() as u64 + 1,
                        near: Near::Byte(chunk.offset + lines.start() as u64),
                    },
                    problem,
                    path: path.to_owned(),
                })?);
            }
            self.workers.for_each_mut(&mut self.tallies, |at, tally| {
                for row in &rows {
                    match row {
                        Row::Json(row) => add_json(tally, row, row.value(at), &is_missing),
                        Row::Svm(row) => add_svm(tally, row, reads[at], &is_missing),
                    }
                }
            });
            self.rows += rows.len() as u64;
            rows_of_file += rows.len() as u64;
            if self.rows >= self.limit {
                self.complete = self.complete && !chunks.has_more()?;
                break;
            }
        }
        if grammar == Grammar::Json {
            for (name, tally) in self.types.iter_mut().zip(&self.tallies) {
                if tally.cells.list > 0 {
                    let [whole, text, other] = tally.item_kinds;
                    let of = match (whole, text) {
                        // The other items are floats as a rule; wrong ones are named when read.
                        (_, 0) if other > 0 => "float64",
                        (1.., 0) | (0, 0) => "int64",
                        (0, 1..) => "string",
                        _ => "several types",
                    };
                    *name = format!("list of {of}");
                }
            }
        }
        Ok(())
    }
}

fn add_json<'a>(
    tally: &mut Tally,
    row: &JsonRow<'a>,
    value: JsonValue<'a>,
    is_missing: &dyn Fn(&[u8]) -> bool,
) {
    match value {
        JsonValue::Missing => tally.missing(),
        JsonValue::Bool(flag) => tally.boolean(flag),
        JsonValue::Int(x) => tally.whole(x),
        JsonValue::UInt(x) => tally.beyond_i64(x),
        JsonValue::Float(x) => tally.json_float(x),
        // No feature can read an object.
        JsonValue::Object => tally.object(),
        JsonValue::Text(_) | JsonValue::Unescaped(..) => {
            let text = row.text(value).unwrap_or_default().as_bytes();
            if is_missing(text) { tally.missing() } else { tally.text(text) }
        }
        JsonValue::List(start, end) => {
            let items = row.items(start, end);
            let is_nested =
                |item: &JsonValue<'_>| matches!(item, JsonValue::Object | JsonValue::List(..));
            if items.iter().any(is_nested) {
                // No feature can read an object or a list in a list.
                return tally.object();
            }
            tally.list(items.len());
            for &item in items {
                match item {
                    JsonValue::Missing => {}
                    // Booleans are read as the ids 1 and 0.
                    JsonValue::Bool(flag) => {
                        tally.item_kinds[0] += 1;
                        tally.values.add(FeatureKey::from_i64(flag.into()), || flag.to_string());
                    }
                    JsonValue::Int(x) => {
                        tally.item_kinds[0] += 1;
                        tally.values.add(FeatureKey::from_i64(x), || x.to_string());
                    }
                    JsonValue::UInt(x) => {
                        tally.item_kinds[0] += 1;
                        tally.values.add(FeatureKey::from_u64(x), || x.to_string());
                    }
                    _ => match row.text(item) {
                        Some(text) => {
                            tally.item_kinds[1] += 1;
                            tally.text_item(text.as_bytes());
                        }
                        None => tally.item_kinds[2] += 1,
                    },
                }
            }
        }
    }
}

fn add_svm(
    tally: &mut Tally,
    row: &SvmRow<'_>,
    reads: Option<SvmColumn>,
    is_missing: &dyn Fn(&[u8]) -> bool,
) {
    let mut scalar = |text: &[u8]| match is_missing(text) {
        true => tally.missing(),
        false => tally.cell(text, b'.', &[]),
    };
    match reads {
        Some(SvmColumn::Label) => scalar(row.label),
        Some(SvmColumn::Query) => scalar(row.query.unwrap_or_default()),
        Some(reads) => {
            let entries: Vec<_> = row.entries_of(reads).collect();
            tally.list(entries.len());
            for entry in entries {
                tally.text_item(entry.index);
            }
        }
        None => {}
    }
}
