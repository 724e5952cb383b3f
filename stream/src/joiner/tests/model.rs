//! A joiner as simple as possible: lists in memory that are searched from end to end.

use std::collections::BTreeMap;

use super::super::weights::Sampling;
use super::*;

/// The model of a joiner. It has one bound, that of rows.
pub(super) struct Model {
    settings: Settings,
    partitions: BTreeMap<u32, ModelPartition>,
    highest: Option<i64>,
    watermark: Option<i64>,
    pending: Vec<ModelRow>,
    early: Vec<(Vec<u8>, i64, u16, f32)>,
    arrivals: u64,
    pub(super) counters: Counters,
}

#[derive(Default)]
struct ModelPartition {
    highest: Option<i64>,
    is_idle: bool,
    ahead: Vec<i64>,
}

struct ModelRow {
    key: Vec<u8>,
    time: i64,
    arrival: u64,
    row: Vec<u8>,
    weight: f32,
    /// The weight with which the row was emitted at once.
    emitted: f32,
    feedback: BTreeMap<u16, f32>,
}

impl Model {
    pub(super) fn new(settings: Settings, partitions: u32) -> Self {
        Self {
            settings,
            partitions: (0..partitions).map(|n| (n, ModelPartition::default())).collect(),
            highest: None,
            watermark: None,
            pending: Vec::new(),
            early: Vec::new(),
            arrivals: 0,
            counters: Counters::default(),
        }
    }

    pub(super) fn push(&mut self, input: &Input) -> (Option<Outcome>, Vec<Row>) {
        let mut rows = Vec::new();
        let outcome = match input {
            Input::Impression { partition, key, time, row, weight } => {
                Some(self.impression(*partition, key, *time, row, *weight, &mut rows))
            }
            Input::Feedback { partition, key, time, kind, value } => {
                Some(self.feedback(*partition, key, *time, (*kind, *value), &mut rows))
            }
            Input::Idle(number) => {
                self.partitions.get_mut(number).unwrap().is_idle = true;
                None
            }
            Input::Back(number) => {
                self.partitions.get_mut(number).unwrap().is_idle = false;
                None
            }
            Input::End => None,
        };
        let is_end = matches!(input, Input::End);
        self.move_watermark(is_end);
        self.leave(is_end, &mut rows);
        (outcome, rows)
    }

    fn wait(&self) -> i64 {
        self.settings.wait as i64
    }

    fn passed(&self, time: i64) -> bool {
        self.watermark.is_some_and(|watermark| time + self.wait() < watermark)
    }

    fn judge(&mut self, number: u32, time: Option<i64>) -> Result<i64, Outcome> {
        let max_ahead = self.settings.times.max_ahead as i64;
        let partition = self.partitions.get_mut(&number).unwrap();
        let refused = |reason| Err(Outcome::Refused(Refusal::Time(reason)));
        match time {
            None => {
                self.counters.refused_missing += 1;
                refused(RefusedTime::Missing)
            }
            Some(time) if time < 0 => {
                self.counters.refused_negative += 1;
                refused(RefusedTime::Negative)
            }
            Some(time) if self.highest.is_some_and(|highest| time - highest > max_ahead) => {
                partition.ahead.push(time);
                let spread =
                    partition.ahead.iter().max().unwrap() - partition.ahead.iter().min().unwrap();
                if spread > max_ahead {
                    partition.ahead = vec![time];
                } else if partition.ahead.len()
                    >= self.settings.times.accept_jump_after.get() as usize
                {
                    partition.ahead.clear();
                    return Ok(time);
                }
                self.counters.refused_ahead += 1;
                refused(RefusedTime::Ahead)
            }
            Some(time) => {
                partition.ahead.clear();
                Ok(time)
            }
        }
    }

    fn see(&mut self, number: u32, time: i64) {
        let partition = self.partitions.get_mut(&number).unwrap();
        partition.highest = partition.highest.max(Some(time));
        self.highest = self.highest.max(Some(time));
    }

    fn impression(
        &mut self,
        number: u32,
        key: &[u8],
        time: Option<i64>,
        row: &[u8],
        weight: f32,
        rows: &mut Vec<Row>,
    ) -> Outcome {
        let time = match self.judge(number, time) {
            Ok(time) => time,
            Err(outcome) => return outcome,
        };
        self.see(number, time);
        if self.passed(time) {
            self.counters.late_impressions += 1;
            return Outcome::Late;
        }
        if self.pending.iter().any(|row| row.key == key) {
            self.counters.duplicate_impressions += 1;
            return Outcome::Duplicate;
        }
        self.counters.impressions += 1;
        let mut found = BTreeMap::new();
        for (_, early, kind, value) in self.early.extract_if(.., |(early, ..)| early == key) {
            if early > time + self.settings.wait as i64 {
                self.counters.late_feedback += 1;
            } else {
                self.counters.joined_feedback += 1;
                found.insert(kind, value);
            }
        }
        let mut new = ModelRow {
            key: key.to_vec(),
            time,
            arrival: self.arrivals,
            row: row.to_vec(),
            weight,
            emitted: 0.0,
            feedback: found,
        };
        self.arrivals += 1;
        if self.settings.emit != Emit::Window {
            let emitted = self.emit(&new, Reason::Now);
            new.emitted = emitted.as_ref().map_or(0.0, |row| row.weight);
            rows.extend(emitted);
        }
        self.pending.push(new);
        Outcome::Taken
    }

    fn feedback(
        &mut self,
        number: u32,
        key: &[u8],
        time: Option<i64>,
        (kind, value): (u16, f32),
        rows: &mut Vec<Row>,
    ) -> Outcome {
        let time = match self.judge(number, time) {
            Ok(time) => time,
            Err(outcome) => return outcome,
        };
        self.see(number, time);
        let (wait, emit) = (self.wait(), self.settings.emit);
        let Some(row) = self.pending.iter_mut().find(|row| row.key == key) else {
            if self.passed(time) {
                self.counters.late_feedback += 1;
                return Outcome::Late;
            }
            if self.early.iter().any(|early| early.0 == key && early.2 == kind) {
                self.counters.duplicate_feedback += 1;
                return Outcome::Duplicate;
            }
            self.early.push((key.to_vec(), time, kind, value));
            return Outcome::Early;
        };
        if row.feedback.contains_key(&kind) {
            self.counters.duplicate_feedback += 1;
            return Outcome::Duplicate;
        }
        if time > row.time + wait || emit == Emit::Now(Late::Drop) {
            self.counters.late_feedback += 1;
            return Outcome::Late;
        }
        row.feedback.insert(kind, value);
        self.counters.joined_feedback += 1;
        if emit == Emit::Now(Late::Correct) {
            self.counters.positives += 1;
            self.counters.corrections += 1;
            rows.push(Row {
                row: row.row.clone(),
                time: row.time,
                weight: row.weight,
                cancels: row.emitted,
                feedback: vec![(kind, value)],
                reason: Reason::Correction,
            });
        }
        Outcome::Taken
    }

    fn move_watermark(&mut self, is_end: bool) {
        let counted = self.partitions.values().filter(|partition| !partition.is_idle);
        let disorder = self.settings.times.disorder as i64;
        let lowest = counted.map(|partition| partition.highest).min().flatten();
        self.watermark = self.watermark.max(lowest.map(|lowest| lowest - disorder));
        let watermark = self.watermark.unwrap_or(i64::MIN);
        let wait = self.wait();
        let is_over = |time: i64| is_end || time + wait < watermark;
        let gone = self.early.extract_if(.., |(_, time, ..)| is_over(*time)).count();
        self.counters.unmatched_feedback += gone as u64;
    }

    /// Emits the rows that are due, or that are too many.
    fn leave(&mut self, is_end: bool, rows: &mut Vec<Row>) {
        self.pending.sort_by_key(|row| (row.time, row.arrival));
        while let Some(oldest) = self.pending.first() {
            let reason = if self.passed(oldest.time) {
                Reason::Window
            } else if is_end {
                Reason::End
            } else if self.pending.len() as u64 > self.settings.bounds.max_rows {
                self.counters.evicted_rows += 1;
                Reason::Bound
            } else {
                return;
            };
            let row = self.pending.remove(0);
            if self.settings.emit == Emit::Window {
                rows.extend(self.emit(&row, reason));
            }
        }
    }

    fn emit(&mut self, row: &ModelRow, reason: Reason) -> Option<Row> {
        let negatives = self.settings.negatives;
        let corrects_weight = negatives.correction == SamplingCorrection::Weight;
        let sampling = Sampling::new(negatives.keep, corrects_weight);
        let mut weight = row.weight;
        if row.feedback.is_empty() {
            let Some(sampled) = sampling.negative_weight(key::Key::of(&row.key), weight) else {
                self.counters.sampled_out += 1;
                return None;
            };
            self.counters.negatives += 1;
            weight = sampled;
        } else {
            self.counters.positives += 1;
        }
        Some(Row {
            row: row.row.clone(),
            time: row.time,
            weight,
            cancels: 0.0,
            feedback: row.feedback.iter().map(|(kind, value)| (*kind, *value)).collect(),
            reason,
        })
    }
}
