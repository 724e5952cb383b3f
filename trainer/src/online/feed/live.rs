//! The live feed: decides when batches end, and when versions and checkpoints are made.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use zillion_stream::{CutReason, Decision, Partition};

use super::{Feed, Sink};
use crate::error::Result;
use crate::online::item::{FedVersion, Item, Repetition};
use crate::online::rules::rules_after;
use crate::online::status::{FeedStatus, PartitionStatus};

/// The pause of a feed without messages.
const PAUSE: Duration = Duration::from_millis(2);
/// The pause of a feed that an operator has paused.
const LONG_PAUSE: Duration = Duration::from_millis(50);
/// The time between two looks for idle partitions and for the wishes of operators.
const LOOK: Duration = Duration::from_millis(200);
/// The name of the file that pauses a feed while it exists.
pub const PAUSED: &str = "PAUSED";

/// The state of a live feed that no replay needs.
pub(in crate::online) struct Live<'a> {
    stop: &'a AtomicBool,
    /// The decisions that no kept checkpoint needs end here.
    forget: &'a std::sync::atomic::AtomicU64,
    /// The time of the last message of each partition.
    heard: BTreeMap<Partition, Instant>,
    looked: Option<Instant>,
    is_paused: bool,
}

impl<'a> Live<'a> {
    pub(in crate::online) fn new(
        stop: &'a AtomicBool,
        forget: &'a std::sync::atomic::AtomicU64,
    ) -> Self {
        Self { stop, forget, heard: BTreeMap::new(), looked: None, is_paused: false }
    }
}

impl Feed {
    /// Consumes messages and hands over items until the flag says that the run stops.
    pub(in crate::online) fn run(
        &mut self,
        live: &mut Live<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let rules = rules_after(self.rules, &self.setup.online());
        if self.rules != Some(rules) {
            // A repetition gives the rows that are left before the decision, too.
            self.give_rows()?;
            self.record(&Decision::Rules(rules))?;
        }
        while !live.stop.load(Ordering::Relaxed) {
            let must_look = live.looked.is_none_or(|at| at.elapsed() >= LOOK);
            if must_look && !self.look(live, sink)? {
                return Ok(());
            }
            if live.is_paused {
                std::thread::sleep(LONG_PAUSE);
                continue;
            }
            let has_moved = self.advance(live)?;
            self.cadence.note_rows(self.assembler.rows());
            let is_alive = if self.assembler.is_full() {
                self.cut(CutReason::Full, sink)?
            } else if self.cadence.has_lingered() {
                self.cut(CutReason::Linger, sink)?
            } else {
                true
            };
            if !is_alive || !self.decide(sink)? {
                return Ok(());
            }
            if !has_moved {
                std::thread::sleep(PAUSE);
            }
        }
        self.end(sink)
    }

    /// Uses the next messages. Returns whether there were any.
    fn advance(&mut self, live: &mut Live<'_>) -> Result<bool> {
        self.give_rows()?;
        if self.assembler.is_full() {
            return Ok(true);
        }
        if self.current.is_none() && !self.poll(live)? {
            return Ok(false);
        }
        loop {
            // A partition that has come back may have made rows due.
            if self.assembler.is_full() {
                return Ok(true);
            }
            let mut is_end = false;
            // Rows without a join are copied together, as many as the batch has room for.
            let room = self.assembler.room();
            while self.rows_ahead() < room {
                if !self.take_message()? {
                    is_end = true;
                    break;
                }
            }
            self.give_rows()?;
            if is_end && !self.assembler.is_full() {
                self.end_block()?;
                self.flush()?;
                self.current = None;
                return Ok(true);
            }
        }
    }

    /// Returns the number of rows of taken messages that were not given to the assembler.
    pub(super) fn rows_ahead(&self) -> usize {
        self.current.as_ref().map_or(0, |current| current.end - current.row)
    }

    /// Begins the block whose partition has shown the oldest events. Returns `false` if no stream
    /// has a message.
    ///
    /// Each stream has a block ready before one is chosen. So the partitions of all streams are
    /// known before the first event moves the watermark, and a stream is not read far ahead of
    /// another one.
    fn poll(&mut self, live: &mut Live<'_>) -> Result<bool> {
        for stream in 0..self.streams.len() {
            let input = &mut self.streams[stream];
            if !input.is_ready {
                input.is_ready = input.source.poll(&mut input.block, Duration::ZERO)?;
            }
            for decision in input.source.take_discoveries() {
                self.record(&decision)?;
            }
        }
        let marks = self.assembler.watermarks().marks();
        let ready = (0..self.streams.len()).filter(|&stream| self.streams[stream].is_ready);
        let mark = |stream: &usize| {
            let partition = self.streams[*stream].block.partition();
            marks.get(&partition).and_then(|(time, _)| *time)
        };
        let Some(stream) = ready.min_by_key(mark) else { return Ok(false) };
        if !self.find_schemas(stream, live.stop)? {
            return Ok(false);
        }
        self.streams[stream].is_ready = false;
        let partition = self.streams[stream].block.partition();
        live.heard.insert(partition, Instant::now());
        if self.position.partition(partition).is_some_and(|known| known.is_idle) {
            self.record(&Decision::Back { partition })?;
            self.assembler.set_idle(partition, false)?;
            self.assembler.drain()?;
        }
        self.begin_block(stream)?;
        Ok(true)
    }

    /// Appends a decision to the log and applies it to the position.
    pub(super) fn record(&mut self, decision: &Decision) -> Result<()> {
        self.flush()?;
        let number = self.log.append(decision)?;
        self.cadence.note_decision();
        self.apply(number, decision)
    }

    /// Appends the span of the messages that were taken since the last decision.
    fn flush(&mut self) -> Result<()> {
        let Some((taking, _)) = self.taking.take() else { return Ok(()) };
        let decision = Decision::Took(taking.finish());
        let number = self.log.append(&decision)?;
        self.cadence.note_decision();
        self.apply(number, &decision)
    }

    /// Ends the batch. Returns `false` if the run takes no more items.
    fn cut(&mut self, reason: CutReason, sink: &mut Sink<'_>) -> Result<bool> {
        let (batch, rows) = (self.counts.batches + 1, self.assembler.rows() as u64);
        self.record(&Decision::Cut { batch, rows, reason })?;
        self.log.sync()?;
        self.cadence.note_cut(rows);
        let item = self.finish_batch(reason);
        Ok(sink(item))
    }

    /// Publishes and writes a checkpoint if they are due. Returns `false` if the run takes no more
    /// items.
    fn decide(&mut self, sink: &mut Sink<'_>) -> Result<bool> {
        if self.cadence.wants_version() && !self.publish(sink)? {
            return Ok(false);
        }
        if self.cadence.wants_checkpoint() && self.assembler.rows() == 0 {
            return self.checkpoint(sink);
        }
        Ok(true)
    }

    fn publish(&mut self, sink: &mut Sink<'_>) -> Result<bool> {
        self.record(&Decision::Publish { batch: self.counts.batches })?;
        self.log.sync()?;
        self.cadence.note_publish();
        let version = FedVersion { newest: self.newest.clone(), repetition: Repetition::New };
        Ok(sink(Item::Publish(Box::new(version))))
    }

    fn checkpoint(&mut self, sink: &mut Sink<'_>) -> Result<bool> {
        self.record(&Decision::Checkpoint { batch: self.counts.batches })?;
        self.log.sync()?;
        let link = self.save()?;
        self.cadence.note_checkpoint();
        Ok(sink(Item::Checkpoint(link)))
    }

    /// Ends the run: the last batch is cut as it stands, and a version and a checkpoint are
    /// written.
    fn end(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        if self.assembler.rows() > 0 && !self.cut(CutReason::Stop, sink)? {
            return Ok(());
        }
        if self.cadence.has_unpublished() && !self.publish(sink)? {
            return Ok(());
        }
        if self.checkpoint(sink)? && sink(Item::Status(Box::new(self.status(false, false)))) {
            sink(Item::End);
        }
        Ok(())
    }

    /// Looks for idle partitions, for the wish of an operator to pause, and for decisions that can
    /// be forgotten. Hands the present state over. Returns `false` if the run takes no more items.
    fn look(&mut self, live: &mut Live<'_>, sink: &mut Sink<'_>) -> Result<bool> {
        // A feed that was held up has not heard what was written in the meantime.
        let was_held_up = live.looked.is_some_and(|at| at.elapsed() > 3 * LOOK) || live.is_paused;
        live.looked = Some(Instant::now());
        if was_held_up {
            live.heard.values_mut().for_each(|heard| *heard = Instant::now());
        }
        let forget = live.forget.load(Ordering::Relaxed);
        if forget > self.log.first() {
            self.forget_before(forget)?;
        }
        live.is_paused = self.folder.join(PAUSED).exists();
        let limit = Duration::from_secs_f64(self.setup.online().idle_seconds);
        let mut idle = Vec::new();
        for input in &self.streams {
            for state in input.source.partitions() {
                let heard = live.heard.entry(state.partition).or_insert_with(Instant::now);
                let known = self.position.partition(state.partition);
                let is_active = known.is_some_and(|known| !known.is_idle);
                // A partition that the feed has not read to its end is not idle.
                let is_read = known.is_some_and(|known| known.next_offset >= state.end);
                if is_active && is_read && heard.elapsed() >= limit {
                    idle.push(state.partition);
                }
            }
        }
        // The rows that are due, and those of a full batch, must leave before a watermark rises.
        if self.current.is_none() {
            self.assembler.drain()?;
        }
        if !live.is_paused && self.current.is_none() && !self.assembler.is_full() {
            // The watermark stays where it is when the last partition becomes idle. So this must be
            // the one with the newest events.
            let marks = self.assembler.watermarks().marks();
            idle.sort_by_key(|partition| marks.get(partition).and_then(|(time, _)| *time));
            for partition in idle {
                if self.assembler.is_full() {
                    break;
                }
                self.record(&Decision::Idle { partition })?;
                self.assembler.set_idle(partition, true)?;
                self.assembler.drain()?;
            }
        }
        let status = self.status(live.is_paused, false);
        Ok(sink(Item::Status(Box::new(status))))
    }

    /// Returns the present state.
    pub(in crate::online) fn status(&self, is_paused: bool, is_replaying: bool) -> FeedStatus {
        let mut partitions = Vec::new();
        for input in &self.streams {
            for state in input.source.partitions() {
                let known = self.position.partition(state.partition);
                partitions.push(PartitionStatus {
                    id: Some(state.partition),
                    stream: input.name.clone(),
                    next: known.map_or(state.next, |known| known.next_offset),
                    lag: state.end.saturating_sub(known.map_or(state.next, |k| k.next_offset)),
                    newest_ms: known.and_then(|known| known.newest).map(|time| time.0),
                    is_idle: known.is_some_and(|known| known.is_idle),
                    partition: state.name,
                });
            }
        }
        FeedStatus {
            partitions,
            watermark_ms: self.assembler.watermarks().watermark().map(|time| time.0),
            batches: self.counts.batches,
            rows: self.counts.rows,
            messages: self.counts.messages,
            rejected: self.letters.rejected(),
            refused_times: self.counts.refused_times,
            full: self.counts.full,
            lingered: self.counts.lingered,
            is_paused,
            is_replaying,
            join: self.assembler.join_status(),
        }
    }
}
