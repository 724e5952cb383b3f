//! Tests of the gate with a simulated stream and an online model.

mod checks;
mod drills;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{AnchorScores, Evidence, Gate, GateSettings, Inputs, Outcome, Verdict};
use crate::partition::EventTime;
use crate::validation::tests::Random;
use crate::validation::{Batch, ClosedWindow, Settings, Windows};

/// The number of features of a row beside its item.
const FEATURES: usize = 4;
/// The length of a window in milliseconds.
const LENGTH: i64 = 10_000;

/// The number of promoted versions between the baseline and the newest one.
const BASELINE: usize = 30;

/// A row: its features and its item.
#[derive(Clone, Copy, Default)]
struct Row {
    features: [f32; FEATURES],
    item: usize,
}

/// The state of the world while a window lasts.
#[derive(Clone, Copy)]
struct World {
    rows: usize,
    /// The shift of the log-odds of all labels.
    shift: f64,
    /// The share of rows whose item appeared within the last windows.
    new_items: f64,
    flips_labels: bool,
    /// The share of further rows whose label is flipped.
    flipped_share: f64,
    /// The live model learns from the rows of the window.
    learns: bool,
}

impl Default for World {
    fn default() -> Self {
        Self {
            rows: 2_000,
            shift: 0.0,
            new_items: 0.0,
            flips_labels: false,
            flipped_share: 0.0,
            learns: true,
        }
    }
}

/// A logistic regression that learns row by row.
#[derive(Clone, Default)]
struct Model {
    bias: f32,
    features: [f32; FEATURES],
    items: BTreeMap<usize, f32>,
}

impl Model {
    fn score(&self, row: &Row) -> f32 {
        let sum: f32 = self.features.iter().zip(row.features).map(|(w, x)| w * x).sum();
        self.bias + sum + self.items.get(&row.item).copied().unwrap_or(0.0)
    }

    fn learn(&mut self, row: &Row, logit: f32, label: f32) {
        let step = 0.004 * (1.0 / (1.0 + (-logit).exp()) - label);
        self.bias -= step;
        for (weight, x) in self.features.iter_mut().zip(row.features) {
            *weight -= step * x;
        }
        *self.items.entry(row.item).or_default() -= 15.0 * step;
    }

    fn distance(&self, other: &Self) -> f64 {
        let items: BTreeSet<usize> = self.items.keys().chain(other.items.keys()).copied().collect();
        let at = |model: &Self, item| model.items.get(item).copied().unwrap_or(0.0);
        let items = items.iter().map(|item| f64::from(at(self, item) - at(other, item)).powi(2));
        let features =
            self.features.iter().zip(other.features).map(|(a, b)| f64::from(a - b).powi(2));
        (items.sum::<f64>() + features.sum::<f64>()).sqrt()
    }
}

/// An online model with its windows, its gate and its anchor.
struct Simulation {
    random: Random,
    items: Vec<f64>,
    window: i64,
    live: Model,
    promoted: Model,
    /// The versions that were promoted, the oldest first: the baseline is one of them.
    past: VecDeque<Model>,
    windows: Windows,
    gate: Gate,
    staged: Vec<Row>,
    anchor: Vec<Row>,
    has_baseline: bool,
    /// The states of windows and gate go through a checkpoint after each window.
    restores: bool,
}

fn gate_settings() -> GateSettings {
    GateSettings {
        anchor_rows: 4_000,
        anchor_every: 4,
        anchor_delay_seconds: 30,
        ..Default::default()
    }
}

fn window_settings() -> Settings {
    Settings { windows: vec![10], ..Settings::default() }
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        Self {
            items: (0..200).map(|_| 0.7 * random.normal()).collect(),
            random,
            window: 0,
            live: Model::default(),
            promoted: Model::default(),
            past: VecDeque::new(),
            windows: Windows::new(window_settings()).unwrap(),
            gate: Gate::new(gate_settings()).unwrap(),
            staged: vec![Row::default(); 1_000],
            anchor: vec![Row::default(); 4_000],
            has_baseline: true,
            restores: false,
        }
    }

    /// Creates a simulation that has learned from 60 quiet windows.
    fn warm(seed: u64) -> Self {
        let mut simulation = Self::new(seed);
        for _ in 0..60 {
            simulation.step(World::default());
        }
        assert_eq!(simulation.gate.anchor().len(), 4_000);
        simulation
    }

    fn draw(&mut self, world: World) -> (Row, f32) {
        let features = std::array::from_fn(|_| self.random.normal() as f32);
        let is_new = self.random.uniform() < world.new_items;
        let (first, choice) = match is_new {
            true => (self.items.len() - 40, 40),
            false => (0, 200),
        };
        let row = Row { features, item: first + (self.random.bits() % choice) as usize };
        let truth = [0.8, -0.5, 0.3, 0.2];
        let sum: f64 = truth.iter().zip(row.features).map(|(w, x)| w * f64::from(x)).sum();
        let logit = -1.4 + sum + self.items[row.item] + world.shift;
        let label = self.random.uniform() < 1.0 / (1.0 + (-logit).exp());
        let is_flipped = world.flipped_share > 0.0 && self.random.uniform() < world.flipped_share;
        (row, f32::from(u8::from(label != (world.flips_labels || is_flipped))))
    }

    /// Runs one window: scores and learns its rows, judges the model and promotes it unless it
    /// fails.
    fn step(&mut self, world: World) -> Verdict {
        if world.new_items > 0.0 {
            let more: Vec<f64> = (0..10).map(|_| 0.7 * self.random.normal()).collect();
            self.items.extend(more);
        }
        let start = self.window * LENGTH;
        let mut new_keys = 0;
        for batch in 0..world.rows / 100 {
            let time = EventTime(start + batch as i64 * 100);
            let (rows, labels): (Vec<Row>, Vec<f32>) = (0..100).map(|_| self.draw(world)).unzip();
            let live: Vec<f32> = rows.iter().map(|row| self.live.score(row)).collect();
            let promoted: Vec<f32> = rows.iter().map(|row| self.promoted.score(row)).collect();
            let added = Batch {
                times: &[time; 100],
                labels: &labels,
                weights: None,
                live: &live,
                stable: Some(&promoted),
                segments: &[],
            };
            self.windows.add(&added).unwrap();
            self.gate.observe(&labels, None, &live).unwrap();
            for staged in self.gate.offer(&[time; 100], &labels, None).unwrap() {
                self.staged[staged.place] = rows[staged.row];
            }
            new_keys += rows.iter().filter(|row| !self.live.items.contains_key(&row.item)).count();
            for ((row, logit), label) in rows.iter().zip(&live).zip(&labels) {
                if world.learns {
                    self.live.learn(row, *logit, *label);
                }
            }
        }
        self.window += 1;
        let watermark = EventTime(self.window * LENGTH);
        let closed = self.windows.close(watermark);
        let share = new_keys as f64 / world.rows as f64;
        let verdict = self.judge(&closed, share, watermark);
        if self.restores {
            let stored = serde_json::to_string(self.gate.state()).unwrap();
            let state = serde_json::from_str(&stored).unwrap();
            self.gate = Gate::restore(gate_settings(), state).unwrap();
            let stored = serde_json::to_string(self.windows.state()).unwrap();
            let state = serde_json::from_str(&stored).unwrap();
            self.windows = Windows::restore(window_settings(), state).unwrap();
        }
        verdict
    }

    fn judge(&mut self, closed: &[ClosedWindow], new_keys: f64, watermark: EventTime) -> Verdict {
        let inputs = Inputs {
            missing: BTreeMap::from([("country".to_owned(), 0.01)]),
            new_keys: Some(new_keys),
            update_norm: Some(self.live.distance(&self.promoted)),
            not_finite: 0,
        };
        let anchor = &self.anchor[..self.gate.anchor().len()];
        let candidate: Vec<f32> = anchor.iter().map(|row| self.live.score(row)).collect();
        let promoted: Vec<f32> = anchor.iter().map(|row| self.promoted.score(row)).collect();
        let has_baseline = self.has_baseline && self.past.len() > BASELINE;
        let baseline = self.past.front().filter(|_| has_baseline);
        let baseline: Option<Vec<f32>> =
            baseline.map(|past| anchor.iter().map(|row| past.score(row)).collect());
        let anchor = Some(AnchorScores {
            candidate: &candidate,
            promoted: &promoted,
            baseline: baseline.as_deref(),
        });
        let evidence = Evidence { windows: closed, anchor, inputs: &inputs };
        let verdict = self.gate.judge(&evidence).unwrap();
        self.gate.end_verdict(&verdict);
        if verdict.outcome < Outcome::Hold {
            self.past.push_back(self.promoted.clone());
            if self.past.len() > BASELINE + 1 {
                self.past.pop_front();
            }
            self.promoted = self.live.clone();
            for admitted in self.gate.promote(watermark, &evidence) {
                self.anchor[admitted.to] = self.staged[admitted.from];
            }
        } else if verdict.outcome == Outcome::Hold {
            for admitted in self.gate.hold(watermark) {
                self.anchor[admitted.to] = self.staged[admitted.from];
            }
        }
        verdict
    }
}
