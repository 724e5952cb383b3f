//! The counts of the values of a column that are dates or times.

use zillion_feature::{DateOrder, Moment, TimeUnit, Zone, parse_moment};

/// The lengths of texts that may be dates.
const LENGTHS: std::ops::RangeInclusive<usize> = 8..=40;

/// The least number of rows above an earlier one by which the order of the rows tells the order of
/// day and month.
const LEAST_RISES: u64 = 3;
/// The largest number of different days of a calendar that has few days in each month.
const FEW_DAYS: u32 = 3;

/// The counts of the values of a column that are dates or times, and the span of these times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// The number of values that are times by themselves.
    pub plain: u64,
    /// The number of texts that are times if the day comes before the month.
    pub day_first: u64,
    /// The number of texts that are times if the month comes before the day.
    pub month_first: u64,
    /// The first and the last one of the times that are times by themselves.
    pub span: Option<(Moment, Moment)>,
    /// The times of the texts if the day comes before the month.
    in_day_first: Reading,
    /// The times of the texts if the month comes before the day.
    in_month_first: Reading,
    /// The number of texts whose day and month end with a full stop.
    with_stops: u64,
    /// The set of the first numbers of texts that are times in both orders, and the set of the
    /// second ones. The numbers are bits.
    numbers: (u16, u16),
}

/// The times of texts in one order of day and month.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reading {
    span: Option<(Moment, Moment)>,
    last: Option<Moment>,
    /// The number of times that are before the time of the row above.
    falls: u64,
    /// The number of times that are after the time of the row above.
    rises: u64,
}

impl Reading {
    fn add(&mut self, time: Moment) {
        let (first, last) = self.span.unwrap_or((time, time));
        self.span = Some((first.min(time), last.max(time)));
        self.falls += u64::from(self.last.is_some_and(|last| time < last));
        self.rises += u64::from(self.last.is_some_and(|last| time > last));
        self.last = Some(time);
    }

    /// Returns the number of seconds from the first time to the last one.
    fn seconds(&self) -> i64 {
        let count = |time: Moment| time.count(TimeUnit::Second).unwrap_or_default();
        self.span.map_or(0, |(first, last)| count(last).saturating_sub(count(first)))
    }
}

impl Times {
    /// Counts a value that is a time.
    pub(super) fn add(&mut self, time: Moment) {
        self.plain += 1;
        let (first, last) = self.span.unwrap_or((time, time));
        self.span = Some((first.min(time), last.max(time)));
    }

    /// Counts a text if it is a time.
    pub(super) fn add_text(&mut self, text: &[u8]) {
        let text = text.trim_ascii();
        if !LENGTHS.contains(&text.len()) || !text[0].is_ascii_digit() {
            return;
        }
        let read = |order| parse_moment(text, Zone::default(), order).ok();
        if let Some(time) = read(None) {
            self.add(time);
        }
        if let Some(time) = read(Some(DateOrder::DayFirst)) {
            self.day_first += 1;
            self.in_day_first.add(time);
        }
        if let Some(time) = read(Some(DateOrder::MonthFirst)) {
            self.month_first += 1;
            self.in_month_first.add(time);
        }
        if let Some((first, second)) = leading_numbers(text) {
            self.numbers.0 |= 1 << first;
            self.numbers.1 |= 1 << second;
        }
        self.with_stops += u64::from(text.iter().take(6).filter(|&&c| c == b'.').count() == 2);
    }

    /// Returns the first and the last time if day and month stand in this order.
    pub(crate) fn span_in(&self, order: Option<DateOrder>) -> Option<(Moment, Moment)> {
        match order {
            None => self.span,
            Some(DateOrder::DayFirst) => self.in_day_first.span,
            Some(DateOrder::MonthFirst) => self.in_month_first.span,
        }
    }

    /// Returns the more likely order of day and month of texts that are times in both orders, with
    /// the reason. Returns `None` if both are as likely.
    fn likely_order(&self, texts: u64) -> Option<(DateOrder, &'static str)> {
        if self.with_stops == texts {
            return Some((DateOrder::DayFirst, "dates with full stops have the day first"));
        }
        let (day, month) = (self.in_day_first, self.in_month_first);
        let ascends = |reading: Reading| reading.falls == 0 && reading.rises >= LEAST_RISES;
        if (day.falls == 0) != (month.falls == 0) && (ascends(day) || ascends(month)) {
            let order = if day.falls == 0 { DateOrder::DayFirst } else { DateOrder::MonthFirst };
            return Some((order, "only in this order do the times of the rows ascend"));
        }
        // The first days of many months have the narrow span of the first days of one month.
        let (first, second) = (self.numbers.0.count_ones(), self.numbers.1.count_ones());
        if first.min(second) <= FEW_DAYS && first.max(second) > FEW_DAYS {
            return None;
        }
        let (by_day, by_month) = (day.seconds(), month.seconds());
        let narrow = "in this order the times span less than half as long";
        if by_day < by_month / 2 {
            return Some((DateOrder::DayFirst, narrow));
        }
        (by_month < by_day / 2).then_some((DateOrder::MonthFirst, narrow))
    }

    /// Returns the order of day and month by which all of `texts` texts are times, with the reason,
    /// or `None` if they need no order. Returns an error if they are times in both orders and
    /// neither is more likely, or if some of them are not times.
    pub(crate) fn order(
        &self,
        texts: u64,
    ) -> Result<Option<(DateOrder, &'static str)>, &'static str> {
        if texts == 0 {
            return Err("no value is a time");
        }
        if self.plain == texts {
            return Ok(None);
        }
        match (self.day_first == texts, self.month_first == texts) {
            (true, false) => Ok(Some((DateOrder::DayFirst, FIRST_ABOVE_12))),
            (false, true) => Ok(Some((DateOrder::MonthFirst, SECOND_ABOVE_12))),
            (true, true) => {
                let likely = self.likely_order(texts).map(Some);
                likely.ok_or("the day and the month may stand in either order")
            }
            (false, false) => Err("some of them are in a form that is not read"),
        }
    }
}

/// The reasons for an order of day and month that leave no other order.
const FIRST_ABOVE_12: &str = "some first numbers are above 12";
const SECOND_ABOVE_12: &str = "some second numbers are above 12";

/// Returns whether a reason for an order of day and month leaves no other order.
pub(crate) fn is_certain(reason: &str) -> bool {
    [FIRST_ABOVE_12, SECOND_ABOVE_12].contains(&reason)
}

/// Returns the first two numbers of a text if both are from 1 to 12, as day and month of a date
/// whose order is open.
fn leading_numbers(text: &[u8]) -> Option<(u8, u8)> {
    let mut parts = text.split(|byte| !byte.is_ascii_digit()).map(|digits| {
        let number = std::str::from_utf8(digits).ok()?.parse::<u8>().ok()?;
        (1..=12).contains(&number).then_some(number)
    });
    Some((parts.next()??, parts.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(texts: &[&str]) -> Result<Option<DateOrder>, &'static str> {
        let mut times = Times::default();
        texts.iter().for_each(|text| times.add_text(text.as_bytes()));
        times.order(texts.len() as u64).map(|known| known.map(|(order, _)| order))
    }

    #[test]
    fn the_order_follows_from_all_dates_together() {
        assert_eq!(order(&["2024-05-01", "2024-05-02 10:00"]), Ok(None));
        assert_eq!(order(&["01.02.2024", "31.01.2024"]), Ok(Some(DateOrder::DayFirst)));
        assert_eq!(order(&["01/02/2024", "01/31/2024"]), Ok(Some(DateOrder::MonthFirst)));
        // Days up to 12 fit both orders.
        let first = ["03/01/2024", "04/01/2024"];
        let second = ["02/03/2024", "01/04/2024", "02/04/2024", "01/05/2024", "02/06/2024"];
        assert_eq!(order(&first), Ok(Some(DateOrder::DayFirst)), "a shorter span");
        assert_eq!(
            order(&["02/01/2024", "02/05/2024", "02/03/2024"]),
            Ok(Some(DateOrder::MonthFirst))
        );
        assert_eq!(order(&second), Ok(Some(DateOrder::DayFirst)), "ascending");
        let either = ["05/02/2024", "02/05/2024", "04/03/2024", "03/04/2024", "05/02/2024"];
        assert!(order(&either).unwrap_err().contains("either order"));
        let stops: Vec<String> = either.iter().map(|text| text.replace('/', ".")).collect();
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        assert_eq!(order(&stops), Ok(Some(DateOrder::DayFirst)));
        // The first days of each month: the span tells nothing, but full stops do.
        let months: Vec<String> =
            (1..=12).rev().map(|month| format!("01/{month:02}/2024")).collect();
        let months: Vec<&str> = months.iter().map(String::as_str).collect();
        assert!(order(&months).unwrap_err().contains("either order"));
        let stops: Vec<String> = months.iter().map(|text| text.replace('/', ".")).collect();
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        assert_eq!(order(&stops), Ok(Some(DateOrder::DayFirst)));
        assert!(order(&["01.02.2024", "tomorrow"]).unwrap_err().contains("not read"));
        assert!(order(&["10:30", ""]).is_err());
    }

    #[test]
    fn the_span_holds_the_first_and_the_last_time() {
        let mut times = Times::default();
        for text in ["2024-05-02", "2023-01-01T05:00Z", "no date"] {
            times.add_text(text.as_bytes());
        }
        let (first, last) = times.span.unwrap();
        assert_eq!(first.to_string(), "2023-01-01T05:00:00Z");
        assert_eq!((last.to_string().as_str(), times.plain), ("2024-05-02T00:00:00Z", 2));
    }
}
