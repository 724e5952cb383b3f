//! The replay of a log: repeats its decisions, and checks that the data is the same.

use std::sync::atomic::{AtomicBool, Ordering};

use zillion_stream::{Decision, Partition, Taking, Took, check_took};

use super::{Feed, Sink};
use crate::error::{Error, Result};
use crate::online::item::{FedVersion, Item, Repetition};

impl Feed {
    /// Repeats the decisions after the position, and hands over the same items as the first time.
    /// Returns `false` if the run stops or takes no more items.
    ///
    /// # Errors
    /// Returns an error if the messages are not those of the first time.
    pub(in crate::online) fn replay(
        &mut self,
        stop: &[&AtomicBool],
        sink: &mut Sink<'_>,
    ) -> Result<bool> {
        for entry in self.log.replay(self.position.next_decision())? {
            let (number, decision) = entry?;
            if stop.iter().any(|flag| flag.load(Ordering::Relaxed)) {
                return Ok(false);
            }
            if !self.repeat(number, &decision, sink)? {
                return Ok(false);
            }
        }
        sink(Item::Status(Box::new(self.status(false, false))));
        Ok(true)
    }

    /// Returns whether the run ends where its log ends.
    pub(in crate::online) fn only_replays(&self) -> bool {
        self.setup.only_replays
    }

    fn repeat(&mut self, number: u64, decision: &Decision, sink: &mut Sink<'_>) -> Result<bool> {
        if self.summary.is_unread(number) {
            self.pass_over(number, decision)?;
            return Ok(true);
        }
        // Versions and checkpoints come before the first row of the next batch.
        if !matches!(decision, Decision::Publish { .. } | Decision::Checkpoint { .. }) {
            self.give_rows()?;
        }
        match decision {
            Decision::Took(took) => {
                self.repeat_took(number, took)?;
                self.apply(number, decision)?;
            }
            Decision::Idle { partition } | Decision::Back { partition } => {
                self.apply(number, decision)?;
                let is_idle = matches!(decision, Decision::Idle { .. });
                self.assembler.set_idle(*partition, is_idle)?;
                self.assembler.drain()?;
            }
            Decision::Cut { batch, rows, reason } => {
                let found = (self.counts.batches + 1, self.assembler.rows() as u64);
                if found != (*batch, *rows) {
                    return Err(differs(
                        number,
                        format!(
                            "batch {batch} had {rows} rows, but batch {} has {} rows now",
                            found.0, found.1
                        ),
                    ));
                }
                self.apply(number, decision)?;
                self.cadence.note_cut(*rows);
                let item = self.finish_batch(*reason);
                return Ok(self.summary.is_skipped(number, *batch) || sink(item));
            }
            Decision::Publish { batch } => {
                self.apply(number, decision)?;
                self.cadence.note_publish();
                if self.summary.is_unpublished(number, *batch) {
                    return Ok(true);
                }
                let repetition = match self.summary.publishes_after(number) {
                    true => Repetition::Earlier,
                    false => Repetition::Last,
                };
                let version = FedVersion { newest: self.newest.clone(), repetition };
                return Ok(sink(Item::Publish(Box::new(version))));
            }
            Decision::Checkpoint { batch } => {
                self.apply(number, decision)?;
                if self.summary.is_skipped(number, *batch) {
                    return Ok(true);
                }
                let link = self.save()?;
                self.cadence.note_checkpoint();
                return Ok(sink(Item::Checkpoint(link)));
            }
            Decision::Schema { stream, id, fingerprint } => {
                self.add_recorded_schema(*stream, *id, *fingerprint)?;
                self.apply(number, decision)?;
            }
            Decision::Rules(_) => self.apply(number, decision)?,
            Decision::Reset { partition, .. } => {
                for input in &mut self.streams {
                    input.source.adopt(decision)?;
                }
                self.apply(number, decision)?;
                self.leave_block(*partition);
            }
            _ => {
                for input in &mut self.streams {
                    input.source.adopt(decision)?;
                }
                self.apply(number, decision)?;
            }
        }
        Ok(true)
    }

    /// Applies a decision whose messages do not exist any more. It moves the position, and its
    /// batches, versions and checkpoints are left out.
    fn pass_over(&mut self, number: u64, decision: &Decision) -> Result<()> {
        match decision {
            Decision::Schema { stream, id, fingerprint } => {
                self.add_recorded_schema(*stream, *id, *fingerprint)?;
            }
            Decision::Cut { .. } => self.counts.batches += 1,
            // These decisions end with the idle partitions of their beginning. So the watermark
            // need not follow them.
            Decision::Idle { .. } | Decision::Back { .. } => {}
            Decision::Took(_)
            | Decision::Publish { .. }
            | Decision::Checkpoint { .. }
            | Decision::Rules(_) => {}
            _ => {
                for input in &mut self.streams {
                    input.source.adopt(decision)?;
                }
            }
        }
        self.apply(number, decision)
    }

    /// Consumes a recorded span again.
    fn repeat_took(&mut self, number: u64, took: &Took) -> Result<()> {
        let Partition { stream, .. } = took.partition;
        let stream = usize::from(stream);
        if self.has_rows_left() || stream >= self.streams.len() {
            return Err(differs(number, "a batch was cut at another place".to_owned()));
        }
        let mut taking = Taking::new(took.partition, took.from);
        loop {
            let input = &mut self.streams[stream];
            // The rows of the last message may be left, and its dead letter needs its bytes. So the
            // block stays until there is another one.
            if !input.source.read(took.partition, took.to, &mut self.spare)? {
                break;
            }
            std::mem::swap(&mut input.block, &mut self.spare);
            self.begin_block(stream)?;
            self.taking = Some((taking, took.partition));
            // Messages are taken in the same groups as the first time.
            loop {
                let (is_full, room) = (self.assembler.is_full(), self.assembler.room().max(1));
                let mut is_end = !self.take_message()?;
                if is_full && !is_end {
                    return Err(differs(number, "a batch was cut at another place".to_owned()));
                }
                while !is_end && self.rows_ahead() < room {
                    is_end = !self.take_message()?;
                }
                self.give_rows()?;
                if is_end {
                    break;
                }
            }
            self.end_block()?;
            taking = match self.taking.take() {
                Some((taking, _)) => taking,
                None => Taking::new(took.partition, took.from),
            };
        }
        let read = Took { to: took.to, ..taking.finish() };
        Ok(check_took(took, &read)?)
    }
}

fn differs(number: u64, problem: String) -> Error {
    Error::ReplayDiffers { decision: number, problem }
}
