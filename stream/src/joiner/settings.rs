//! The settings of a joiner and their checks.

use super::error::{JoinError, JoinResult};
use super::index::ROW_BYTES;
use super::weights::SMALLEST_KEEP;
use crate::watermark::{TIME_END, TimeRules};

/// The largest size of a segment in bytes.
const LARGEST_SEGMENT: u64 = 32 << 20;
/// The smallest usable bound of memory or disk, in bytes.
const SMALLEST_BOUND: u64 = 1 << 20;
/// The largest number of whole segments that fit into the bound of disk. With it, slots of segments
/// have 16 bits.
const MOST_SEGMENTS: u64 = 1 << 14;
/// The number of segments' sizes that the joiner needs in memory beside its rows: the segment that
/// is being filled, its order, and the buffers of the segments that are being read.
const FIXED_SEGMENTS: u64 = 4;

/// The moment at which a row is emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emit {
    /// At the end of its window, with the feedback that came.
    Window,
    /// At once, with the feedback that came before it.
    Now(Late),
}

/// The treatment of feedback that comes within the window of a row that was emitted at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// The row is emitted again as a correction.
    Correct,
    /// The feedback is counted and dropped.
    Drop,
}

/// The sampling of rows without feedback.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Negatives {
    /// The probability with which a negative is kept, from 10^-9 to 1.
    pub keep: f64,
    /// The place where the sampling is corrected.
    pub correction: SamplingCorrection,
}

/// The place where the sampling of negatives is corrected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplingCorrection {
    /// The weight of a kept negative is divided by `keep`.
    Weight,
    /// Weights stay. The reader of the model adds [`Settings::log_odds_shift`] to its log-odds.
    LogOdds,
}

/// The bounds of the pending rows. At a bound, the oldest rows are emitted as they stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The largest number of pending rows.
    pub max_rows: u64,
    /// The largest size of the segments in bytes. Pending rows may fill half of it. The other half
    /// is for rows that were emitted already, and for segments that are being rewritten.
    pub max_disk_bytes: u64,
    /// The largest number of bytes of memory for the index, for feedback and for segments that are
    /// being filled or read.
    pub max_memory_bytes: u64,
}

/// The settings of a joiner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The rules of event times and watermarks.
    pub times: TimeRules,
    /// The length of the window of an impression in milliseconds.
    pub wait: u64,
    /// The moment at which rows are emitted.
    pub emit: Emit,
    /// The sampling of rows without feedback.
    pub negatives: Negatives,
    /// The bounds of the pending rows.
    pub bounds: Bounds,
}

impl Settings {
    /// Returns the number to add to the log-odds of a model that learned from these rows: ln(keep)
    /// if [`SamplingCorrection::LogOdds`] is set, otherwise 0.
    ///
    /// Sampling multiplies the odds of a positive by 1 / keep. So the log-odds of the model are too
    /// high by -ln(keep).
    pub fn log_odds_shift(&self) -> f64 {
        match self.negatives.correction {
            SamplingCorrection::Weight => 0.0,
            SamplingCorrection::LogOdds => self.negatives.keep.ln(),
        }
    }

    /// Returns the number of rows that fit into the bound of memory if none has feedback.
    pub fn rows_in_memory(&self) -> u64 {
        let fixed = FIXED_SEGMENTS * self.segment_bytes();
        self.bounds.max_memory_bytes.saturating_sub(fixed) / ROW_BYTES
    }

    /// Returns the size of a segment in bytes, which is also the bound of a row. It is 1/64 of the
    /// bound of disk or 1/16 of the bound of memory, whichever is less, and at most 32 MiB.
    pub fn segment_bytes(&self) -> u64 {
        let bounds = &self.bounds;
        (bounds.max_disk_bytes / 64).min(bounds.max_memory_bytes / 16).min(LARGEST_SEGMENT)
    }

    /// Returns the number of bytes of memory that do not depend on the pending rows.
    pub(crate) fn fixed_bytes(&self) -> u64 {
        FIXED_SEGMENTS * self.segment_bytes()
    }

    /// Checks all values.
    ///
    /// # Errors
    /// Returns an error that names the first setting with an unusable value.
    pub fn validate(&self) -> JoinResult<()> {
        let refuse = |setting, value: String, remedy: String| {
            Err(JoinError::Setting { setting, value, remedy })
        };
        for (setting, value) in [
            ("wait", self.wait),
            ("disorder", self.times.disorder),
            ("max_ahead", self.times.max_ahead),
        ] {
            if value >= TIME_END as u64 {
                return refuse(setting, format!("{value} ms"), "a time below 4,000 years".into());
            }
        }
        let keep = self.negatives.keep;
        if !(SMALLEST_KEEP..=1.0).contains(&keep) {
            let remedy = "a number from 0.000000001 to 1".into();
            return refuse("keep_negatives", keep.to_string(), remedy);
        }
        let Bounds { max_rows, max_disk_bytes, max_memory_bytes } = self.bounds;
        if max_rows == 0 {
            return refuse("max_rows", "0".into(), "1 or more".into());
        }
        if max_memory_bytes < SMALLEST_BOUND {
            let remedy = format!("{SMALLEST_BOUND} bytes or more");
            return refuse("max_memory_bytes", max_memory_bytes.to_string(), remedy);
        }
        // A larger bound of memory allows larger segments, up to their largest size.
        let largest = MOST_SEGMENTS * (max_memory_bytes / 16).min(LARGEST_SEGMENT);
        if !(SMALLEST_BOUND..=largest).contains(&max_disk_bytes) {
            let remedy = format!(
                "{SMALLEST_BOUND} to {largest} bytes, which is at most 1,024 times \
                 `join.max_memory_bytes`"
            );
            return refuse("max_disk_bytes", max_disk_bytes.to_string(), remedy);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn settings() -> Settings {
        let keep = Negatives { keep: 0.25, correction: SamplingCorrection::LogOdds };
        let bounds = Bounds { max_rows: 10, max_disk_bytes: 1 << 30, max_memory_bytes: 100 << 20 };
        let accept_jump_after = NonZeroU32::MIN;
        let times = TimeRules { disorder: 1, max_ahead: 1, accept_jump_after, start: None };
        Settings { times, wait: 1_000, emit: Emit::Window, negatives: keep, bounds }
    }

    #[test]
    fn the_shift_of_log_odds_is_the_logarithm_of_keep() {
        let mut settings = settings();
        assert_eq!(settings.log_odds_shift(), 0.25f64.ln());
        settings.negatives.correction = SamplingCorrection::Weight;
        assert_eq!(settings.log_odds_shift(), 0.0);
    }

    #[test]
    fn unusable_values_are_named() {
        settings().validate().unwrap();
        let check = |change: fn(&mut Settings), text: &str| {
            let mut settings = settings();
            change(&mut settings);
            let error = settings.validate().unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("; choose "), "{error}");
        };
        check(|s| s.wait = u64::MAX, "`join.wait` = 18446744073709551615 ms cannot be used");
        check(|s| s.times.disorder = 1 << 47, "`join.disorder`");
        check(|s| s.times.max_ahead = 1 << 47, "`join.max_ahead`");
        check(|s| s.negatives.keep = 0.0, "`join.keep_negatives` = 0");
        check(|s| s.negatives.keep = 1e-40, "`join.keep_negatives` = 0.000000");
        check(|s| s.negatives.keep = f64::NAN, "`join.keep_negatives` = NaN");
        check(|s| s.negatives.keep = 1.5, "`join.keep_negatives` = 1.5");
        check(|s| s.bounds.max_rows = 0, "`join.max_rows` = 0");
        check(|s| s.bounds.max_disk_bytes = 9, "`join.max_disk_bytes` = 9");
        check(|s| s.bounds.max_disk_bytes = 101 << 30, "`join.max_disk_bytes` = 108447924224");
        check(|s| s.bounds.max_memory_bytes = 9, "`join.max_memory_bytes` = 9");
    }
}
