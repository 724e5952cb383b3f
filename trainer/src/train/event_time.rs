//! The event time of tables that admit, evict and let counts decay by event time.
//!
//! The time of a batch is the median of the times of its rows, and the time of the tables is the
//! latest time of all batches that were learned. So it depends on the data alone, it never goes
//! back, and the same batches give the same tables. The median is used because a few rows with a
//! wrong time far in the future must not move the clock: with the latest time of all rows, one such
//! row would let a whole table expire. The watermark of streams was rejected, because jobs over
//! files have none, and because rows of a joiner come later than it.
//!
//! A skipped step moves no weight, but its keys count. So it moves the clock too, and the clock
//! does not depend on gradients.

use zillion_embedding::EventClock;
use zillion_feature::Batch;
use zillion_rows::{TableClock, TableSpec};

use super::Run;
use crate::checkpoint::TableTime;
use crate::error::Result;

/// Returns whether a table goes by event time.
pub(crate) fn goes_by_event_time(table: &TableSpec) -> bool {
    table.clock() == TableClock::EventTime
}

/// Returns the lower median of some numbers, or `None` if there are none.
fn find_median(mut times: Vec<i64>) -> Option<i64> {
    let middle = times.len().checked_sub(1)? / 2;
    Some(*times.select_nth_unstable(middle).1)
}

impl Run {
    /// Moves the event time of the present step on to that of a batch.
    pub(super) fn note_event_time(&mut self, batch: &Batch) {
        if !self.job.tables.iter().any(goes_by_event_time) {
            return;
        }
        let present = self.buffers.event_clock.or(self.position.progress.event_clock);
        let unit = self.job.schema.event_time_unit;
        let median = batch.event_time.clone().and_then(find_median);
        let seconds = median
            .zip(unit)
            .and_then(|(time, unit)| unit.to_ms(time))
            .map(|milliseconds| milliseconds.div_euclid(1000));
        self.buffers.event_clock = match (present, seconds) {
            (None, None) => None,
            (None, Some(now)) => Some(TableTime { first: now, now }),
            (Some(time), now) => {
                // The first rows of a run may be newer than the following ones.
                Some(TableTime { now: time.now.max(now.unwrap_or(time.now)), ..time })
            }
        };
    }

    /// Gives the tables the event time of the present step, if they need it.
    pub(super) fn give_event_time(&mut self) -> Result<()> {
        if !self.job.tables.iter().any(goes_by_event_time) {
            return Ok(());
        }
        let before = self.position.progress.event_clock.map_or(0, TableTime::elapsed);
        let now = self.buffers.event_clock.map_or(before, TableTime::elapsed);
        Ok(self.client.set_clock(EventClock { before, now })?)
    }

    /// Keeps the event time of a step that has ended in the tables.
    pub(super) fn keep_event_time(&mut self) {
        if let Some(time) = self.buffers.event_clock {
            self.position.progress.event_clock = Some(time);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::super::tests::{Place, StopBehind};
    use super::super::{TrainOptions, train};
    use super::*;
    use crate::job::Job;
    use crate::observer::Silent;

    const FIRST: i64 = 1_700_000_000;
    const HOUR: i64 = 3600;
    const ROWS: i64 = 600;

    /// Writes rows of new users, four in each hour. Every fiftieth row is a year ahead.
    fn write_rows(place: &Place) {
        let mut text = "user,item,price,label,time\n".to_owned();
        for row in 0..ROWS {
            let ahead = if row % 50 == 7 { 365 * 24 * HOUR } else { 0 };
            let time = FIRST + row * HOUR / 4 + ahead;
            let (user, item) = (row / 2, row % 60);
            writeln!(text, "{user},{item},0.5,{},{time}", row % 3 / 2).unwrap();
        }
        for name in ["train.csv", "valid.csv"] {
            std::fs::write(place.path(name), &text).unwrap();
        }
    }

    fn job(place: &Place, output: &str, shards: usize) -> Job {
        let more = "[model]\nkind = 'deepfm'\nhidden = [4]\n\
            [columns]\nevent_time = 'time'\nevent_time_unit = 's'\n\
            [tables.user]\neviction = { kind = 'unseen_for', span = '1 day' }\n\
            statistics = { decay = 0.5, every = '6 hours' }\n\
            [tables.item]\nadmission = { kind = 'bloom', at_least = 2, keys = 100, error = 0.01 }\n\
            admission_window = '12 hours'\n\
            [train]\nbatch_size = 10\naccumulate = 2\n";
        let mut job = place.job(output, more);
        job.data.shuffle = false;
        job.run.shards = std::num::NonZeroUsize::new(shards).unwrap();
        job
    }

    #[test]
    fn tables_by_event_time_are_the_same_after_a_stop() {
        let place = Place::new();
        write_rows(&place);
        train(job(&place, "whole", 3), TrainOptions::new(2).unwrap(), &mut Silent).unwrap();
        let expected = place.files("whole");
        let checkpoint = place.newest("whole");
        let time = checkpoint.manifest.progress.event_clock.unwrap();
        // The last batch begins at row 590, and rows far ahead do not count.
        let last = FIRST + (ROWS - 1) * HOUR / 4;
        assert!(time.now <= last && time.now > last - 3 * HOUR, "{time:?}");
        assert!((FIRST..FIRST + 3 * HOUR).contains(&time.first), "{time:?}");
        // Two rows have the same user, so 48 users were seen in the last day.
        let users = checkpoint.manifest.tables.iter().find(|table| table.table == "user").unwrap();
        assert!((46..=48 * 9 / 8 + 12).contains(&users.rows), "{} rows", users.rows);
        for (batches, threads, shards) in [(7, 1, 1), (30, 2, 8), (59, 3, 2)] {
            let output = format!("stopped-{batches}");
            let options = TrainOptions::new(threads).unwrap();
            let mut observer = StopBehind { batches, seen: 0, stop: options.stop.clone() };
            train(job(&place, &output, shards), options, &mut observer).unwrap();
            let options = TrainOptions { resume: true, ..TrainOptions::new(2).unwrap() };
            train(job(&place, &output, 5), options, &mut Silent).unwrap();
            assert_eq!(place.files(&output), expected, "stopped behind batch {batches}");
        }
    }

    #[test]
    fn a_row_far_ahead_does_not_move_the_median() {
        assert_eq!(find_median(vec![]), None);
        assert_eq!(find_median(vec![7]), Some(7));
        assert_eq!(find_median(vec![9, 1]), Some(1));
        assert_eq!(find_median(vec![5, i64::MAX, 3, 4, i64::MAX]), Some(5));
    }
}
