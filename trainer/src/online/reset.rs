//! Resets of a stopped run: its streams go on at other messages.
//!
//! A reset is a decision in the log for each partition that moves, so a replay follows it. Messages
//! are counted by reading them, apart from topics of Kafka, where offsets are compared. The model
//! does not change: rows that are read again are learned from twice, and rows that are left out are
//! in no version.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use zillion_device::Files;
use zillion_stream::{
    Block, Decision, DecisionLog, FileHistory, FileIdentity, LogOptions, Partition, Place,
    Position, Source, first_decision, read_decisions,
};

use super::events::EventReader;
use super::needs::{Needs, find_missing, position_of};
use super::renewal::newest_link;
use super::setup::{FeedSetup, lock_run, open_source, stream_folder};
use crate::checkpoint::{Checkpoint, RunDir};
use crate::error::{Error, Result};
use crate::job::{Job, StreamConfig, StreamKind};

/// The wait for messages after which a partition counts as read to its end.
const WAIT: Duration = Duration::from_millis(200);

/// The consequences of a reset.
#[derive(Debug, Serialize)]
pub struct ResetPlan {
    /// The partitions that move.
    pub partitions: Vec<PartitionReset>,
    /// The number of the first batch that contains messages which are read again; absent if none
    /// are, or if the log does not go back so far.
    pub first_batch: Option<u64>,
    /// The number of steps before this batch.
    pub first_step: Option<u64>,
    /// The batches that the run forgets, because it cannot repeat them; absent if it can.
    pub forgotten: Option<Forgotten>,
    #[serde(skip)]
    decisions: Vec<Decision>,
    #[serde(skip)]
    next_decision: u64,
}

/// The batches after the newest checkpoint of a run that cannot be repeated, because messages were
/// removed. A reset leaves them out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Forgotten {
    /// The number of batches.
    pub batches: u64,
    /// The number of rows in these batches.
    pub rows: u64,
    /// The first thing that is missing.
    pub missing: String,
}

/// The move of one partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PartitionReset {
    /// The name of the stream.
    pub stream: String,
    /// The name of the partition.
    pub partition: String,
    /// The offset of the next message now.
    pub from: u64,
    /// The offset of the next message after the reset.
    pub to: u64,
    /// The number of messages that are read again, or that are left out. For topics of Kafka, this
    /// is the number of offsets, some of which may have no message.
    pub messages: u64,
}

impl PartitionReset {
    /// Returns whether messages are read again; otherwise they are left out.
    pub fn is_again(&self) -> bool {
        self.to < self.from
    }
}

/// Returns the consequences of a reset of a stopped run. The log does not change.
///
/// # Errors
/// Returns an error if a process runs the training, if a stream cannot be read, or if the job joins
/// streams and messages would be read again.
pub fn plan_reset(job: &Job, files: &Files, place: Place) -> Result<ResetPlan> {
    let (run, log) = (job.output(), stream_folder(&job.output()).join("log"));
    if DecisionLog::is_in_use(&log)? {
        return Err(Error::Refused(format!(
            "a process runs the training in {}; stop it first",
            run.display()
        )));
    }
    let (checkpoint, begin, mut position) = read_position(&run, &log)?;
    let statistics = checkpoint.as_ref().map(|c| c.manifest.statistics.clone()).unwrap_or_default();
    let setup = FeedSetup {
        job: std::sync::Arc::new(job.clone()),
        statistics,
        files: files.clone(),
        run: run.clone(),
        start: None,
        only_replays: true,
    };
    let next_decision = position.next_decision();
    let missing = find_missing(job, &Needs::of(begin.clone(), &log)?)?;
    let lost = missing.map(|missing| Lost::read(&log, &begin, &position, missing)).transpose()?;
    let (mut decisions, mut moves) = (Vec::new(), Vec::new());
    if let Some(lost) = &lost {
        for decision in &lost.decisions {
            position.apply(position.next_decision(), decision)?;
        }
        decisions.clone_from(&lost.decisions);
    }
    for (number, stream) in (0..).zip(&job.streams) {
        let found = find_moves(&setup, (number, stream), &log, &position, place)?;
        for decision in found.discoveries {
            position.apply(position.next_decision(), &decision)?;
            decisions.push(decision);
        }
        moves.extend(found.moves);
    }
    let mut plan = ResetPlan {
        partitions: Vec::new(),
        first_batch: None,
        first_step: None,
        forgotten: lost.as_ref().map(|lost| lost.forgotten.clone()),
        decisions,
        next_decision,
    };
    let moved: Vec<Partition> = moves.iter().map(|(partition, ..)| *partition).collect();
    for partition in lost.into_iter().flat_map(|lost| lost.partitions) {
        // The source has not read the messages that are not read again.
        if let Some(known) = position.partition(partition).filter(|_| !moved.contains(&partition)) {
            let (to, files) = (known.next_offset, known.files.clone());
            plan.decisions.push(Decision::Reset { partition, to, files });
        }
    }
    for (partition, reset, history) in moves {
        if reset.is_again() && job.join.is_some() {
            return Err(Error::Refused(format!(
                "partition `{}` of stream `{}` would be read again from offset {}, but the join \
                 drops impressions before its watermark; begin another run from what this one has \
                 learned, in another folder (`run.output`)",
                reset.partition, reset.stream, reset.to
            )));
        }
        if reset.is_again() {
            plan.note_batches(&log, checkpoint.as_ref(), partition, reset.to)?;
        }
        plan.decisions.push(Decision::Reset { partition, to: reset.to, files: history });
        plan.partitions.push(reset);
    }
    Ok(plan)
}

/// Carries a plan out: its decisions are appended to the log.
///
/// # Errors
/// Returns an error if a process runs the training, or if the log has changed since the plan.
pub fn reset_streams(job: &Job, files: &Files, plan: &ResetPlan) -> Result<()> {
    let lock = lock_run(&job.output(), files)?;
    let mut writer = DecisionLog::open_locked(files, &lock, LogOptions::default())?;
    if writer.next() != plan.next_decision {
        return Err(Error::Refused(
            "the run has gone on since the consequences were shown; repeat the command".to_owned(),
        ));
    }
    for decision in &plan.decisions {
        writer.append(decision)?;
    }
    Ok(writer.sync()?)
}

impl ResetPlan {
    /// Takes note of the first batch that contains messages of a partition from an offset on.
    fn note_batches(
        &mut self,
        log: &Path,
        checkpoint: Option<&Checkpoint>,
        partition: Partition,
        to: u64,
    ) -> Result<()> {
        let (mut is_taken, mut is_known) = (false, false);
        let (mut cuts, mut skips) = (Vec::new(), Vec::new());
        for decision in &self.decisions {
            if let Decision::Skip { from, to, .. } = decision {
                skips.push((u64::MAX, *from..*to));
            }
        }
        for entry in read_decisions(log, first_decision(log)?)? {
            match entry? {
                (_, Decision::Took(took)) if took.partition == partition => {
                    is_known |= took.from <= to;
                    is_taken |= took.to > to;
                }
                (number, Decision::Cut { batch, .. }) if is_taken => cuts.push((number, batch)),
                (number, Decision::Skip { from, to, .. }) => skips.push((number, from..to)),
                _ => {}
            }
        }
        // The model has learned from none of the batches that a rewind left out.
        let is_left_out = |(number, batch): &(u64, u64)| {
            skips.iter().any(|(skip, left_out)| number < skip && left_out.contains(batch))
        };
        cuts.retain(|cut| !is_left_out(cut));
        let Some(&(_, first)) = cuts.first().filter(|_| is_known) else { return Ok(()) };
        if self.first_batch.is_none_or(|known| first < known) {
            self.first_batch = Some(first);
            let manifest = checkpoint.map(|checkpoint| &checkpoint.manifest);
            let link = manifest.and_then(|manifest| manifest.stream.as_ref());
            self.first_step = manifest.zip(link).map(|(manifest, link)| {
                let learned = cuts.iter().filter(|(_, batch)| *batch <= link.batches).count();
                manifest.step.saturating_sub(learned as u64)
            });
        }
        Ok(())
    }
}

/// The decisions behind the newest checkpoint, if they cannot be repeated.
struct Lost {
    forgotten: Forgotten,
    /// The decisions that leave them out.
    decisions: Vec<Decision>,
    /// The partitions of which they have consumed messages.
    partitions: BTreeSet<Partition>,
}

impl Lost {
    /// Reads the decisions between two positions of a log.
    fn read(log: &Path, begin: &Position, end: &Position, missing: String) -> Result<Self> {
        let (mut partitions, mut cuts) = (BTreeSet::new(), Vec::new());
        for entry in read_decisions(log, begin.next_decision())? {
            match entry? {
                (_, Decision::Took(took)) => {
                    partitions.insert(took.partition);
                }
                (_, Decision::Cut { batch, rows, .. }) => cuts.push((batch, rows)),
                // The run has learned from none of the batches that were left out or forgotten.
                (_, Decision::Skip { from, to, .. }) => {
                    cuts.retain(|(batch, _)| !(from..to).contains(batch));
                }
                _ => {}
            }
        }
        let rows = cuts.iter().map(|(_, rows)| rows).sum();
        let forgotten = Forgotten { batches: cuts.len() as u64, rows, missing };
        let first = cuts.first().map_or(0, |(batch, _)| *batch);
        let behind = cuts.last().map_or(0, |(batch, _)| batch + 1);
        // The watermark does not follow these decisions. So the partitions that are idle at their
        // end must be those of their beginning.
        let mut decisions = Vec::new();
        for (partition, known) in end.partitions() {
            let was_idle = begin.partition(partition).is_some_and(|known| known.is_idle);
            match (was_idle, known.is_idle) {
                (true, false) => decisions.push(Decision::Idle { partition }),
                (false, true) => decisions.push(Decision::Back { partition }),
                _ => {}
            }
        }
        decisions.push(Decision::Skip {
            from: first,
            to: behind,
            reason: format!("an operator has reset the streams, because {}", forgotten.missing),
            unread: Some(begin.next_decision()),
        });
        Ok(Self { forgotten, decisions, partitions })
    }
}

/// Returns the newest checkpoint of a run, its position, and that at the end of the log.
fn read_position(run: &Path, log: &Path) -> Result<(Option<Checkpoint>, Position, Position)> {
    let dir = RunDir::new(run.to_owned());
    let newest = dir.steps()?.last().copied();
    let path = newest.map(|step| dir.checkpoint_path(step)).transpose()?;
    let checkpoint = path.map(Checkpoint::open).transpose()?;
    let link = checkpoint.as_ref().map(|checkpoint| newest_link(run, checkpoint)).transpose()?;
    let begin = position_of(run, link.flatten().as_ref())?;
    let mut position = begin.clone();
    for entry in read_decisions(log, position.next_decision())? {
        let (number, decision) = entry?;
        position.apply(number, &decision)?;
    }
    Ok((checkpoint, begin, position))
}

/// The moves of the partitions of a stream, and what was found on the way.
struct Found {
    discoveries: Vec<Decision>,
    moves: Vec<(Partition, PartitionReset, FileHistory)>,
}

/// Finds the new offset of each partition of a stream.
fn find_moves(
    setup: &FeedSetup,
    (number, stream): (u16, &StreamConfig),
    log: &Path,
    position: &Position,
    place: Place,
) -> Result<Found> {
    let online = setup.online();
    let mut early = position.clone();
    let mut known = BTreeMap::new();
    if stream.kind == StreamKind::Folder {
        known = find_files(stream, number, log, position)?;
        for (&partition, (to, history)) in &known {
            let (to, files) = (*to, history.clone());
            early.apply(early.next_decision(), &Decision::Reset { partition, to, files })?;
        }
    }
    let mut source = open_source(stream, number, &online, &early)?;
    let mut scan = Scan::default();
    if stream.kind == StreamKind::Folder {
        let reader = EventReader::new(&setup.job, stream, &setup.sides()?, &setup.statistics)?;
        scan.read(source.as_mut(), &reader, position, place)?;
    } else {
        source.poll(&mut Block::new(), WAIT)?;
        scan.discoveries = source.take_discoveries();
    }
    for decision in &scan.discoveries {
        if let Decision::File { partition, file } = decision {
            known.entry(*partition).or_default().1.add(*partition, file.clone())?;
        }
    }
    let mut moves = Vec::new();
    for state in source.partitions() {
        let partition = state.partition;
        let from = position.partition(partition).map_or(0, |known| known.next_offset);
        let (to, messages) = match source.find_offset(partition, place)? {
            Some(to) => (to, to.abs_diff(from)),
            None => scan.target(partition, from, place, state.end),
        };
        if to == from {
            continue;
        }
        let (_, mut history) = known.remove(&partition).unwrap_or_default();
        history.forget(to);
        let reset = PartitionReset {
            stream: stream.name.clone(),
            partition: state.name,
            from,
            to,
            messages,
        };
        moves.push((partition, reset, history));
    }
    Ok(Found { discoveries: scan.discoveries, moves })
}

/// Returns the files of each partition of a followed folder that the run knows and that still
/// exist, up to the last one without a gap, and the offset at which they begin.
fn find_files(
    stream: &StreamConfig,
    number: u16,
    log: &Path,
    position: &Position,
) -> Result<BTreeMap<Partition, (u64, FileHistory)>> {
    let root = stream.path.clone().unwrap_or_default();
    let mut files: BTreeMap<Partition, BTreeMap<String, FileIdentity>> = BTreeMap::new();
    for (partition, known) in position.of_stream(number) {
        let known = known.files.files().iter().map(|file| (file.name.clone(), file.clone()));
        files.entry(partition).or_default().extend(known);
    }
    for entry in read_decisions(log, first_decision(log)?)? {
        if let Decision::File { partition, file } = entry?.1
            && partition.stream == number
        {
            files.entry(partition).or_default().insert(file.name.clone(), file);
        }
    }
    let mut histories = BTreeMap::new();
    for (partition, files) in files {
        let Some(known) = position.partition(partition) else { continue };
        let folder = root.join(&known.name);
        let exists = |file: &FileIdentity| {
            std::fs::metadata(folder.join(&file.name)).is_ok_and(|data| data.len() == file.size)
        };
        let mut kept: Vec<FileIdentity> = Vec::new();
        for (_, file) in files.into_iter().rev() {
            let is_joined = kept.last().is_none_or(|next| file.end() == next.start);
            if !is_joined || !exists(&file) {
                break;
            }
            kept.push(file);
        }
        kept.reverse();
        let all = known.files.forgotten() + known.files.files().len() as u64;
        let forgotten = all.saturating_sub(kept.len() as u64);
        let found = match kept.first().map(|first| first.start) {
            None => (known.files.end(), known.files.clone()),
            Some(start) => (start, FileHistory::restore(partition, forgotten, kept)?),
        };
        histories.insert(partition, found);
    }
    Ok(histories)
}

/// The messages of a followed folder, counted on both sides of a place.
#[derive(Debug, Default)]
struct Scan {
    discoveries: Vec<Decision>,
    partitions: BTreeMap<Partition, Scanned>,
}

/// The messages of one partition.
#[derive(Clone, Copy, Debug, Default)]
struct Scanned {
    first: Option<u64>,
    /// The offset of the first message with an event at or after the wanted time.
    target: Option<u64>,
    /// The messages that were consumed: all of them, and those from the target on.
    consumed: (u64, u64),
    /// The messages that were not consumed yet: all of them, and those before the target.
    waiting: (u64, u64),
}

impl Scan {
    /// Reads all messages from the position of a source on.
    fn read(
        &mut self,
        source: &mut dyn Source,
        reader: &EventReader,
        position: &Position,
        place: Place,
    ) -> Result<()> {
        let mut block = Block::new();
        while source.poll(&mut block, WAIT)? {
            self.discoveries.extend(source.take_discoveries());
            let partition = block.partition();
            let next = position.partition(partition).map_or(0, |known| known.next_offset);
            let scanned = self.partitions.entry(partition).or_default();
            scanned.first.get_or_insert(block.start());
            let events = match place {
                Place::Time(_) => Some(reader.read(block.iter().map(|message| message.bytes))?),
                Place::Start | Place::End => None,
            };
            for (index, message) in block.iter().enumerate() {
                if let (Some(events), Place::Time(time)) = (&events, place) {
                    let begin = index.checked_sub(1).map_or(0, |before| events.ends[before]);
                    let mut times = events.times[begin..events.ends[index]].iter();
                    if scanned.target.is_none() && times.any(|&event| event >= time) {
                        scanned.target = Some(message.offset);
                    }
                }
                let is_behind = u64::from(scanned.target.is_some());
                if message.offset < next {
                    scanned.consumed.0 += 1;
                    scanned.consumed.1 += is_behind;
                } else {
                    scanned.waiting.0 += 1;
                    scanned.waiting.1 += 1 - is_behind;
                }
            }
        }
        self.discoveries.extend(source.take_discoveries());
        Ok(())
    }

    /// Returns the new offset of a partition, and the number of messages between it and `from`.
    fn target(&self, partition: Partition, from: u64, place: Place, end: u64) -> (u64, u64) {
        let scanned = self.partitions.get(&partition).copied().unwrap_or_default();
        match place {
            Place::Start => (scanned.first.unwrap_or(from), scanned.consumed.0),
            Place::End => (end.max(from), scanned.waiting.0),
            Place::Time(_) => match scanned.target {
                Some(to) if to < from => (to, scanned.consumed.1),
                Some(to) => (to, scanned.waiting.1),
                None => (end.max(from), scanned.waiting.0),
            },
        }
    }
}
