//! Tests of progressive validation against plain computations over all rows.

mod errors;
mod exactness;
mod order;
mod segments;

use super::{Batch, ClosedWindow, Settings, Windows};
use crate::partition::EventTime;

/// A small generator of random numbers (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Draws a number from 0 to 1.
    pub(crate) fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Draws from the standard normal distribution.
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// The rows of a simulated stream, in columns.
#[derive(Clone, Default)]
struct Rows {
    times: Vec<EventTime>,
    labels: Vec<f32>,
    weights: Vec<f32>,
    live: Vec<f32>,
    stable: Vec<f32>,
    segment: Vec<u64>,
}

impl Rows {
    /// Draws rows between two times. The models see the true log-odds with noise.
    fn draw(random: &mut Random, rows: usize, from: i64, to: i64, noise: [f64; 2]) -> Self {
        let mut drawn = Self::default();
        for _ in 0..rows {
            let logit = random.normal() - 1.0;
            let label = random.uniform() < 1.0 / (1.0 + (-logit).exp());
            drawn.times.push(EventTime(from + (random.uniform() * (to - from) as f64) as i64));
            drawn.labels.push(f32::from(u8::from(label)));
            drawn.weights.push((random.bits() % 4) as f32 * 0.5);
            drawn.live.push((logit + noise[0] * random.normal()) as f32);
            drawn.stable.push((logit + noise[1] * random.normal()) as f32);
            drawn.segment.push(random.bits() % 5);
        }
        drawn
    }

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn add(&self, windows: &mut Windows, from: usize, to: usize) -> Vec<ClosedWindow> {
        let segments: &[&[u64]] = &[&self.segment[from..to]];
        let batch = Batch {
            times: &self.times[from..to],
            labels: &self.labels[from..to],
            weights: Some(&self.weights[from..to]),
            live: &self.live[from..to],
            stable: Some(&self.stable[from..to]),
            segments,
        };
        windows.add(&batch).unwrap()
    }

    /// Returns the rows within a span of time.
    fn within(&self, from: i64, to: i64) -> Vec<usize> {
        (0..self.len()).filter(|&row| (from..to).contains(&self.times[row].0)).collect()
    }
}

fn settings() -> Settings {
    Settings { segments: vec!["country".into()], ..Settings::default() }
}

/// Computes the AUC by comparing every positive row with every negative row.
fn brute_auc(rows: &[usize], labels: &[f32], weights: &[f32], scores: &[f32]) -> Option<f64> {
    let (mut wins, mut pairs) = (0.0, 0.0);
    for &a in rows.iter().filter(|&&row| labels[row] == 1.0) {
        for &b in rows.iter().filter(|&&row| labels[row] == 0.0) {
            let pair = f64::from(weights[a]) * f64::from(weights[b]);
            pairs += pair;
            wins += if scores[a] > scores[b] {
                pair
            } else if scores[a] == scores[b] {
                0.5 * pair
            } else {
                0.0
            };
        }
    }
    (pairs > 0.0).then(|| wins / pairs)
}

/// Computes the weighted mean of the logistic loss.
fn plain_logloss(rows: &[usize], labels: &[f32], weights: &[f32], scores: &[f32]) -> f64 {
    let (mut loss, mut weight) = (0.0, 0.0);
    for &row in rows {
        let p = 1.0 / (1.0 + f64::from(-scores[row]).exp());
        let likely = if labels[row] == 1.0 { p } else { 1.0 - p };
        loss -= f64::from(weights[row]) * likely.ln();
        weight += f64::from(weights[row]);
    }
    loss / weight
}
