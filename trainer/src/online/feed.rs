//! The feed of a run: consumes messages, makes decisions, and hands over items.
//!
//! A feed first repeats the decisions that the log has after its start. Then it decides by itself.
//! Both use the same steps, so that a replay gives the items of the first time.

mod live;
mod replay;
mod rules;
mod schemas;
mod summary;

use std::path::PathBuf;
use std::sync::Arc;

use zillion_feature::{LookupPlan, PlanScratch};
use zillion_reader::{RejectedMessage, RejectionKind};
use zillion_stream::{
    Block, CutReason, DeadLetter, DeadLetterPosition, DeadLetters, Decision, DecisionLog,
    EventTime, LogLock, LogOptions, Message, Partition, Position, RowRules, SchemaRegistry, Source,
    Taking,
};

pub(super) use live::Live;
pub use live::PAUSED;
use rules::widen;
use summary::Summary;

use super::assembler::{Assembler, AssemblerState, RefusedRow, open_joiner};
use super::cadence::Cadence;
use super::columns::RowShape;
use super::events::{EventReader, Events};
use super::item::{FedBatch, Item};
use super::leftovers::{LeftMessage, Leftovers};
use super::newest::NewestRows;
use super::rules::{rules_of, time_rules_of};
use super::setup::{FeedSetup, open_source};
use super::snapshot::{self, FeedCounts, FeedState, SnapshotLink};
use crate::error::{Error, Result};
use crate::job::StreamFormat;

/// A function that hands an item over. It returns `false` if the run takes no more items.
pub(super) type Sink<'a> = dyn FnMut(Item) -> bool + 'a;

/// A feed of batches.
pub(super) struct Feed {
    setup: FeedSetup,
    folder: PathBuf,
    log: DecisionLog,
    position: Position,
    streams: Vec<StreamInput>,
    assembler: Assembler,
    letters: DeadLetters,
    counts: FeedCounts,
    cadence: Cadence,
    /// The newest messages with rows.
    newest: NewestRows,
    /// The number of messages that are kept there.
    kept_messages: usize,
    /// The decisions of the log that have an effect on earlier ones.
    summary: Summary,
    /// The messages that are being used.
    current: Option<Current>,
    /// The span that is not in the log yet, with the latest event time in it.
    taking: Option<(Taking, Partition)>,
    scratch: PlanScratch,
    refused: Vec<RefusedRow>,
    /// The block into which a repetition of the log reads.
    spare: Block,
    /// The settings by which messages become rows, as the log has recorded them last.
    rules: Option<RowRules>,
}

/// One stream with its source.
struct StreamInput {
    name: String,
    source: Box<dyn Source>,
    format: StreamFormat,
    reader: EventReader,
    /// The registry from which the reader gets schemas that it does not know.
    registry: Option<SchemaRegistry>,
    block: Block,
    /// Whether the block has messages that no one has begun to use.
    is_ready: bool,
}

/// The messages of a block that are being used.
struct Current {
    stream: usize,
    partition: Partition,
    events: Events,
    /// The number of messages that were taken.
    taken: usize,
    /// The number of rejected messages among them.
    rejected: usize,
    /// The place of the first row that was not given to the assembler.
    row: usize,
    /// The place behind the last row of the messages that were taken.
    end: usize,
    /// The last message that was written to the dead letters because of a row.
    letter: Option<usize>,
    /// The message of the rows, if they are those of a checkpoint.
    message: Option<LeftMessage>,
}

impl Feed {
    /// Opens a feed at the state of a checkpoint, or at the beginning of the log, whose lock this
    /// process has.
    pub(super) fn open(setup: FeedSetup, lock: &LogLock) -> Result<Self> {
        let (job, files) = (setup.job.clone(), setup.files.clone());
        let online = setup.online();
        let folder = setup.folder();
        files.create_dir(&folder)?;
        let log = DecisionLog::open_locked(&files, lock, LogOptions::default())?;
        if let Some(torn) = log.torn_tail() {
            tracing::warn!(path = %torn.path.display(), bytes = torn.bytes, "the end of the log was cut off");
        }
        let summary = Summary::read(&log)?;
        let start = setup.start.as_ref().map(|link| snapshot::read(&folder, link)).transpose()?;
        let (place, state) = start.unzip();
        let first = FeedState {
            position: Position::default(),
            letters: DeadLetterPosition::default(),
            counts: FeedCounts::default(),
            assembler: AssemblerState::default(),
            leftovers: None,
            newest: NewestRows::default(),
            rules: None,
        };
        let state = state.unwrap_or(first);
        let letters = DeadLetters::open(
            &files,
            folder.join("dead_letters.jsonl"),
            online.max_rejected,
            &state.letters,
        )?;
        let rules = state.rules.unwrap_or_else(|| rules_of(&online));
        let widest = widen(&online, &rules, &summary);
        let sides = setup.sides()?;
        let mut streams = Vec::new();
        for (number, stream) in (0..).zip(&job.streams) {
            streams.push(StreamInput {
                name: stream.name.clone(),
                format: stream.format,
                source: open_source(stream, number, &widest, &state.position)?,
                reader: EventReader::new(&job, stream, &sides, &setup.statistics)?,
                registry: match setup.only_replays {
                    true => None,
                    false => stream.registry.clone().map(SchemaRegistry::open).transpose()?,
                },
                block: Block::new(),
                is_ready: false,
            });
        }
        let (shape, most) = (RowShape::of(&job.schema), job.train.batch_size.get());
        let assembler = match &job.join {
            None => Assembler::restore(shape, most, time_rules_of(&rules), &state.assembler),
            Some(join) => {
                let source = place.as_deref().map(snapshot::joiner_of);
                let settings = join.settings(time_rules_of(&rules));
                let joiner =
                    open_joiner(source.as_deref(), &folder.join("joiner"), &files, settings)?;
                Assembler::joined(shape, most, joiner)
            }
        };
        let mut feed = Self {
            setup,
            folder,
            log,
            position: state.position,
            streams,
            assembler,
            letters,
            counts: state.counts,
            cadence: Cadence::new(&online),
            summary,
            newest: state.newest,
            kept_messages: job.publish.as_ref().map_or(1, |publish| publish.parity_rows.get()),
            current: None,
            taking: None,
            scratch: PlanScratch::default(),
            refused: Vec::new(),
            spare: Block::new(),
            rules: None,
        };
        feed.set_rules(state.rules)?;
        if feed.setup.start.as_ref().is_some_and(|link| link.is_unpublished) {
            feed.cadence.note_unpublished();
        }
        feed.restore_schemas()?;
        if let Some(leftovers) = state.leftovers {
            feed.restore_leftovers(&leftovers)?;
        }
        // Rows that the joiner had due, and rows of a message, follow before anything else.
        feed.give_rows()?;
        Ok(feed)
    }

    /// Removes the decisions before `number`, which no kept checkpoint needs.
    pub(super) fn forget_before(&mut self, number: u64) -> Result<()> {
        self.log.remove_before(number)?;
        Ok(())
    }

    fn restore_leftovers(&mut self, leftovers: &Leftovers) -> Result<()> {
        let (Some(partition), Some(input)) =
            (leftovers.partition, self.streams.get(leftovers.stream))
        else {
            return Ok(());
        };
        let events = input.reader.restore(leftovers)?;
        let end = events.times.len();
        let stream = leftovers.stream;
        let message = leftovers.message().transpose()?;
        // A message has one dead letter, which may have been written before the checkpoint.
        let letter = message.as_ref().and_then(|message| message.has_letter.then_some(0));
        let (taken, rejected, row) = (1, 0, 0);
        self.current =
            Some(Current { stream, partition, events, taken, rejected, row, end, letter, message });
        Ok(())
    }

    /// Decodes the messages of a stream's block, which are used from now on.
    fn begin_block(&mut self, stream: usize) -> Result<()> {
        let input = &self.streams[stream];
        let partition = input.block.partition();
        let events = input.reader.read(input.block.iter().map(|message| message.bytes))?;
        self.current = Some(Current {
            stream,
            partition,
            events,
            taken: 0,
            rejected: 0,
            row: 0,
            end: 0,
            letter: None,
            message: None,
        });
        Ok(())
    }

    /// Takes the next message of the block. Returns `false` if all were taken.
    fn take_message(&mut self) -> Result<bool> {
        let Some(current) = &mut self.current else { return Ok(false) };
        let input = &self.streams[current.stream];
        let Some(message) = input.block.get(current.taken) else { return Ok(false) };
        let (taking, _) = self.taking.get_or_insert_with(|| {
            (Taking::new(current.partition, message.offset), current.partition)
        });
        taking.add(&message);
        let index = current.taken;
        current.taken += 1;
        current.end = current.events.ends[index];
        self.counts.messages += 1;
        match current.events.rejected.get(current.rejected) {
            Some(rejected) if rejected.index == index => {
                current.rejected += 1;
                refuse_other_columns(&input.name, &self.position, &message, rejected)?;
                self.letters.reject(letter_of(&message, rejected.rejection.to_string()))?;
            }
            _ => {
                self.letters.accept(1);
                if input.reader.kind.is_none() {
                    self.newest.push(message.bytes, input.format, self.kept_messages);
                }
            }
        }
        Ok(true)
    }

    /// Takes what a block has besides messages: one that was too long, and bytes that are none.
    fn end_block(&mut self) -> Result<()> {
        let Some(current) = &self.current else { return Ok(()) };
        let block = &self.streams[current.stream].block;
        // The rows of a checkpoint have no block.
        if block.partition() != current.partition || current.taken < block.len() {
            return Ok(());
        }
        let partition = current.partition;
        let next = self.position.partition(partition).map_or(0, |known| known.next_offset);
        if let Some((taking, _)) = &mut self.taking {
            taking.extend_to(block.end());
        } else if block.end() > next {
            let mut taking = Taking::new(partition, next);
            taking.extend_to(block.end());
            self.taking = Some((taking, partition));
        }
        if let Some(long) = block.too_long() {
            let limit = zillion_rows::ByteSize(self.present_rules().max_message_bytes);
            self.counts.messages += 1;
            self.letters.reject(DeadLetter {
                partition: current.partition,
                offset: long.offset,
                reason: format!(
                    "the message is longer than {limit}; raise `online.max_message_bytes`, or \
                     split the message"
                ),
                bytes: long.head.clone(),
                is_cut: true,
            })?;
        }
        Ok(())
    }

    /// Gives the rows of the taken messages to the assembler, until the batch is full.
    fn give_rows(&mut self) -> Result<()> {
        self.assembler.drain()?;
        let Some(current) = &mut self.current else { return Ok(()) };
        let Current { stream, partition, events, row, end, letter, message: left, .. } = current;
        let input = &self.streams[*stream];
        self.refused.clear();
        let kind = input.reader.kind;
        let given =
            self.assembler.give(*partition, kind, events, (*row, *end), &mut self.refused)?;
        // The time of a refused event is not that of the partition.
        let is_used = |row: &usize| self.refused.iter().all(|refused| refused.row != *row);
        if let Some(newest) = (*row..given).filter(is_used).map(|row| events.times[row]).max() {
            self.position.observe(*partition, EventTime(newest))?;
        }
        *row = given;
        for RefusedRow { row, reason, is_time } in self.refused.drain(..) {
            self.counts.refused_times += u64::from(is_time);
            let message = events.ends.partition_point(|&end| end <= row);
            if *letter == Some(message) {
                continue;
            }
            let found = match left.as_ref() {
                Some(left) => Some((left.offset, left.bytes.as_slice())),
                None => input.block.get(message).map(|found| (found.offset, found.bytes)),
            };
            let Some((offset, bytes)) = found else { continue };
            *letter = Some(message);
            self.letters.reject(DeadLetter {
                partition: *partition,
                offset,
                reason: reason.to_owned(),
                bytes: bytes.to_vec(),
                is_cut: false,
            })?;
        }
        Ok(())
    }

    /// Drops the block of a partition that goes on elsewhere. Rows of messages that were taken
    /// stay.
    fn leave_block(&mut self, partition: Partition) {
        let Some(input) = self.streams.get_mut(usize::from(partition.stream)) else { return };
        if input.block.partition() != partition {
            return;
        }
        (input.block, input.is_ready) = (Block::new(), false);
        if !self.has_rows_left() && self.current.as_ref().is_some_and(|c| c.partition == partition)
        {
            self.current = None;
        }
    }

    /// Returns whether rows of taken messages wait for the next batch.
    fn has_rows_left(&self) -> bool {
        self.current.as_ref().is_some_and(|current| current.row < current.end)
    }

    /// Applies a decision with its number to the position.
    fn apply(&mut self, number: u64, decision: &Decision) -> Result<()> {
        self.position.apply(number, decision)?;
        if let Decision::Rules(rules) = decision {
            self.set_rules(Some(*rules))?;
        }
        if let Decision::Partitions { stream, names, .. } = decision {
            for number in 0..names.len() as u32 {
                self.assembler.add_partition(Partition { stream: *stream, number })?;
            }
        }
        Ok(())
    }

    /// Ends the batch and returns it as an item. The cut is in the log already.
    fn finish_batch(&mut self, reason: CutReason) -> Item {
        let cut = self.assembler.cut();
        self.counts.batches += 1;
        self.counts.rows += cut.batch.rows as u64;
        match reason {
            CutReason::Full => self.counts.full += 1,
            CutReason::Linger => self.counts.lingered += 1,
            CutReason::Stop => {}
        }
        let plan = LookupPlan::build(&cut.batch, &self.setup.job.schema, &mut self.scratch);
        Item::Batch(Box::new(FedBatch {
            number: self.counts.batches,
            batch: cut.batch,
            plan: Arc::new(plan),
            cancels: cut.cancels,
            reason,
            watermark: self.assembler.watermarks().watermark(),
        }))
    }

    /// Writes the state of the feed, which is between two batches.
    fn save(&mut self) -> Result<SnapshotLink> {
        let name = snapshot::folder_name(self.counts.batches, self.position.next_decision());
        let folder = self.folder.join(name);
        let files = self.setup.files.clone();
        let joiner = snapshot::begin(&files, &folder)?;
        let assembler = self.assembler.checkpoint(&joiner)?;
        let leftovers = self.current.as_ref().filter(|_| self.has_rows_left()).map(|current| {
            let Current { stream, partition, events, row, end, letter, .. } = current;
            let input = &self.streams[*stream];
            // All rows that are left belong to the last message that was taken.
            let number = events.ends.partition_point(|&end| end <= *row);
            let has_letter = *letter == Some(number);
            let message = match &current.message {
                Some(left) => Some((left.offset, left.bytes.as_slice())),
                None => input.block.get(number).map(|found| (found.offset, found.bytes)),
            };
            let message = message.map(|(offset, bytes)| LeftMessage {
                offset,
                bytes: bytes.to_vec(),
                has_letter,
            });
            input.reader.save(events, (*stream, *partition), *row..*end, message.as_ref())
        });
        let state = FeedState {
            position: self.position.clone(),
            letters: self.letters.sync()?,
            counts: self.counts,
            assembler,
            leftovers,
            newest: self.newest.clone(),
            rules: self.rules,
        };
        snapshot::finish(&files, &folder, &state)
    }
}

/// Returns an error if a message lacks a column, because all later ones are likely to lack it too.
fn refuse_other_columns(
    stream: &str,
    position: &Position,
    message: &Message<'_>,
    rejected: &RejectedMessage,
) -> Result<()> {
    if rejected.rejection.kind != RejectionKind::Columns {
        return Ok(());
    }
    Err(Error::StreamSchema {
        stream: stream.to_owned(),
        name: position.partition(message.partition).map(|p| p.name.clone()).unwrap_or_default(),
        partition: message.partition,
        offset: message.offset,
        problem: rejected.rejection.to_string(),
    })
}

fn letter_of(message: &Message<'_>, reason: String) -> DeadLetter {
    DeadLetter {
        partition: message.partition,
        offset: message.offset,
        reason,
        bytes: message.bytes.to_vec(),
        is_cut: false,
    }
}
