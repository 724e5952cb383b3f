//! The messages that each batch of a run contains, as the log of decisions says.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};
use zillion_stream::{CutReason, Decision, read_decisions};

/// The batches of a run with one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    /// The batches in their order.
    pub(super) batches: Vec<BatchEnd>,
    /// The names of the partitions in the order of their numbers.
    pub(super) partitions: Vec<String>,
    /// The offset behind the consumed messages of each partition.
    pub(super) ends: Vec<u64>,
    /// The number of messages that were consumed.
    pub(super) messages: u64,
    /// The number of spans that do not begin where the span before them ended.
    pub(super) gaps: u64,
    /// The number of batches that ended because a row had waited long enough.
    pub(super) lingered: u64,
    /// The number of versions.
    pub(super) publishes: u64,
    /// The number of checkpoints.
    pub(super) checkpoints: u64,
    /// The number of times that a partition became idle.
    pub(super) idles: u64,
    /// The number of times that an idle partition had messages again.
    pub(super) backs: u64,
}

/// The end of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BatchEnd {
    /// The number of rows of this batch and all batches before it.
    pub(super) rows: u64,
    /// The offset behind the messages of the batch in each partition.
    pub(super) ends: Vec<u64>,
}

impl Contents {
    /// Reads the log of the run in `run`.
    pub(super) fn read(run: &Path) -> Result<Self> {
        let mut contents = Self::default();
        for decision in read_decisions(log_of(run), 0)? {
            contents.add(decision?.1)?;
        }
        Ok(contents)
    }

    fn add(&mut self, decision: Decision) -> Result<()> {
        match decision {
            Decision::Partitions { names, .. } => {
                self.ends.resize(names.len(), 0);
                self.partitions = names;
            }
            Decision::Took(took) => {
                let Some(end) = self.ends.get_mut(took.partition.number as usize) else {
                    bail!("the log has messages of an unknown partition, {}", took.partition);
                };
                self.gaps += u64::from(*end != took.from);
                *end = took.to;
                self.messages += took.count;
            }
            Decision::Cut { rows, reason, .. } => {
                let before = self.batches.last().map_or(0, |batch| batch.rows);
                self.batches.push(BatchEnd { rows: before + rows, ends: self.ends.clone() });
                self.lingered += u64::from(reason == CutReason::Linger);
            }
            Decision::Publish { .. } => self.publishes += 1,
            Decision::Checkpoint { .. } => self.checkpoints += 1,
            Decision::Idle { .. } => self.idles += 1,
            Decision::Back { .. } => self.backs += 1,
            _ => {}
        }
        Ok(())
    }

    /// Returns the number of rows of all batches.
    pub(super) fn rows(&self) -> u64 {
        self.batches.last().map_or(0, |batch| batch.rows)
    }

    /// Returns the offset behind the consumed messages of each partition by its name.
    pub(super) fn ends_by_name(&self) -> BTreeMap<&str, u64> {
        self.partitions.iter().map(String::as_str).zip(self.ends.iter().copied()).collect()
    }
}

/// Returns the number of the decision that comes next in the log of a run. `known` is a number that
/// the log has reached.
pub(super) fn next_decision(run: &Path, known: u64) -> Result<u64> {
    let folder = log_of(run);
    if !folder.exists() {
        return Ok(known);
    }
    let mut next = known;
    for decision in read_decisions(folder, known)? {
        next = decision?.0 + 1;
    }
    Ok(next)
}

/// Returns the number of bytes of the log of a run.
pub(super) fn log_bytes(run: &Path) -> u64 {
    let Ok(files) = std::fs::read_dir(log_of(run)) else { return 0 };
    files.flatten().filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}

fn log_of(run: &Path) -> std::path::PathBuf {
    zillion_trainer::stream_folder(run).join("log")
}

#[cfg(test)]
mod tests {
    use zillion_stream::{Partition, Took};

    use super::*;

    fn took(number: u32, from: u64, to: u64, count: u64) -> Decision {
        let partition = Partition { stream: 0, number };
        Decision::Took(Took { partition, from, to, count, hash: 0 })
    }

    fn cut(batch: u64, rows: u64, reason: CutReason) -> Decision {
        Decision::Cut { batch, rows, reason }
    }

    #[test]
    fn batches_contain_the_spans_before_their_cuts() {
        let names = vec!["a".to_owned(), "b".to_owned()];
        let mut contents = Contents::default();
        for decision in [
            Decision::Partitions { stream: 0, names, starts: Vec::new() },
            took(1, 0, 40, 4),
            cut(1, 4, CutReason::Full),
            took(0, 0, 10, 1),
            took(1, 40, 50, 1),
            cut(2, 2, CutReason::Linger),
            Decision::Publish { batch: 2 },
            took(1, 60, 70, 1),
        ] {
            contents.add(decision).unwrap();
        }
        let ends: Vec<_> = contents.batches.iter().map(|b| (b.rows, b.ends.clone())).collect();
        assert_eq!(ends, [(4, vec![0, 40]), (6, vec![10, 50])]);
        assert_eq!((contents.gaps, contents.messages, contents.lingered), (1, 7, 1));
        assert_eq!(contents.ends_by_name()["b"], 70);
        contents.add(took(2, 0, 1, 1)).unwrap_err();
    }
}
