//! The columns from which histories are computed, and the new column of histories.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{Int64Builder, ListBuilder, StringBuilder, UInt64Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Date64Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType, UInt8Type, UInt16Type, UInt32Type,
};
use arrow_array::{Array, ArrayRef, RecordBatch, downcast_integer_array};
use arrow_schema::{DataType, Field, TimeUnit};
use zillion_feature::raw_value::ValueError;
use zillion_feature::{DateOrder, FeatureKey, TimeUnit as Unit, Zone, parse_moment};
use zillion_reader::{ReaderError, Result, plain_type, visit_texts};

use crate::parquet_files::{decode_dictionary, find_column, setting, wrong_type};

/// A value in a column of ids. Texts have the type `T`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Value<T> {
    Signed(i64),
    Unsigned(u64),
    Text(T),
}

/// Calls `visit` with the value of each row, or with `None` for a missing value. Returns `false` if
/// the type of the column does not fit ids.
fn visit_values<'a>(array: &'a ArrayRef, mut visit: impl FnMut(Option<Value<&'a str>>)) -> bool {
    let whole = match array.data_type().is_signed_integer() {
        true => |id: i128| Value::Signed(id as i64),
        false => |id: i128| Value::Unsigned(id as u64),
    };
    downcast_integer_array!(
        array => array.iter().for_each(|id| visit(id.map(|id| whole(id.into())))),
        DataType::Utf8 => array.as_string::<i32>().iter().for_each(|v| visit(v.map(Value::Text))),
        DataType::LargeUtf8 => {
            array.as_string::<i64>().iter().for_each(|v| visit(v.map(Value::Text)));
        },
        DataType::Utf8View => array.as_string_view().iter().for_each(|v| visit(v.map(Value::Text))),
        _ => return false,
    );
    true
}

/// Returns the owner of each row of a batch, from the column `name` (setting `by`). The owner is
/// `None` for a row with a missing value.
pub(crate) fn read_owners(
    name: &str,
    batch: &RecordBatch,
    path: &Path,
) -> Result<Vec<Option<FeatureKey>>> {
    let array = &decode_dictionary(find_column(batch, name, "by", path)?, path)?;
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
    Err(wrong_type(name, array.data_type(), needed, path))
}

/// A reader of the column of times, which orders the rows (setting `time`).
pub(crate) struct Moments<'a> {
    name: &'a str,
    /// The type of the column in the first file, which determines the unit of the times. `None`
    /// before the first file has been read.
    found: Option<DataType>,
    /// The order of day and month in texts with dates that need one.
    order: Option<DateOrder>,
}

impl<'a> Moments<'a> {
    pub(crate) fn new(name: &'a str) -> Self {
        Self { name, found: None, order: None }
    }

    /// Reads texts with dates in the order `order`. Other columns are an error if it is set.
    pub(crate) fn in_order(name: &'a str, order: Option<DateOrder>) -> Self {
        Self { order, ..Self::new(name) }
    }

    pub(crate) fn read(&mut self, batch: &RecordBatch, path: &Path) -> Result<Vec<Option<i64>>> {
        let array = find_column(batch, self.name, "time", path)?;
        if self.order.is_some() && plain_type(array.data_type()) != DataType::Utf8 {
            let problem = format!(
                "column `{}` of {} holds {}, which has no order of day and month; leave the \
                 setting out",
                self.name,
                path.display(),
                array.data_type()
            );
            return Err(setting(problem, "date_order"));
        }
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
            // Programs that write whole numbers with a fraction of zero do so for times too.
            DataType::Float64 => {
                let floats = array.as_primitive::<Float64Type>().iter();
                floats.map(|x| x.filter(|x| x.is_finite()).map(|x| x.floor() as i64)).collect()
            }
            found if plain_type(found) == DataType::Utf8 => self.read_texts(array, path)?,
            other => {
                let needed = "times must be whole numbers, dates or timestamps";
                return Err(wrong_type(self.name, other, needed, path));
            }
        };
        let unit = |found: &DataType| match found {
            DataType::Timestamp(unit, _) => Some(DataType::Timestamp(*unit, None)),
            DataType::Date32 | DataType::Date64 => Some(found.clone()),
            found if plain_type(found) == DataType::Utf8 => Some(DataType::Utf8),
            _ => None,
        };
        let first = self.found.get_or_insert_with(|| array.data_type().clone());
        if unit(first) != unit(array.data_type()) {
            let needed = format!("another file has {first}, and all files must have the same unit");
            return Err(wrong_type(self.name, array.data_type(), &needed, path));
        }
        Ok(moments)
    }

    /// Reads texts with dates as microseconds since 1970. An empty text is a missing time.
    fn read_texts(&self, array: &ArrayRef, path: &Path) -> Result<Vec<Option<i64>>> {
        let (mut moments, mut wrong) = (Vec::with_capacity(array.len()), None);
        visit_texts(array, |text| {
            let text = text.map(<[u8]>::trim_ascii).filter(|text| !text.is_empty());
            let moment = text.map(|text| parse_moment(text, Zone::default(), self.order));
            if let (Some(Err(error)), Some(text)) = (&moment, text) {
                wrong.get_or_insert_with(|| (*error, String::from_utf8_lossy(text).into_owned()));
            }
            let count = moment.and_then(std::result::Result::ok);
            moments.push(count.and_then(|moment| moment.count(Unit::Microsecond)));
        });
        match wrong {
            None => Ok(moments),
            Some((ValueError::AmbiguousDate, text)) => Err(ambiguous_date(self.name, &text)),
            Some((_, text)) => Err(setting(
                format!(
                    "column `{}` has {text:?}, which is not a time such as 2024-05-01T10:00:00Z{}; \
                     correct it: {}",
                    self.name,
                    self.order.map_or("", |_| " or one in the order of day and month that is set"),
                    path.display()
                ),
                "time",
            )),
        }
    }
}

/// Returns the error of a date that does not tell the day from the month.
pub(crate) fn ambiguous_date(column: &str, text: &str) -> ReaderError {
    let problem = format!(
        "column `{column}` has {text:?}, which does not tell the day from the month; set the order \
         of its dates, day_first or month_first"
    );
    setting(problem, "date_order")
}

/// Sets `counts` to `false` for each row in which column `name` does not have the value `wanted`
/// (setting `when`).
pub(super) fn narrow(
    name: &str,
    wanted: &str,
    batch: &RecordBatch,
    path: &Path,
    counts: &mut [bool],
) -> Result<()> {
    let array = find_column(batch, name, "when", path)?;
    let refuse = |what: &str| {
        let problem = format!(
            "column `{name}` holds {what}, but {wanted:?} does not have this type; compare the \
             column with a value of its type"
        );
        setting(problem, "when")
    };
    let mut counts = counts.iter_mut();
    let mut keep = |yes: bool| {
        if let Some(count) = counts.next() {
            *count &= yes;
        }
    };
    if let Some(booleans) = array.as_boolean_opt() {
        let wanted: bool = wanted.parse().map_err(|_| refuse("true and false"))?;
        booleans.iter().for_each(|value| keep(value == Some(wanted)));
        return Ok(());
    }
    let number = wanted.parse::<i128>();
    let fits = visit_values(array, |value| {
        keep(match value {
            None => false,
            Some(Value::Text(text)) => text == wanted,
            Some(Value::Signed(value)) => number == Ok(value.into()),
            Some(Value::Unsigned(value)) => number == Ok(value.into()),
        });
    });
    if !fits {
        let needed = "a condition needs whole numbers, strings or booleans";
        return Err(wrong_type(name, array.data_type(), needed, path));
    }
    if plain_type(array.data_type()) != DataType::Utf8 && number.is_err() {
        return Err(refuse("whole numbers"));
    }
    Ok(())
}

/// A reader of the column of items (setting `of`), which gives each distinct item a number.
pub(super) struct Items<'a> {
    name: &'a str,
    numbers: HashMap<Value<Arc<str>>, u32>,
    known: Vec<Value<Arc<str>>>,
}

impl<'a> Items<'a> {
    pub(super) fn new(name: &'a str) -> Self {
        Self { name, numbers: HashMap::new(), known: Vec::new() }
    }

    /// Returns the number of each row's item, or `None` for a missing item.
    pub(super) fn read(&mut self, batch: &RecordBatch, path: &Path) -> Result<Vec<Option<u32>>> {
        let array = find_column(batch, self.name, "of", path)?;
        let Self { name, numbers, known } = self;
        let kind = std::mem::discriminant::<Value<Arc<str>>>;
        let mut same_kind = true;
        let mut items = Vec::with_capacity(array.len());
        let fits = visit_values(array, |value| {
            let value = value.map(|value| match value {
                Value::Signed(id) => Value::Signed(id),
                Value::Unsigned(id) => Value::Unsigned(id),
                Value::Text(text) => Value::Text(text.into()),
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
            None | Some(Value::Signed(_)) => DataType::Int64,
            Some(Value::Unsigned(_)) => DataType::UInt64,
            Some(Value::Text(_)) => DataType::Utf8,
        };
        DataType::List(Arc::new(Field::new("item", element, true)))
    }

    /// Builds the column of histories. Each list holds the item numbers of one row.
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
            None | Some(Value::Signed(_)) => {
                build!(Int64Builder::new(), Value::Signed, id => *id)
            }
            Some(Value::Unsigned(_)) => build!(UInt64Builder::new(), Value::Unsigned, id => *id),
            Some(Value::Text(_)) => {
                build!(StringBuilder::new(), Value::Text, text => text.as_ref())
            }
        }
    }
}
