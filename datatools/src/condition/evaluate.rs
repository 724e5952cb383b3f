//! The evaluation of conditions on record batches.

use std::cmp::Ordering;
use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Date64Type, Decimal32Type, Decimal64Type, Decimal128Type, Float16Type, Float32Type,
    Float64Type, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType,
};
use arrow_array::{Array, ArrayRef, RecordBatch, downcast_integer_array};
use arrow_schema::{DataType, TimeUnit};
use zillion_feature::DateOrder;
use zillion_reader::{Result, plain_type};

use super::texts::Texts;
use super::{Comparison, Condition, Literal, Node};
use crate::parquet_files::{decode_dictionary, find_column, setting, wrong_type};

/// The truth of a condition for each row. `None` stands for neither true nor false.
type Truths = Vec<Option<bool>>;

impl Condition {
    /// Returns the truth of the condition for each row of a batch. It is `None` for a row in which
    /// a missing value decides. `used_by` is the setting that contains the condition.
    ///
    /// # Errors
    /// Returns an error if a column is missing, or if its type does not fit the value with which it
    /// is compared.
    pub(crate) fn evaluate(
        &self,
        batch: &RecordBatch,
        used_by: &str,
        path: &Path,
    ) -> Result<Truths> {
        Rows { batch, used_by, path, date_order: self.date_order }.node(&self.root)
    }
}

struct Rows<'a> {
    batch: &'a RecordBatch,
    used_by: &'a str,
    path: &'a Path,
    date_order: Option<DateOrder>,
}

impl Rows<'_> {
    fn node(&self, node: &Node) -> Result<Truths> {
        match node {
            Node::All(parts) => self.merge(parts, false),
            Node::Any(parts) => self.merge(parts, true),
            Node::Not(part) => Ok(self
                .node(part)?
                .into_iter()
                .map(|truth| truth.map(|is_true| !is_true))
                .collect()),
            Node::Compare(name, comparison, literal) => {
                let orders = self.compare(name, *comparison, literal)?;
                let is_true = |order: Ordering| comparison.accepts(order);
                Ok(orders.into_iter().map(|order| order.map(is_true)).collect())
            }
            Node::OneOf(name, literals) => {
                let mut truths = vec![None; self.batch.num_rows()];
                for literal in literals {
                    let orders = self.compare(name, Comparison::Equal, literal)?;
                    for (truth, order) in truths.iter_mut().zip(orders) {
                        *truth = order.map(|order| *truth == Some(true) || order.is_eq());
                    }
                }
                Ok(truths)
            }
            Node::IsNull(name) => {
                let array = find_column(self.batch, name, self.used_by, self.path)?;
                let array = decode_dictionary(array, self.path)?;
                let nulls = array.logical_nulls();
                let is_null = |row| nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
                let is_nan = nan_rows(&array);
                Ok((0..array.len()).map(|row| Some(is_null(row) || is_nan(row))).collect())
            }
            Node::IsOne(name) => self.ones(name),
        }
    }

    /// Merges the parts of a condition. `decides` is the truth of a part that decides alone.
    fn merge(&self, parts: &[Node], decides: bool) -> Result<Truths> {
        let mut truths = vec![Some(!decides); self.batch.num_rows()];
        for part in parts {
            for (truth, other) in truths.iter_mut().zip(self.node(part)?) {
                *truth = match (*truth, other) {
                    (Some(a), _) | (_, Some(a)) if a == decides => Some(decides),
                    (Some(_), Some(_)) => Some(!decides),
                    _ => None,
                };
            }
        }
        Ok(truths)
    }

    /// Returns whether each value of a column is 1 or true.
    fn ones(&self, name: &str) -> Result<Truths> {
        let orders = |whole| self.compare(name, Comparison::Equal, &Literal::Whole(whole));
        let ones = orders(1)?;
        let array = find_column(self.batch, name, self.used_by, self.path)?;
        if array.data_type() != &DataType::Boolean {
            let (zeros, negatives) = (orders(0)?, orders(-1)?);
            let is_other = |row: usize| {
                [&ones, &zeros, &negatives]
                    .iter()
                    .all(|orders| orders[row].is_some_and(|order| order.is_ne()))
            };
            if (0..ones.len()).any(is_other) {
                let problem = format!(
                    "column `{name}` of {} has other values than 0 and 1, so 1 does not tell which \
                     rows are positive; write a condition, as in {name} >= 4",
                    self.path.display()
                );
                return Err(setting(problem, self.used_by));
            }
        }
        Ok(ones.into_iter().map(|order| order.map(Ordering::is_eq)).collect())
    }

    /// Returns the order of each value of a column and the literal. It is `None` for a missing
    /// value.
    fn compare(
        &self,
        name: &str,
        comparison: Comparison,
        literal: &Literal,
    ) -> Result<Vec<Option<Ordering>>> {
        let array = find_column(self.batch, name, self.used_by, self.path)?;
        let array = &decode_dictionary(array, self.path)?;
        let refuse = |holds: &str, remedy: &str| {
            let problem = format!(
                "column `{name}` of {} holds {holds}, but the condition compares it with \
                 {literal}; {remedy}",
                self.path.display()
            );
            setting(problem, self.used_by)
        };
        let mut orders = Vec::with_capacity(array.len());
        let needed = "a condition compares numbers, texts, booleans, dates and timestamps";
        downcast_integer_array!(
            array => {
                let literal = Number::of(literal)
                    .ok_or_else(|| refuse("whole numbers", "write a number without quotes"))?;
                orders.extend(array.iter().map(|x| x.map(|x| literal.order_of_whole(x.into()))));
            },
            DataType::Boolean => {
                let wanted = match literal {
                    Literal::Boolean(wanted) => *wanted,
                    Literal::Whole(0) => false,
                    Literal::Whole(1) => true,
                    _ => return Err(refuse("booleans", "write true or false")),
                };
                orders.extend(array.as_boolean().iter().map(|x| x.map(|x| x.cmp(&wanted))));
            },
            DataType::Float16 | DataType::Float32 | DataType::Float64 => {
                let number = Number::of(literal)
                    .ok_or_else(|| refuse("numbers", "write a number without quotes"))?
                    .as_f64();
                // The literal gets the precision of the column, so that 0.1 equals 0.1.
                match array.data_type() {
                    DataType::Float16 => orders.extend(
                        array.as_primitive::<Float16Type>().iter().map(|x| {
                            x.and_then(|x| f64::from(x).partial_cmp(&number))
                        }),
                    ),
                    DataType::Float32 => orders.extend(
                        array.as_primitive::<Float32Type>().iter().map(|x| {
                            x.and_then(|x| x.partial_cmp(&(number as f32)))
                        }),
                    ),
                    _ => orders.extend(
                        array.as_primitive::<Float64Type>().iter().map(|x| {
                            x.and_then(|x| x.partial_cmp(&number))
                        }),
                    ),
                }
            },
            DataType::Date32 | DataType::Date64 | DataType::Timestamp(..) => {
                let literal = time_literal(array.data_type(), literal).ok_or_else(|| {
                    refuse(
                        "times",
                        "write a date or a time in UTC, as in '2026-03-01' or \
                         '2026-03-01 12:00:00', or a number in the unit of the column",
                    )
                })?;
                orders.extend(times(array).into_iter().map(|x| x.map(|x| i128::from(x).cmp(&literal))));
            },
            DataType::Null => orders.resize(array.len(), None),
            found if matches!(plain_type(found), DataType::Utf8 | DataType::Binary) => {
                let Literal::Text(wanted) = literal else {
                    let remedy = "read it as numbers (type float), or write the value between \
                                  single quotes to compare texts";
                    return Err(refuse("texts", remedy));
                };
                let Self { path, date_order, used_by, .. } = *self;
                let column = Texts { name, array, path, date_order, used_by };
                orders = column.compare(comparison, wanted)?;
            },
            DataType::Decimal32(_, scale)
            | DataType::Decimal64(_, scale)
            | DataType::Decimal128(_, scale) => {
                let literal = Number::of(literal)
                    .ok_or_else(|| refuse("decimal numbers", "write a number without quotes"))?;
                let order = |x: Option<i128>| Some(literal.order_of_decimal(x?, *scale));
                orders.extend(decimals(array).into_iter().map(order));
            },
            found => return Err(wrong_type(name, found, needed, self.path)),
        );
        Ok(orders)
    }
}

/// Returns the values of a column of decimal numbers of up to 128 bits, as whole numbers of the
/// scale's smallest unit.
fn decimals(array: &ArrayRef) -> Vec<Option<i128>> {
    macro_rules! values {
        ($type:ty) => {
            array.as_primitive::<$type>().iter().map(|x| x.map(i128::from)).collect()
        };
    }
    match array.data_type() {
        DataType::Decimal32(..) => values!(Decimal32Type),
        DataType::Decimal64(..) => values!(Decimal64Type),
        _ => values!(Decimal128Type),
    }
}

impl Comparison {
    /// Returns whether the comparison is true for values in this order.
    pub(super) fn accepts(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::GreaterOrEqual => order.is_ge(),
        }
    }
}

/// A number in the text of a condition.
#[derive(Clone, Copy)]
enum Number {
    Whole(i128),
    Fraction(f64),
}

impl Number {
    fn of(literal: &Literal) -> Option<Self> {
        match literal {
            Literal::Whole(whole) => Some(Self::Whole(*whole)),
            Literal::Number(number) => Some(Self::Fraction(*number)),
            Literal::Boolean(_) | Literal::Text(_) => None,
        }
    }

    fn as_f64(self) -> f64 {
        match self {
            Self::Whole(whole) => whole as f64,
            Self::Fraction(number) => number,
        }
    }

    /// Returns the order of the decimal number `x / 10^scale` and this number.
    fn order_of_decimal(self, x: i128, scale: i8) -> Ordering {
        let power = 10i128.checked_pow(scale.unsigned_abs().into());
        let scaled = match (self, power) {
            (Self::Whole(whole), Some(power)) if scale >= 0 => whole.checked_mul(power),
            _ => None,
        };
        match scaled {
            Some(whole) => x.cmp(&whole),
            // Both sides are rounded to the nearest float, so that 0.1 equals 0.1.
            None if scale >= 0 => (x as f64 / 10f64.powi(scale.into())).total_cmp(&self.as_f64()),
            None => (x as f64 * 10f64.powi(-i32::from(scale))).total_cmp(&self.as_f64()),
        }
    }

    /// Returns the order of a whole number and this number. It is exact for numbers of any size.
    fn order_of_whole(self, x: i128) -> Ordering {
        match self {
            Self::Whole(whole) => x.cmp(&whole),
            // A whole number that equals the rounded fraction is below the fraction itself.
            Self::Fraction(number) => x
                .cmp(&(number.floor() as i128))
                .then(if number.fract() == 0.0 { Ordering::Equal } else { Ordering::Less }),
        }
    }
}

/// Returns a function that tells whether the value of a row is not a number.
fn nan_rows(array: &ArrayRef) -> impl Fn(usize) -> bool {
    let floats: Vec<bool> = match array.data_type() {
        DataType::Float16 => {
            array.as_primitive::<Float16Type>().values().iter().map(|x| x.is_nan()).collect()
        }
        DataType::Float32 => {
            array.as_primitive::<Float32Type>().values().iter().map(|x| x.is_nan()).collect()
        }
        DataType::Float64 => {
            array.as_primitive::<Float64Type>().values().iter().map(|x| x.is_nan()).collect()
        }
        _ => Vec::new(),
    };
    move |row| floats.get(row).copied().unwrap_or(false)
}

/// Returns the times of a column in its own unit.
fn times(array: &ArrayRef) -> Vec<Option<i64>> {
    macro_rules! values {
        ($type:ty) => {
            array.as_primitive::<$type>().iter().map(|x| x.map(i64::from)).collect()
        };
    }
    match array.data_type() {
        DataType::Date32 => values!(Date32Type),
        DataType::Date64 => values!(Date64Type),
        DataType::Timestamp(TimeUnit::Second, _) => values!(TimestampSecondType),
        DataType::Timestamp(TimeUnit::Millisecond, _) => values!(TimestampMillisecondType),
        DataType::Timestamp(TimeUnit::Microsecond, _) => values!(TimestampMicrosecondType),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => values!(TimestampNanosecondType),
        _ => Vec::new(),
    }
}

/// Returns the time of a literal in the unit of a column. A date32 column counts days, so a text
/// with a time of the day does not fit it.
fn time_literal(column: &DataType, literal: &Literal) -> Option<i128> {
    let text = match literal {
        Literal::Whole(whole) => return Some(*whole),
        Literal::Text(text) => text,
        Literal::Number(_) | Literal::Boolean(_) => return None,
    };
    let seconds = parse_moment(text)?;
    match column {
        DataType::Date32 => (seconds % 86_400 == 0).then_some(seconds / 86_400),
        DataType::Timestamp(TimeUnit::Second, _) => Some(seconds),
        DataType::Date64 | DataType::Timestamp(TimeUnit::Millisecond, _) => Some(seconds * 1000),
        DataType::Timestamp(TimeUnit::Microsecond, _) => Some(seconds * 1_000_000),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => Some(seconds * 1_000_000_000),
        _ => None,
    }
}

/// Parses `YYYY-MM-DD`, or `YYYY-MM-DD HH:MM:SS` with a space or a `T` between date and time and
/// perhaps a `Z` at the end. Returns the seconds since the start of 1970 in UTC.
fn parse_moment(text: &str) -> Option<i128> {
    let number = |text: &str, digits: usize, range: std::ops::RangeInclusive<i64>| {
        let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<i64>().ok().filter(|x| is_number && range.contains(x))
    };
    let (date, time) = match text.find(['T', ' ']) {
        Some(at) => (&text[..at], Some(text[at + 1..].trim_end_matches('Z'))),
        None => (text, None),
    };
    let mut parts = date.split('-');
    let year = number(parts.next()?, 4, 0..=9999)?;
    let month = number(parts.next()?, 2, 1..=12)?;
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    let day = number(parts.next()?, 2, 1..=days)?;
    // The year begins in March here, so that a leap day is the last day of its year.
    let (shifted, of_march) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let era = shifted.div_euclid(400);
    let of_era = shifted.rem_euclid(400);
    let of_year = (153 * of_march + 2) / 5 + day - 1;
    let since_1970 = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    let mut clock = time.unwrap_or("00:00:00").split(':');
    let hour = number(clock.next()?, 2, 0..=23)?;
    let minute = number(clock.next()?, 2, 0..=59)?;
    let second = number(clock.next().unwrap_or("00"), 2, 0..=59)?;
    if parts.next().is_some() || clock.next().is_some() {
        return None;
    }
    Some(i128::from(((since_1970 * 24 + hour) * 60 + minute) * 60 + second))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{
        BooleanArray, Date32Array, Decimal128Array, DictionaryArray, Float32Array, Int64Array,
        StringArray, TimestampMillisecondArray, UInt64Array,
    };

    use super::*;

    fn batch() -> RecordBatch {
        let country: DictionaryArray<arrow_array::types::Int32Type> =
            vec![Some("DE"), None, Some("AT"), Some("DE")].into_iter().collect();
        let price = Decimal128Array::from(vec![10, 105, 200, -1]);
        let price = price.with_precision_and_scale(10, 2).unwrap();
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("clicks", Arc::new(Int64Array::from(vec![Some(0), Some(1), Some(2), None]))),
            ("id", Arc::new(UInt64Array::from(vec![1, u64::MAX, 3, u64::MAX - 1]))),
            ("score", Arc::new(Float32Array::from(vec![0.1, f32::NAN, -1.0, 2.0]))),
            ("price", Arc::new(price)),
            ("seen", Arc::new(BooleanArray::from(vec![true, false, true, true]))),
            ("name", Arc::new(StringArray::from(vec!["a", "b", "c", "d"]))),
            ("country", Arc::new(country)),
            ("day", Arc::new(Date32Array::from(vec![0, 1, 59, 60]))),
            ("at", Arc::new(TimestampMillisecondArray::from(vec![0, 43_200_000, 86_400_000, -1]))),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true)))
            .unwrap()
    }

    fn truths(text: &str) -> String {
        let condition: Condition = text.parse().unwrap();
        let truths = condition.evaluate(&batch(), "where", Path::new("x.parquet")).unwrap();
        let letter = |truth: Option<bool>| match truth {
            Some(true) => 't',
            Some(false) => 'f',
            None => '?',
        };
        truths.into_iter().map(letter).collect()
    }

    #[test]
    fn comparisons_have_three_truths() {
        for (text, wanted) in [
            ("clicks >= 1", "ftt?"),
            ("clicks != 1", "tft?"),
            ("clicks > 0.5", "ftt?"),
            ("clicks < 1.5", "ttf?"),
            ("clicks = 1.5", "fff?"),
            ("clicks is null", "ffft"),
            ("clicks is not null and clicks in (0, 2)", "tftf"),
            ("not clicks >= 1", "tff?"),
            ("id = 18446744073709551615", "ftff"),
            ("id > 2.5 and id != 18446744073709551614", "fttf"),
            ("score = 0.1", "t?ff"),
            ("score is null", "ftff"),
            ("price = 0.1 or price = 2", "tftf"),
            ("price > 1 and price < 1.051", "ftff"),
            ("seen = true and clicks >= 1", "fft?"),
            ("seen = 0 or clicks >= 1", "ftt?"),
            ("name <= 'b'", "ttff"),
            ("country = 'DE'", "t?ft"),
            ("country not in ('AT', 'FR')", "t?ft"),
            ("country = 'AT' or clicks = 1", "ftt?"),
            ("country = 'AT' and clicks = 0", "ffff"),
            ("country = 'DE' and clicks >= 0", "t?f?"),
            ("day >= '1970-03-01'", "fftt"),
            ("day = 60", "ffft"),
            ("at >= '1970-01-01 12:00:00'", "fttf"),
            ("at < '1970-01-01T00:00:00Z'", "ffft"),
        ] {
            assert_eq!(truths(text), wanted, "{text}");
        }
    }

    #[test]
    fn wrong_types_are_refused_with_a_remedy() {
        for (text, problem) in [
            ("clicks = 'one'", "without quotes"),
            ("name = 5", "single quotes"),
            ("seen = 2", "true or false"),
            ("at > 'noon'", "2026-03-01 12:00:00"),
            ("day > '1970-01-01 12:00:00'", "2026-03-01"),
            ("click = 1", "did you mean `clicks`?"),
        ] {
            let condition: Condition = text.parse().unwrap();
            let error = condition.evaluate(&batch(), "where", Path::new("x.parquet")).unwrap_err();
            assert!(error.to_string().contains(problem), "{text}: {error}");
        }
    }

    #[test]
    fn dates_count_from_1970() {
        for (text, seconds) in [
            ("1970-01-01", 0),
            ("1969-12-31 23:59:59", -1),
            ("2000-02-29T23:59:59Z", 951_868_799),
            ("2100-03-01 00:00", 4_107_542_400),
        ] {
            assert_eq!(parse_moment(text), Some(seconds), "{text}");
        }
        for text in ["", "2026-02-29", "2026-13-01", "26-01-01", "2026-01-01 24:00:00", "é2026"] {
            assert_eq!(parse_moment(text), None, "{text}");
        }
    }
}
