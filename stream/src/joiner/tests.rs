//! Tests of the joiner. The inputs of a test and the joiner with its folder are here.

mod bounds;
mod cases;
mod checkpoints;
mod faults;
mod model;
mod random;

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use zillion_device::Files;

use super::*;
use crate::partition::{EventTime, Partition};
use crate::watermark::{RefusedTime, TimeRules};

const YEAR: i64 = 365 * 24 * 3_600_000;

/// An input of a joiner, and of the model that it is compared with.
#[derive(Clone, Debug)]
enum Input {
    Impression { partition: u32, key: Vec<u8>, time: Option<i64>, row: Vec<u8>, weight: f32 },
    Feedback { partition: u32, key: Vec<u8>, time: Option<i64>, kind: u16, value: f32 },
    Idle(u32),
    Back(u32),
    End,
}

/// A row that was emitted, with its own bytes.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    row: Vec<u8>,
    time: i64,
    weight: f32,
    cancels: f32,
    feedback: Vec<(u16, f32)>,
    reason: Reason,
}

impl From<JoinedRow<'_>> for Row {
    fn from(row: JoinedRow<'_>) -> Self {
        Self {
            row: row.row.to_vec(),
            time: row.time.0,
            weight: row.weight,
            cancels: row.cancels,
            feedback: row.feedback.iter().map(|value| (value.kind, value.value)).collect(),
            reason: row.reason,
        }
    }
}

fn partition(number: u32) -> Partition {
    Partition { stream: 0, number }
}

/// Returns settings with a window of 100 ms, a disorder of 10 ms and bounds that few rows reach.
fn settings(emit: Emit) -> Settings {
    Settings {
        times: TimeRules {
            disorder: 10,
            max_ahead: 1_000,
            accept_jump_after: NonZeroU32::new(3).unwrap(),
            start: None,
        },
        wait: 100,
        emit,
        negatives: Negatives { keep: 1.0, correction: SamplingCorrection::Weight },
        bounds: Bounds { max_rows: 1_000_000, max_disk_bytes: 1 << 20, max_memory_bytes: 1 << 20 },
    }
}

fn impression(key: &str, time: i64) -> Input {
    let (key, row) = (key.as_bytes().to_vec(), format!("row of {key}").into_bytes());
    Input::Impression { partition: 0, key, time: Some(time), row, weight: 1.0 }
}

fn feedback(key: &str, time: i64, kind: u16) -> Input {
    let key = key.as_bytes().to_vec();
    Input::Feedback { partition: 0, key, time: Some(time), kind, value: f32::from(kind) + 0.5 }
}

/// Gives an input to a joiner without taking its rows.
fn put(joiner: &mut Joiner, input: &Input) -> JoinResult<Option<Outcome>> {
    match input {
        Input::Impression { partition: number, key, time, row, weight } => {
            let time = time.map(EventTime);
            let impression = Impression { key, time, row, weight: *weight };
            joiner.add_impression(partition(*number), impression).map(Some)
        }
        Input::Feedback { partition: number, key, time, kind, value } => {
            let value = FeedbackValue { kind: *kind, value: *value };
            let feedback = Feedback { key, time: time.map(EventTime), value };
            joiner.add_feedback(partition(*number), feedback).map(Some)
        }
        Input::Idle(number) => joiner.set_idle(partition(*number)).map(|()| None),
        Input::Back(number) => joiner.set_back(partition(*number)).map(|()| None),
        Input::End => joiner.end().map(|()| None),
    }
}

/// Takes all rows of the last input.
fn drain(joiner: &mut Joiner, rows: &mut Vec<Row>) -> JoinResult<()> {
    while let Some(row) = joiner.next_row()? {
        rows.push(row.into());
    }
    Ok(())
}

/// Creates a joiner with some partitions of stream 0.
fn create(folder: &Path, files: Files, settings: Settings, partitions: u32) -> JoinResult<Joiner> {
    let mut joiner = Joiner::create(folder, files, settings)?;
    for number in 0..partitions {
        joiner.add_partition(partition(number))?;
        drain(&mut joiner, &mut Vec::new())?;
    }
    Ok(joiner)
}

/// A joiner in a temporary folder.
struct Workplace {
    folder: TempDir,
    joiner: Joiner,
    settings: Settings,
    checkpoints: usize,
}

impl Workplace {
    fn new(settings: Settings, partitions: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let joiner =
            create(&folder.path().join("rows"), Files::new(), settings, partitions).unwrap();
        Self { folder, joiner, settings, checkpoints: 0 }
    }

    /// Gives an input to the joiner, and returns the rows that it emits.
    fn push(&mut self, input: &Input) -> (Option<Outcome>, Vec<Row>) {
        let outcome = put(&mut self.joiner, input).unwrap();
        let mut rows = Vec::new();
        drain(&mut self.joiner, &mut rows).unwrap();
        (outcome, rows)
    }

    /// Gives all inputs to the joiner, and returns all rows.
    fn push_all(&mut self, inputs: &[Input]) -> Vec<Row> {
        inputs.iter().flat_map(|input| self.push(input).1).collect()
    }

    /// Writes a checkpoint and returns its folder.
    fn checkpoint(&mut self) -> PathBuf {
        self.checkpoints += 1;
        let target = self.folder.path().join(format!("checkpoint-{}", self.checkpoints));
        self.joiner.checkpoint(&target).unwrap();
        target
    }

    /// Replaces the joiner by one that is restored from a checkpoint, as after a crash.
    fn restore(&mut self, checkpoint: &Path) {
        let rows = self.folder.path().join("rows");
        self.joiner = Joiner::restore(checkpoint, rows, Files::new(), self.settings).unwrap();
    }

    fn counters(&self) -> Counters {
        *self.joiner.counters()
    }
}
