//! The schemas of the files of a layer: their columns and their metadata.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema};

use super::weights::WeightFormat;

/// Returns the columns of a part whose weights have this format.
pub(super) fn part_fields(format: &WeightFormat, is_sparse: bool) -> Vec<Field> {
    let mut fields = vec![Field::new("key", DataType::UInt64, false)];
    fields.extend(format.fields(is_sparse));
    fields.push(Field::new("count", DataType::UInt32, false));
    fields.push(Field::new("tombstone", DataType::UInt8, false));
    fields
}

/// Returns the columns of the directory.
pub(super) fn directory_fields() -> Vec<Field> {
    vec![Field::new("start", DataType::UInt32, false)]
}

/// Returns a text for the metadata of a part: its position among the parts of its table, and
/// whether its rows are full or narrow.
pub(super) fn part_label(part: usize, parts: usize, is_narrow: bool) -> String {
    format!("{part} of {parts}{}", if is_narrow { " narrow" } else { "" })
}

/// Returns the schema of a file of a layer.
pub(super) fn schema(what: &str, format: &str, fields: Vec<Field>) -> Arc<Schema> {
    let entries = [("zillion.format", format), ("zillion.layer", what)];
    let metadata = entries.map(|(key, value)| (key.to_owned(), value.to_owned()));
    Arc::new(Schema::new(fields).with_metadata(std::collections::HashMap::from(metadata)))
}
