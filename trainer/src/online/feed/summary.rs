//! The decisions of a log that have an effect on earlier ones: batches that are left out, messages
//! that are not read again, and batches that stay although a rewind should have left them out.

use std::ops::Range;

use zillion_stream::{Decision, DecisionLog};

use crate::error::Result;

/// Batches, with the number of the decision about them.
type Batches = (u64, Range<u64>);

/// The decisions of a log that have an effect on earlier ones.
#[derive(Debug, Default)]
pub(super) struct Summary {
    /// The batches that are left out.
    skips: Vec<Batches>,
    /// The batches that stay, but whose versions went into quarantine.
    keeps: Vec<Batches>,
    /// The decisions whose messages are not read again.
    unread: Vec<Range<u64>>,
    /// The number of the last decision to publish.
    last_version: Option<u64>,
    /// The largest limit of the size of a message that a decision has recorded.
    largest_message: u64,
}

impl Summary {
    /// Reads the decisions of a log.
    pub(super) fn read(log: &DecisionLog) -> Result<Self> {
        let mut summary = Self::default();
        for entry in log.replay(log.first())? {
            match entry? {
                (number, Decision::Skip { from, to, unread, .. }) => {
                    summary.skips.push((number, from..to));
                    summary.unread.extend(unread.map(|unread| unread..number));
                }
                (number, Decision::Keep { from, to, .. }) => {
                    summary.keeps.push((number, from..to));
                }
                (number, Decision::Publish { .. }) => summary.last_version = Some(number),
                (_, Decision::Rules(rules)) => {
                    let largest = summary.largest_message.max(rules.max_message_bytes);
                    summary.largest_message = largest;
                }
                _ => {}
            }
        }
        Ok(summary)
    }

    /// Returns whether a later decision leaves a batch out. Checkpoints of the moment after such a
    /// batch are left out too, if they were decided before.
    pub(super) fn is_skipped(&self, number: u64, batch: u64) -> bool {
        has_later(&self.skips, number, batch)
    }

    /// Returns whether the version of the moment after a batch is left out: the batch is left out,
    /// or the version went into quarantine although its batches stay.
    pub(super) fn is_unpublished(&self, number: u64, batch: u64) -> bool {
        self.is_skipped(number, batch) || has_later(&self.keeps, number, batch)
    }

    /// Returns whether the messages of a decision are not read again.
    pub(super) fn is_unread(&self, number: u64) -> bool {
        self.unread.iter().any(|unread| unread.contains(&number))
    }

    /// Returns the largest limit of the size of a message that the log has recorded, in bytes.
    pub(super) fn largest_message(&self) -> u64 {
        self.largest_message
    }

    /// Returns whether the log has a decision to publish after a decision.
    pub(super) fn publishes_after(&self, number: u64) -> bool {
        self.last_version > Some(number)
    }
}

/// Returns whether a decision after `number` is about a batch.
fn has_later(all: &[Batches], number: u64, batch: u64) -> bool {
    all.iter().any(|(decision, batches)| number < *decision && batches.contains(&batch))
}

#[cfg(test)]
mod tests {
    use zillion_device::Files;
    use zillion_stream::{LogOptions, RowRules};

    use super::*;

    #[test]
    fn later_decisions_have_an_effect_on_earlier_ones() {
        let folder = tempfile::tempdir().unwrap();
        let files = Files::new().scratch();
        let mut log = DecisionLog::open(&files, folder.path(), LogOptions::default()).unwrap();
        let reason = String::new();
        let rules = |max_message_bytes| {
            let (disorder_ms, max_ahead_ms, accept_jump_after) = (1, 1, 1);
            Decision::Rules(RowRules {
                disorder_ms,
                max_ahead_ms,
                accept_jump_after,
                max_message_bytes,
                start_ms: None,
            })
        };
        for decision in [
            Decision::Publish { batch: 3 },
            Decision::Skip { from: 2, to: 4, reason: reason.clone(), unread: None },
            Decision::Publish { batch: 6 },
            Decision::Keep { from: 5, to: 8, reason: reason.clone() },
            Decision::Publish { batch: 7 },
            Decision::Checkpoint { batch: 8 },
            Decision::Skip { from: 9, to: 9, reason, unread: Some(5) },
            rules(20),
            rules(10),
        ] {
            log.append(&decision).unwrap();
        }
        log.sync().unwrap();
        let summary = Summary::read(&log).unwrap();
        assert!(summary.is_skipped(0, 3) && !summary.is_skipped(0, 4) && !summary.is_skipped(2, 3));
        assert!(summary.is_unpublished(0, 3) && summary.is_unpublished(2, 6));
        assert!(!summary.is_skipped(2, 6) && !summary.is_unpublished(4, 7));
        let unread: Vec<u64> = (0..8).filter(|&number| summary.is_unread(number)).collect();
        assert_eq!(unread, [5]);
        assert!(summary.publishes_after(3) && !summary.publishes_after(4));
        assert_eq!(summary.largest_message(), 20);
    }
}
