//! The counts of the values of a column that are dates or times.

use zillion_feature::{DateOrder, Moment, Zone, parse_moment};

/// The lengths of texts that may be dates.
const LENGTHS: std::ops::RangeInclusive<usize> = 8..=40;

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
        self.day_first += u64::from(read(Some(DateOrder::DayFirst)).is_some());
        self.month_first += u64::from(read(Some(DateOrder::MonthFirst)).is_some());
    }

    /// Returns the order of day and month by which all of `texts` texts are times: none if they
    /// need no order. Returns an error if they are times in both orders, or if some of them are not
    /// times.
    pub(crate) fn order(&self, texts: u64) -> Result<Option<DateOrder>, &'static str> {
        if texts == 0 {
            return Err("no value is a time");
        }
        if self.plain == texts {
            return Ok(None);
        }
        match (self.day_first == texts, self.month_first == texts) {
            (true, false) => Ok(Some(DateOrder::DayFirst)),
            (false, true) => Ok(Some(DateOrder::MonthFirst)),
            (true, true) => Err("the day and the month may stand in either order"),
            (false, false) => Err("some of them are in a form that is not read"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(texts: &[&str]) -> Result<Option<DateOrder>, &'static str> {
        let mut times = Times::default();
        texts.iter().for_each(|text| times.add_text(text.as_bytes()));
        times.order(texts.len() as u64)
    }

    #[test]
    fn the_order_follows_from_all_dates_together() {
        assert_eq!(order(&["2024-05-01", "2024-05-02 10:00"]), Ok(None));
        assert_eq!(order(&["01.02.2024", "31.01.2024"]), Ok(Some(DateOrder::DayFirst)));
        assert_eq!(order(&["01/02/2024", "01/31/2024"]), Ok(Some(DateOrder::MonthFirst)));
        assert!(order(&["01.02.2024", "02.03.2024"]).unwrap_err().contains("either order"));
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
