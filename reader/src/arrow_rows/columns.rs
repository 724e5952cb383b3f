//! The types of converted columns: the role that decodes each cell, and the array of the values.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use arrow_array::builder::{
    Float64Builder, Int64Builder, ListBuilder, StringBuilder, UInt8Builder, UInt64Builder,
};
use arrow_array::{ArrayRef, Float32Array, ListArray, StringArray};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field as ArrowField};
use zillion_feature::{RawType, RawValue};

use crate::block::{Column, Piece};
use crate::error::{ReaderError, Result};
use crate::field::{Field, Role, Slot};

/// The type of a column that a conversion makes from text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnType {
    /// Signed whole numbers of 64 bits.
    Int64,
    /// Unsigned whole numbers of 64 bits.
    Uint64,
    /// Floating-point numbers of 64 bits.
    Float,
    /// Texts, which are UTF-8.
    Text,
    /// The numbers 0 and 1, in any of the spellings that a label may have.
    Label,
    /// Lists of ids of this type.
    List(RawType),
    /// Lists of ids with a weight for each id (as in a sparse vector); such lists become two
    /// columns.
    Weighted(RawType),
}

impl ColumnType {
    /// Returns the type of a column with one id in each row.
    pub fn of_raw(raw: RawType) -> Self {
        match raw {
            RawType::I64 => Self::Int64,
            RawType::U64 => Self::Uint64,
            RawType::String => Self::Text,
        }
    }
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |raw: RawType| match raw {
            RawType::I64 => "int64",
            RawType::U64 => "uint64",
            RawType::String => "string",
        };
        match *self {
            Self::Int64 => f.write_str("int64"),
            Self::Uint64 => f.write_str("uint64"),
            Self::Float => f.write_str("float"),
            Self::Text => f.write_str("string"),
            Self::Label => f.write_str("label"),
            Self::List(raw) => write!(f, "list<{}>", of(raw)),
            Self::Weighted(raw) => write!(f, "weighted<{}>", of(raw)),
        }
    }
}

impl FromStr for ColumnType {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let raw = |text: &str| match text {
            "int64" => Some(RawType::I64),
            "uint64" => Some(RawType::U64),
            "string" => Some(RawType::String),
            _ => None,
        };
        let inner = |prefix: &str| raw(text.strip_prefix(prefix)?.strip_suffix('>')?);
        let lists = || inner("list<").map(Self::List);
        let plain = match text {
            "float" => Some(Self::Float),
            "label" => Some(Self::Label),
            _ => raw(text).map(Self::of_raw),
        };
        plain.or_else(lists).ok_or_else(|| {
            "a type is int64, uint64, float, string, label, list<int64>, list<uint64> or list<string>"
                .to_owned()
        })
    }
}

/// Returns the field that decodes a text column to a type.
pub(super) fn field(name: &str, of: ColumnType) -> Field {
    let role = match of {
        ColumnType::Int64 => Role::RawId { raw: RawType::I64 },
        ColumnType::Uint64 => Role::RawId { raw: RawType::U64 },
        ColumnType::Text => Role::Text,
        ColumnType::Float => Role::Number { needed: false },
        ColumnType::Label => Role::Label { optional: true, at_least: None },
        ColumnType::List(raw) => Role::RawIds { raw },
        ColumnType::Weighted(raw) => Role::WeightedIds { raw },
    };
    Field { used_by: format!("column `{name}`"), column: name.to_owned(), role, slot: Slot::Pass }
}

/// Returns the columns of the new file for one column of a text file.
pub(super) fn arrow_fields(name: &str, of: ColumnType) -> Vec<ArrowField> {
    let plain = |name: &str, of: DataType| ArrowField::new(name, of, true);
    let list = |name: &str, of: DataType| {
        let list = DataType::List(Arc::new(ArrowField::new_list_field(of, false)));
        ArrowField::new(name, list, false)
    };
    match of {
        ColumnType::Int64 => vec![plain(name, DataType::Int64)],
        ColumnType::Uint64 => vec![plain(name, DataType::UInt64)],
        ColumnType::Float => vec![plain(name, DataType::Float64)],
        ColumnType::Text => vec![plain(name, DataType::Utf8)],
        ColumnType::Label => vec![plain(name, DataType::UInt8)],
        ColumnType::List(raw) => vec![list(name, of_raw(raw))],
        ColumnType::Weighted(raw) => {
            vec![list(name, of_raw(raw)), list(&weights_of(name), DataType::Float32)]
        }
    }
}

/// Returns the name of the column that holds the weights of another column's lists.
pub(super) fn weights_of(name: &str) -> String {
    format!("{name}.weights")
}

fn of_raw(raw: RawType) -> DataType {
    match raw {
        RawType::I64 => DataType::Int64,
        RawType::U64 => DataType::UInt64,
        RawType::String => DataType::Utf8,
    }
}

/// Returns the values of one field of all pieces as the array or arrays of its type.
pub(super) fn array_of(pieces: &[Piece], field: usize, of: ColumnType) -> Result<Vec<ArrayRef>> {
    Ok(match of {
        ColumnType::Text => vec![texts(pieces, field)?],
        ColumnType::Int64 | ColumnType::Uint64 => {
            let mut values = Values::of(raw_of(of));
            for piece in pieces {
                let Column::Raws(own) = at(piece, field) else { return Err(defect(field)) };
                piece.part(own).iter().for_each(|value| values.push(value));
            }
            vec![values.finish()]
        }
        ColumnType::Float => {
            let mut builder = Float64Builder::new();
            for piece in pieces {
                let Column::Numbers(own) = at(piece, field) else { return Err(defect(field)) };
                // NaN stands for a missing value: any other NaN is refused where it is read.
                piece
                    .part(own)
                    .iter()
                    .for_each(|&x| builder.append_option((!x.is_nan()).then_some(x)));
            }
            vec![Arc::new(builder.finish())]
        }
        ColumnType::Label => {
            let mut builder = UInt8Builder::new();
            for piece in pieces {
                let Column::Labels { values, mask: Some(mask) } = at(piece, field) else {
                    return Err(defect(field));
                };
                for (&value, &there) in piece.part(values).iter().zip(piece.part(mask)) {
                    builder.append_option(there.then_some(u8::from(value == 1.0)));
                }
            }
            vec![Arc::new(builder.finish())]
        }
        ColumnType::List(raw) => {
            let mut lists = ListBuilder::new(Values::of(raw));
            for piece in pieces {
                let Column::RawLists { offsets, ids } = at(piece, field) else {
                    return Err(defect(field));
                };
                for ends in offsets[piece.start..=piece.start + piece.rows].windows(2) {
                    let own = &ids[ends[0] as usize..ends[1] as usize];
                    own.iter().for_each(|id| lists.values().push(id));
                    lists.append(true);
                }
            }
            vec![without_nulls(lists.finish())?]
        }
        ColumnType::Weighted(raw) => {
            let mut lists = ListBuilder::new(Values::of(raw));
            let mut all = Vec::new();
            for piece in pieces {
                let Column::WeightedLists { offsets, ids, weights } = at(piece, field) else {
                    return Err(defect(field));
                };
                for ends in offsets[piece.start..=piece.start + piece.rows].windows(2) {
                    let range = ends[0] as usize..ends[1] as usize;
                    ids[range.clone()].iter().for_each(|id| lists.values().push(id));
                    lists.append(true);
                    match weights {
                        Some(weights) => all.extend_from_slice(&weights[range]),
                        None => all.extend(range.map(|_| 1.0f32)),
                    }
                }
            }
            let lists = lists.finish();
            let item = Arc::new(ArrowField::new_list_field(DataType::Float32, false));
            let ends: OffsetBuffer<i32> = lists.offsets().clone();
            let weights = ListArray::try_new(item, ends, Arc::new(Float32Array::from(all)), None);
            vec![without_nulls(lists)?, Arc::new(weights.map_err(batch_error)?)]
        }
    })
}

fn at(piece: &Piece, field: usize) -> &Column {
    &piece.block.columns[field]
}

fn raw_of(of: ColumnType) -> RawType {
    if of == ColumnType::Uint64 { RawType::U64 } else { RawType::I64 }
}

/// Copies the texts of all pieces into one array; the bytes of each piece are copied at once.
fn texts(pieces: &[Piece], field: usize) -> Result<ArrayRef> {
    let (mut bytes, mut ends, mut there) = (Vec::new(), vec![0i32], Vec::new());
    for piece in pieces {
        let Column::Texts(own) = at(piece, field) else { return Err(defect(field)) };
        let (start, base) = (own.start(piece.start), bytes.len());
        bytes.extend_from_slice(&own.bytes[start..own.start(piece.start + piece.rows)]);
        ends.extend(piece.part(&own.ends).iter().map(|&end| (end - start + base) as i32));
        there.extend_from_slice(piece.part(&own.there));
    }
    // Arrow's offsets have 31 bits.
    if i32::try_from(bytes.len()).is_err() {
        return Err(ReaderError::BatchTooLarge { rows: there.len() });
    }
    let ends = ScalarBuffer::from(ends);
    let nulls = Some(NullBuffer::from(there)).filter(|nulls| nulls.null_count() > 0);
    let texts = StringArray::try_new(OffsetBuffer::new(ends), Buffer::from_vec(bytes), nulls);
    Ok(Arc::new(texts.map_err(batch_error)?))
}

/// Returns the list array with a type that says that its values are never null.
fn without_nulls(lists: ListArray) -> Result<ArrayRef> {
    let (field, offsets, values, _) = lists.into_parts();
    let item = Arc::new(ArrowField::new_list_field(field.data_type().clone(), false));
    let lists = ListArray::try_new(item, offsets, values, None).map_err(batch_error)?;
    Ok(Arc::new(lists))
}

/// Returns the error for rows that Arrow refuses as one record batch.
pub(super) fn batch_error(error: arrow_schema::ArrowError) -> ReaderError {
    ReaderError::Setting {
        problem: format!("the rows do not fit one record batch ({error}); lower the setting"),
        key: "group_rows".to_owned(),
    }
}

/// Panics because a column does not have the variant of its role: a defect of this crate.
fn defect(field: usize) -> ReaderError {
    unreachable!("field {field} was decoded into a column of another role")
}

/// The ids of one type before they become an array.
enum Values {
    Signed(Int64Builder),
    Unsigned(UInt64Builder),
    Texts(StringBuilder),
}

impl Values {
    fn of(raw: RawType) -> Self {
        match raw {
            RawType::I64 => Self::Signed(Int64Builder::new()),
            RawType::U64 => Self::Unsigned(UInt64Builder::new()),
            RawType::String => Self::Texts(StringBuilder::new()),
        }
    }

    /// Appends a value. A grammar returns each whole number in a type that fits it, and the
    /// declared type fits it too.
    #[inline]
    fn push(&mut self, value: &RawValue<'_>) {
        match (self, value) {
            (Self::Signed(b), RawValue::Int(x)) => b.append_value(*x),
            (Self::Signed(b), RawValue::Uint(x)) => b.append_option(i64::try_from(*x).ok()),
            (Self::Unsigned(b), RawValue::Uint(x)) => b.append_value(*x),
            (Self::Unsigned(b), RawValue::Int(x)) => b.append_option(u64::try_from(*x).ok()),
            (Self::Texts(b), RawValue::Text(text)) => b.append_value(text),
            (Self::Signed(b), _) => b.append_null(),
            (Self::Unsigned(b), _) => b.append_null(),
            (Self::Texts(b), _) => b.append_null(),
        }
    }

    fn finish(mut self) -> ArrayRef {
        arrow_array::builder::ArrayBuilder::finish(&mut self)
    }
}

/// The implementation that lets the builder of lists hold the values.
impl arrow_array::builder::ArrayBuilder for Values {
    fn len(&self) -> usize {
        match self {
            Self::Signed(b) => b.len(),
            Self::Unsigned(b) => b.len(),
            Self::Texts(b) => b.len(),
        }
    }

    fn finish(&mut self) -> ArrayRef {
        match self {
            Self::Signed(b) => Arc::new(b.finish()),
            Self::Unsigned(b) => Arc::new(b.finish()),
            Self::Texts(b) => Arc::new(b.finish()),
        }
    }

    fn finish_cloned(&self) -> ArrayRef {
        match self {
            Self::Signed(b) => Arc::new(b.finish_cloned()),
            Self::Unsigned(b) => Arc::new(b.finish_cloned()),
            Self::Texts(b) => Arc::new(b.finish_cloned()),
        }
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn std::any::Any {
        self
    }

    fn into_box_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_read_back_as_they_are_shown() {
        let raws = [RawType::I64, RawType::U64, RawType::String];
        let mut all = vec![ColumnType::Float, ColumnType::Label];
        all.extend(raws.map(ColumnType::of_raw));
        all.extend(raws.map(ColumnType::List));
        for of in all {
            assert_eq!(of.to_string().parse(), Ok(of));
        }
        for wrong in ["", "int", "list<float>", "list<", "list<int64", "INT64"] {
            assert!(wrong.parse::<ColumnType>().is_err(), "{wrong}");
        }
    }
}
