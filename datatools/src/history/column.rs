//! The columns from which histories are computed, and the column of histories itself.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{Int64Builder, ListBuilder, StringBuilder, UInt64Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Date64Type, Int8Type, Int16Type, Int32Type, Int64Type, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, TimeUnit};
use zillion_feature::FeatureKey;
use zillion_reader::{ReaderError, Result};

/// A value of a column of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Value<'a> {
    Signed(i64),
    Unsigned(u64),
    Text(&'a str),
}

/// Calls `visit` with the value of each row, or with `None` if the value is missing. Returns
/// `false` if the column cannot hold ids.
fn visit_values<'a>(array: &'a ArrayRef, mut visit: impl FnMut(Option<Value<'a>>)) -> bool {
    macro_rules! whole {
        ($type:ty, $value:path) => {
            array.as_primitive::<$type>().iter().for_each(|v| visit(v.map(|v| $value(v.into()))))
        };
    }
    match array.data_type() {
        DataType::Int8 => whole!(Int8Type, Value::Signed),
        DataType::Int16 => whole!(Int16Type, Value::Signed),
        DataType::Int32 => whole!(Int32Type, Value::Signed),
        DataType::Int64 => whole!(Int64Type, Value::Signed),
        DataType::UInt8 => whole!(UInt8Type, Value::Unsigned),
        DataType::UInt16 => whole!(UInt16Type, Value::Unsigned),
        DataType::UInt32 => whole!(UInt32Type, Value::Unsigned),
        DataType::UInt64 => whole!(UInt64Type, Value::Unsigned),
        DataType::Utf8 => array.as_string::<i32>().iter().for_each(|v| visit(v.map(Value::Text))),
        _ => return false,
    }
    true
}

/// Returns the column with this name, which the setting `used_by` gives.
fn find<'a>(
    batch: &'a RecordBatch,
    name: &str,
    used_by: &str,
    path: &Path,
) -> Result<&'a ArrayRef> {
    batch.column_by_name(name).ok_or_else(|| {
        let schema = batch.schema();
        let names: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
        let hint = match zillion_config::nearest(name, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("the columns are {}", names.join(", ")),
        };
        ReaderError::MissingColumn {
            column: name.to_owned(),
            used_by: format!("`{used_by}`"),
            hint,
            path: path.to_owned(),
        }
    })
}

fn wrong_type(name: &str, found: &DataType, needed: &str, path: &Path) -> ReaderError {
    ReaderError::ColumnType {
        column: name.to_owned(),
        mismatch: format!("{found}, but {needed}"),
        path: path.to_owned(),
    }
}

/// The column whose values are the owners of rows (setting `by`).
pub(crate) struct Owners<'a> {
    name: &'a str,
}

impl<'a> Owners<'a> {
    pub(crate) fn new(name: &'a str) -> Self {
        Self { name }
    }

    /// Reads the owner of each row of a batch; a row with a missing value has no owner.
    pub(crate) fn read(&self, batch: &RecordBatch, path: &Path) -> Result<Vec<Option<FeatureKey>>> {
        let array = find(batch, self.name, "by", path)?;
        let mut owners = Vec::with_capacity(array.len());
        let fits = visit_values(array, |value| {
            owners.push(value.map(|value| match value {
                Value::Signed(id) => FeatureKey::from_i64(id),
                Value::Unsigned(id) => FeatureKey::from_u64(id),
                Value::Text(text) => FeatureKey::from_text(text),
            }));
        });
        if fits {
            return Ok(owners);
        }
        let needed = "owners must be whole numbers or strings";
        Err(wrong_type(self.name, array.data_type(), needed, path))
    }
}

/// The column of times, which orders the rows (setting `time`).
pub(crate) struct Moments<'a> {
    name: &'a str,
    /// The type in the first file, which determines the unit.
    found: Option<DataType>,
}

impl<'a> Moments<'a> {
    pub(crate) fn new(name: &'a str) -> Self {
        Self { name, found: None }
    }

    pub(crate) fn read(&mut self, batch: &RecordBatch, path: &Path) -> Result<Vec<Option<i64>>> {
        let array = find(batch, self.name, "time", path)?;
        macro_rules! moments {
            ($type:ty) => {
                array.as_primitive::<$type>().iter().map(|v| v.map(i64::from)).collect()
            };
        }
        let moments = match array.data_type() {
            DataType::Int8 => moments!(Int8Type),
            DataType::Int16 => moments!(Int16Type),
            DataType::Int32 => moments!(Int32Type),
            DataType::Int64 => moments!(Int64Type),
            DataType::UInt8 => moments!(UInt8Type),
            DataType::UInt16 => moments!(UInt16Type),
            DataType::UInt32 => moments!(UInt32Type),
            DataType::Date32 => moments!(Date32Type),
            DataType::Date64 => moments!(Date64Type),
            DataType::Timestamp(TimeUnit::Second, _) => moments!(TimestampSecondType),
            DataType::Timestamp(TimeUnit::Millisecond, _) => moments!(TimestampMillisecondType),
            DataType::Timestamp(TimeUnit::Microsecond, _) => moments!(TimestampMicrosecondType),
            DataType::Timestamp(TimeUnit::Nanosecond, _) => moments!(TimestampNanosecondType),
            other => {
                let needed = "times must be whole numbers, dates or timestamps";
                return Err(wrong_type(self.name, other, needed, path));
            }
        };
        let unit = |found: &DataType| match found {
            DataType::Timestamp(unit, _) => Some(DataType::Timestamp(*unit, None)),
            DataType::Date32 | DataType::Date64 => Some(found.clone()),
            _ => None,
        };
        let first = self.found.get_or_insert_with(|| array.data_type().clone());
        if unit(first) != unit(array.data_type()) {
            let needed = format!("another file has {first}; use the same unit in all files");
            return Err(wrong_type(self.name, array.data_type(), &needed, path));
        }
        Ok(moments)
    }
}

/// A condition on a column, which decides whether a row is an event (setting `when`).
pub(super) struct Condition {
    name: String,
    wanted: String,
}

impl Condition {
    pub(super) fn new(name: &str, wanted: &str) -> Self {
        Self { name: name.to_owned(), wanted: wanted.to_owned() }
    }

    /// Sets `counts` to `false` for each row that does not fulfil the condition.
    pub(super) fn narrow(
        &mut self,
        batch: &RecordBatch,
        path: &Path,
        counts: &mut [bool],
    ) -> Result<()> {
        let array = find(batch, &self.name, "when", path)?;
        let refuse = |what: &str| ReaderError::Setting {
            problem: format!(
                "column `{}` holds {what}, but {:?} has another type; compare the column with another value",
                self.name, self.wanted
            ),
            key: "when".to_owned(),
        };
        let mut counts = counts.iter_mut();
        let mut keep = |yes: bool| {
            if let Some(count) = counts.next() {
                *count &= yes;
            }
        };
        if let Some(booleans) = array.as_boolean_opt() {
            let wanted: bool = self.wanted.parse().map_err(|_| refuse("true and false"))?;
            booleans.iter().for_each(|value| keep(value == Some(wanted)));
            return Ok(());
        }
        let number = self.wanted.parse::<i128>();
        let whole = *array.data_type() != DataType::Utf8;
        let fits = visit_values(array, |value| {
            keep(match value {
                None => false,
                Some(Value::Text(text)) => text == self.wanted,
                Some(Value::Signed(value)) => number == Ok(value.into()),
                Some(Value::Unsigned(value)) => number == Ok(value.into()),
            });
        });
        if !fits {
            let needed = "a condition needs whole numbers, strings or booleans";
            return Err(wrong_type(&self.name, array.data_type(), needed, path));
        }
        if whole && number.is_err() {
            return Err(refuse("whole numbers"));
        }
        Ok(())
    }
}

/// The column of the items that histories list (setting `of`). Each distinct item has a number.
pub(super) struct Items<'a> {
    name: &'a str,
    numbers: HashMap<Known, u32>,
    known: Vec<Known>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Known {
    Signed(i64),
    Unsigned(u64),
    Text(Arc<str>),
}

impl<'a> Items<'a> {
    pub(super) fn new(name: &'a str) -> Self {
        Self { name, numbers: HashMap::new(), known: Vec::new() }
    }

    /// Returns the number of the item of each row, or `None` if the item is missing.
    pub(super) fn read(&mut self, batch: &RecordBatch, path: &Path) -> Result<Vec<Option<u32>>> {
        let array = find(batch, self.name, "of", path)?;
        let Self { name, numbers, known } = self;
        let kind = |value: &Known| std::mem::discriminant(value);
        let mut same_kind = true;
        let mut items = Vec::with_capacity(array.len());
        let fits = visit_values(array, |value| {
            let value = value.map(|value| match value {
                Value::Signed(id) => Known::Signed(id),
                Value::Unsigned(id) => Known::Unsigned(id),
                Value::Text(text) => Known::Text(text.into()),
            });
            items.push(value.map(|value| {
                same_kind &= known.first().is_none_or(|first| kind(first) == kind(&value));
                *numbers.entry(value).or_insert_with_key(|value| {
                    known.push(value.clone());
                    known.len() as u32 - 1
                })
            }));
        });
        if !fits {
            let needed = "items must be whole numbers or strings";
            return Err(wrong_type(name, array.data_type(), needed, path));
        }
        if !same_kind {
            let needed = "earlier files have another kind of items (signed, unsigned or string)";
            return Err(wrong_type(name, array.data_type(), needed, path));
        }
        Ok(items)
    }

    /// Returns the type of the new column.
    pub(super) fn list_type(&self) -> DataType {
        let element = match self.known.first() {
            None | Some(Known::Signed(_)) => DataType::Int64,
            Some(Known::Unsigned(_)) => DataType::UInt64,
            Some(Known::Text(_)) => DataType::Utf8,
        };
        DataType::List(Arc::new(Field::new("item", element, true)))
    }

    /// Builds the column of histories from lists of item numbers.
    pub(super) fn lists<'b>(&self, lists: impl Iterator<Item = &'b [u32]>) -> ArrayRef {
        macro_rules! build {
            ($builder:expr, $known:path, $value:ident => $put:expr) => {{
                let mut builder = ListBuilder::new($builder);
                for list in lists {
                    for &item in list {
                        if let $known($value) = &self.known[item as usize] {
                            builder.values().append_value($put);
                        }
                    }
                    builder.append(true);
                }
                Arc::new(builder.finish())
            }};
        }
        match self.known.first() {
            None | Some(Known::Signed(_)) => {
                build!(Int64Builder::new(), Known::Signed, id => *id)
            }
            Some(Known::Unsigned(_)) => build!(UInt64Builder::new(), Known::Unsigned, id => *id),
            Some(Known::Text(_)) => {
                build!(StringBuilder::new(), Known::Text, text => text.as_ref())
            }
        }
    }
}
