//! The coverage of standard errors, and labels that cannot be predicted.

use super::*;
use crate::validation::{Difference, compare};

/// The 97.5 % quantile of the t distribution with 19 degrees of freedom.
const QUANTILE: f64 = 2.093;

/// Draws rows that two models score, in requests of 8 rows with a common shift of the label's
/// log-odds, and compares the models.
fn draw_difference(random: &mut Random, requests: usize, shift: f64) -> [Difference; 2] {
    let (mut labels, mut live, mut stable) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..requests {
        let common = shift * random.normal();
        for _ in 0..8 {
            let logit = random.normal() - 1.0;
            let odds = (-logit - common).exp();
            labels.push(f32::from(u8::from(random.uniform() < 1.0 / (1.0 + odds))));
            live.push((logit + 0.3 * random.normal()) as f32);
            stable.push((logit + 0.5 * random.normal()) as f32);
        }
    }
    let paired = compare(&labels, None, &live, &stable).unwrap().unwrap();
    [paired.auc.unwrap(), paired.logloss.unwrap()]
}

#[test]
fn intervals_contain_the_true_difference() {
    for shift in [0.0, 1.0] {
        let mut random = Random(5);
        // The mean over many rows stands for the true difference.
        let large: Vec<_> = (0..40).map(|_| draw_difference(&mut random, 4_000, shift)).collect();
        let draws: Vec<_> = (0..500).map(|_| draw_difference(&mut random, 250, shift)).collect();
        for figure in 0..2 {
            let truth = large.iter().map(|d| d[figure].value).sum::<f64>() / large.len() as f64;
            let is_covered = |d: &&[Difference; 2]| {
                (d[figure].value - truth).abs() <= QUANTILE * d[figure].error
            };
            let share = draws.iter().filter(is_covered).count() as f64 / draws.len() as f64;
            // 95 % are expected. The share of 500 draws has a standard error of 1 %.
            assert!((0.92..=0.98).contains(&share), "figure {figure}, shift {shift}: {share}");
        }
    }
}

#[test]
fn a_pair_is_sharper_than_two_single_aucs() {
    let mut random = Random(9);
    let data = Rows::draw(&mut random, 6_000, 0, 10_000, [0.3, 0.35]);
    let mut windows = Windows::new(settings()).unwrap();
    data.add(&mut windows, 0, data.len());
    let window = &windows.close(EventTime(10_000))[0];
    let single = window.live.auc_error.unwrap();
    assert!((0.002..0.02).contains(&single), "{single}");
    assert!(window.paired.unwrap().auc.unwrap().error < single / 1.5);
}

/// Learns coin flips from 300 hashed features by logistic regression, with more parameters than
/// needed to remember each batch. Returns the closed windows of scores before or after learning.
fn learn_coin_flips(before: bool) -> Vec<ClosedWindow> {
    let mut random = Random(21);
    let mut weights = vec![0.0f32; 20_000];
    let mut windows = Windows::new(Settings::default()).unwrap();
    let mut closed = Vec::new();
    for batch in 0..200i64 {
        let features: Vec<[usize; 3]> =
            (0..128).map(|_| std::array::from_fn(|_| (random.bits() % 20_000) as usize)).collect();
        let labels: Vec<f32> = (0..128).map(|_| (random.bits() & 1) as f32).collect();
        let score = |weights: &[f32]| -> Vec<f32> {
            features.iter().map(|row| row.iter().map(|&at| weights[at]).sum()).collect()
        };
        let first = score(&weights);
        for ((row, label), logit) in features.iter().zip(&labels).zip(&first) {
            let gradient = 1.0 / (1.0 + (-logit).exp()) - label;
            row.iter().for_each(|&at| weights[at] -= 0.5 * gradient);
        }
        let live = if before { first } else { score(&weights) };
        let batch = Batch {
            times: &vec![EventTime(batch * 300); 128],
            labels: &labels,
            weights: None,
            live: &live,
            stable: None,
            segments: &[],
        };
        closed.extend(windows.add(&batch).unwrap());
    }
    closed.extend(windows.close(EventTime(600_000)));
    closed
}

#[test]
fn labels_that_nothing_tells_stay_at_one_half() {
    let windows = learn_coin_flips(true);
    assert_eq!(windows.len(), 8);
    for window in &windows {
        let away = (window.live.auc.unwrap() - 0.5).abs();
        assert!(away <= 3.0 * window.live.auc_error.unwrap(), "{:?}", window.live);
    }
    // Scores of after the update would not stay there.
    for window in &learn_coin_flips(false) {
        assert!(window.live.auc.unwrap() > 0.5 + 10.0 * window.live.auc_error.unwrap());
    }
}
