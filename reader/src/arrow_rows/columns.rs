//! The types of the columns that a conversion makes from text, and the arrays of their values.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use arrow_array::{
    ArrayRef, Float32Array, Float64Array, Int64Array, ListArray, StringArray, UInt8Array,
    UInt64Array,
};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field as ArrowField};
use zillion_feature::{RawType, RawValue};

use crate::block::{ListPart, Piece, Texts};
use crate::error::{ReaderError, Result};
use crate::field::{Field, Role, Slot};
use crate::value::LabelRule;

/// The type of a column that a conversion makes from text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnType {
    /// Signed whole numbers of 64 bits.
    Int64,
    /// Unsigned whole numbers of 64 bits.
    Uint64,
    /// Floating-point numbers of 64 bits.
    Float,
    /// Values that are texts in UTF-8.
    Text,
    /// The numbers 0 and 1, in any spelling that a label may have.
    Label,
    /// Lists of ids of this type. Missing elements are left out.
    List(RawType),
    /// Lists of ids of this type whose elements must all be there, because their places matter.
    WholeList(RawType),
    /// Lists of ids of this type with a weight for each id (as in a sparse vector). Such a column
    /// becomes two columns: the ids and the weights.
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
            Self::List(raw) | Self::WholeList(raw) => write!(f, "list<{}>", of(raw)),
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
        ColumnType::Label => Role::Label { optional: true, rule: LabelRule::Flag },
        ColumnType::List(raw) => Role::RawIds { raw, weighted: false, whole: false },
        ColumnType::WholeList(raw) => Role::RawIds { raw, weighted: false, whole: true },
        ColumnType::Weighted(raw) => Role::RawIds { raw, weighted: true, whole: false },
    };
    Field { used_by: format!("column `{name}`"), column: name.to_owned(), role, slot: Slot::Pass }
}

/// Returns the columns of the new file that hold the values of one column of a text file.
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
        ColumnType::List(raw) | ColumnType::WholeList(raw) => vec![list(name, arrow_type(raw))],
        ColumnType::Weighted(raw) => {
            vec![list(name, arrow_type(raw)), list(&format!("{name}.weights"), DataType::Float32)]
        }
    }
}

fn arrow_type(raw: RawType) -> DataType {
    match raw {
        RawType::I64 => DataType::Int64,
        RawType::U64 => DataType::UInt64,
        RawType::String => DataType::Utf8,
    }
}

/// Returns the values of one field in all pieces, as one array for each column of the new file.
pub(super) fn array_of(pieces: &[Piece], field: usize, of: ColumnType) -> Result<Vec<ArrayRef>> {
    Ok(match of {
        ColumnType::Text => vec![texts(pieces, field)?],
        ColumnType::Int64 => vec![ids(RawType::I64, pieces.iter().flat_map(|p| p.values(field)))],
        ColumnType::Uint64 => vec![ids(RawType::U64, pieces.iter().flat_map(|p| p.values(field)))],
        ColumnType::Float => {
            // NaN always stands for a missing value here, because the decoder refuses a NaN of the
            // data.
            let numbers = pieces.iter().flat_map(|piece| piece.values(field));
            let numbers = numbers.map(|&x: &f64| (!x.is_nan()).then_some(x));
            vec![Arc::new(Float64Array::from_iter(numbers))]
        }
        ColumnType::Label => {
            let labels = pieces.iter().flat_map(|piece| piece.values::<f32>(field));
            let mask = pieces.iter().flat_map(|piece| piece.values::<bool>(field));
            let labels = labels.zip(mask).map(|(&x, &there)| there.then_some(u8::from(x == 1.0)));
            vec![Arc::new(UInt8Array::from_iter(labels))]
        }
        ColumnType::List(raw) | ColumnType::WholeList(raw) | ColumnType::Weighted(raw) => {
            let parts: Vec<ListPart<'_, RawValue<'static>>> =
                pieces.iter().map(|piece| piece.lists(field)).collect();
            let lengths = parts.iter().flat_map(|part| part.ends.windows(2));
            let lengths = lengths.map(|ends| (ends[1] - ends[0]) as usize);
            let offsets = OffsetBuffer::from_lengths(lengths);
            let values = ids(raw, parts.iter().flat_map(|part| part.values));
            let mut lists = vec![list_array(offsets.clone(), values)?];
            if let ColumnType::Weighted(_) = of {
                let mut weights = Vec::new();
                for ListPart { values, weights: own, .. } in &parts {
                    match own {
                        Some(own) => weights.extend_from_slice(own),
                        None => weights.resize(weights.len() + values.len(), 1.0f32),
                    }
                }
                lists.push(list_array(offsets, Arc::new(Float32Array::from(weights)))?);
            }
            lists
        }
    })
}

/// Returns ids as an array of the type that `raw` declares. The decoder may have stored a whole
/// number in another integer type; the number fits the declared type too.
fn ids<'a>(raw: RawType, ids: impl Iterator<Item = &'a RawValue<'static>>) -> ArrayRef {
    match raw {
        RawType::I64 => Arc::new(Int64Array::from_iter(ids.map(|id| match id {
            RawValue::Int(id) => Some(*id),
            RawValue::Uint(id) => i64::try_from(*id).ok(),
            _ => None,
        }))),
        RawType::U64 => Arc::new(UInt64Array::from_iter(ids.map(|id| match id {
            RawValue::Uint(id) => Some(*id),
            RawValue::Int(id) => u64::try_from(*id).ok(),
            _ => None,
        }))),
        RawType::String => Arc::new(StringArray::from_iter(ids.map(|id| match id {
            RawValue::Text(text) => Some(text),
            _ => None,
        }))),
    }
}

/// Returns an array of lists. Neither the lists nor their values are null.
fn list_array(offsets: OffsetBuffer<i32>, values: ArrayRef) -> Result<ArrayRef> {
    let item = Arc::new(ArrowField::new_list_field(values.data_type().clone(), false));
    let lists = ListArray::try_new(item, offsets, values, None).map_err(batch_error)?;
    Ok(Arc::new(lists))
}

/// Copies the texts of all pieces into one array. The bytes of each piece are copied in one
/// operation.
fn texts(pieces: &[Piece], field: usize) -> Result<ArrayRef> {
    let (mut bytes, mut ends, mut there) = (Vec::new(), vec![0i32], Vec::new());
    for piece in pieces {
        let own: &Texts = piece.block.columns[field].view();
        let rows = piece.start..piece.start + piece.rows;
        let (start, base) = (own.start(rows.start), bytes.len());
        bytes.extend_from_slice(&own.bytes[start..own.start(rows.end)]);
        ends.extend(own.ends[rows.clone()].iter().map(|&end| (end - start + base) as i32));
        there.extend_from_slice(&own.there[rows]);
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

/// Returns the error for rows that do not fit into one record batch of Arrow.
pub(super) fn batch_error(error: arrow_schema::ArrowError) -> ReaderError {
    let problem = format!("the rows do not fit one record batch ({error}); lower the setting");
    ReaderError::setting("group_rows", problem)
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
