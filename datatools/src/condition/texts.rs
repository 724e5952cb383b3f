//! The comparison of a column of texts with a text. Dates are compared as times, and other texts by
//! their bytes.

use std::cmp::Ordering;
use std::path::Path;

use arrow_array::{Array, ArrayRef};
use zillion_feature::raw_value::ValueError;
use zillion_feature::{DateOrder, Moment, Zone, parse_moment};
use zillion_reader::{Result, visit_texts};

use super::Comparison;
use crate::history::column::ambiguous_date;
use crate::parquet_files::setting;

/// A column of texts.
pub(super) struct Texts<'a> {
    pub(super) name: &'a str,
    pub(super) array: &'a ArrayRef,
    pub(super) path: &'a Path,
    /// The order of day and month in dates that need one.
    pub(super) date_order: Option<DateOrder>,
    /// The setting that contains the condition.
    pub(super) used_by: &'a str,
}

impl Texts<'_> {
    /// Returns the order of each text and `wanted`. It is `None` for a missing text.
    ///
    /// # Errors
    /// Returns an error if the comparison asks for an order of times, and a text or `wanted` is not
    /// a time, or does not tell the day from the month.
    pub(super) fn compare(
        &self,
        comparison: Comparison,
        wanted: &str,
    ) -> Result<Vec<Option<Ordering>>> {
        let asks_order = !matches!(comparison, Comparison::Equal | Comparison::NotEqual);
        match self.read(wanted.as_bytes()) {
            Ok(moment) => self.compare_times(moment, wanted, asks_order),
            Err(ValueError::AmbiguousDate) if asks_order => Err(ambiguous_date(self.name, wanted)),
            Err(_) => self.compare_bytes(wanted, asks_order),
        }
    }

    fn read(&self, text: &[u8]) -> std::result::Result<Moment, ValueError> {
        parse_moment(text.trim_ascii(), Zone::default(), self.date_order)
    }

    /// Compares the texts as times. If no order is asked for, a text that is not a time is unequal.
    fn compare_times(
        &self,
        wanted: Moment,
        text: &str,
        asks_order: bool,
    ) -> Result<Vec<Option<Ordering>>> {
        let (mut orders, mut wrong) = (Vec::with_capacity(self.array.len()), None);
        visit_texts(self.array, |found| {
            // An empty text is no time: it has no order, and it is unequal to each time.
            let found = found.filter(|found| !asks_order || !found.trim_ascii().is_empty());
            orders.push(found.map(|found| match self.read(found) {
                Ok(moment) => moment.cmp(&wanted),
                Err(_) if found.trim_ascii().is_empty() => Ordering::Less,
                Err(error) => {
                    if asks_order || error == ValueError::AmbiguousDate {
                        let found = || (error, String::from_utf8_lossy(found).into_owned());
                        wrong.get_or_insert_with(found);
                    }
                    Ordering::Less
                }
            }));
        });
        match wrong {
            None => Ok(orders),
            Some((ValueError::AmbiguousDate, found)) => Err(ambiguous_date(self.name, &found)),
            Some((_, found)) => Err(self.refuse(format!(
                "has {found:?}, which is not a time, but the condition compares it with the time \
                 '{text}'; correct that value, or leave its rows out in a run before this one (!=)"
            ))),
        }
    }

    /// Compares the bytes of the texts. Dates whose bytes are not in the order of time are refused
    /// if an order is asked for.
    fn compare_bytes(&self, wanted: &str, asks_order: bool) -> Result<Vec<Option<Ordering>>> {
        let (mut orders, mut date) = (Vec::with_capacity(self.array.len()), None);
        visit_texts(self.array, |found| {
            if let Some(found) = found
                && asks_order
                && date.is_none()
                && !is_sortable(found.trim_ascii())
                && matches!(self.read(found), Ok(_) | Err(ValueError::AmbiguousDate))
            {
                date = Some(String::from_utf8_lossy(found).into_owned());
            }
            orders.push(found.map(|found| found.cmp(wanted.as_bytes())));
        });
        match date {
            None if asks_order && wanted.trim().parse::<f64>().is_ok() => Err(self.refuse(format!(
                "holds texts, which have no order of numbers, but the condition compares it with \
                 '{wanted}'; read it as numbers (type float), with its words for missing values in \
                 `data.null`"
            ))),
            None => Ok(orders),
            Some(date) => Err(self.refuse(format!(
                "has dates such as {date:?}, but the condition compares it with '{wanted}'; write a \
                 whole date, as in '2026-03-01'"
            ))),
        }
    }

    fn refuse(&self, problem: String) -> zillion_reader::ReaderError {
        let column = format!("column `{}` of {} {problem}", self.name, self.path.display());
        setting(column, self.used_by)
    }
}

/// Returns whether a text begins with a date of the form `2024-05-01`. The bytes of such dates are
/// in the order of time.
fn is_sortable(text: &[u8]) -> bool {
    let is_date = |date: &[u8; 10]| {
        date.iter().enumerate().all(|(at, byte)| match at {
            4 | 7 => *byte == b'-',
            _ => byte.is_ascii_digit(),
        })
    };
    text.first_chunk().is_some_and(is_date)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::StringArray;

    use super::*;

    fn compare(
        texts: &[&str],
        comparison: Comparison,
        wanted: &str,
        date_order: Option<DateOrder>,
    ) -> std::result::Result<Vec<bool>, String> {
        let array: ArrayRef = Arc::new(StringArray::from(texts.to_vec()));
        let path = Path::new("rows.csv");
        let texts = Texts { name: "day", array: &array, path, date_order, used_by: "where" };
        let orders = texts.compare(comparison, wanted).map_err(|error| error.to_string())?;
        Ok(orders
            .into_iter()
            .map(|order| order.is_some_and(|order| comparison.accepts(order)))
            .collect())
    }

    #[test]
    fn dates_are_compared_as_times() {
        let days = ["31.12.2023", "01.02.2024", "15.01.2024"];
        let day_first = Some(DateOrder::DayFirst);
        let less = |wanted, order| compare(&days, Comparison::Less, wanted, order);
        assert_eq!(less("2024-01-20", day_first).unwrap(), [true, false, true]);
        assert_eq!(less("20.01.2024", day_first).unwrap(), [true, false, true]);
        let equal = compare(&days, Comparison::Equal, "2024-02-01", day_first).unwrap();
        assert_eq!(equal, [false, true, false]);
        for (wanted, problem) in [
            ("2024-01-20", "has \"01.02.2024\", which does not tell the day from the month"),
            ("01.02.2024", "has \"01.02.2024\", which does not tell the day from the month"),
            ("2024", "has dates such as \"31.12.2023\", but the condition compares it with '2024'"),
        ] {
            let error = less(wanted, None).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
        for texts in [["2024-9-1"], ["2024/01/05"]] {
            let error = compare(&texts, Comparison::Less, "2024-10", None).unwrap_err();
            assert!(error.contains("write a whole date"), "{error}");
        }
        let error = compare(&["9", "10"], Comparison::Less, "10", None).unwrap_err();
        assert!(error.contains("which have no order of numbers"), "{error}");
        // An empty text is unequal to a date, as it is to another text.
        for wanted in ["2024-01-01", "x"] {
            assert_eq!(compare(&[" "], Comparison::NotEqual, wanted, None).unwrap(), [true]);
        }
        let error = compare(&["2024-01-01", "soon"], Comparison::Less, "2024-01-20", None);
        assert!(error.unwrap_err().contains("has \"soon\", which is not a time"));
    }

    #[test]
    fn other_texts_are_compared_by_their_bytes() {
        let texts = ["a", "b", "2024-01-01"];
        assert_eq!(compare(&texts, Comparison::Less, "b", None).unwrap(), [true, false, true]);
        assert_eq!(
            compare(&texts, Comparison::NotEqual, "2024-01-01", None).unwrap(),
            [true, true, false]
        );
        assert_eq!(
            compare(&["01.02.2024"], Comparison::Equal, "01.02.2024", None).unwrap(),
            [true]
        );
    }
}
