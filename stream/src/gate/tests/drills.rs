//! Drills: wrong labels are found, and ordinary changes are not taken for wrong labels.

use super::*;
use crate::gate::Leg;
use crate::validation::compare;

/// Returns the difference of the AUCs of two models on fresh rows without poison.
fn compare_models(simulation: &mut Simulation, first: &Model, second: &Model) -> f64 {
    let (rows, labels): (Vec<Row>, Vec<f32>) =
        (0..20_000).map(|_| simulation.draw(World::default())).unzip();
    let score = |model: &Model| -> Vec<f32> { rows.iter().map(|row| model.score(row)).collect() };
    let paired = compare(&labels, None, &score(first), &score(second)).unwrap().unwrap();
    paired.auc.unwrap().value
}

#[test]
fn flipped_labels_are_found_within_two_windows() {
    for seed in 1..=5 {
        let mut simulation = Simulation::warm(seed);
        let before = simulation.promoted.clone();
        let flipped = World { flips_labels: true, ..World::default() };
        let mut found = None;
        for window in 1..=2 {
            let verdict = simulation.step(flipped);
            if verdict.outcome == Outcome::Fail {
                found = Some((window, verdict));
                break;
            }
        }
        let (window, verdict) = found.expect("the poison is found");
        let anchor = verdict.check(Leg::Anchor, "auc").unwrap();
        assert_eq!(anchor.outcome, Outcome::Fail, "seed {seed}, window {window}: {anchor:?}");
        // The new model is better on the poisoned rows, and the check says so.
        let window = verdict.check(Leg::Progressive, "auc").unwrap();
        assert!(window.value.unwrap() > 0.0 && window.outcome == Outcome::Fail, "{window:?}");
        assert!(window.reason.contains("changed their meaning"), "{window:?}");
        assert!(verdict.explain().contains("the anchor"), "{}", verdict.explain());
        // What was promoted has lost no AUC.
        let promoted = simulation.promoted.clone();
        assert!(compare_models(&mut simulation, &promoted, &before) > -0.005);
        // A model that goes on learning from poison is never promoted.
        for _ in 0..4 {
            assert_eq!(simulation.step(flipped).outcome, Outcome::Fail);
        }
        // After a rewind, the stream goes on.
        simulation.live = simulation.promoted.clone();
        simulation.gate.discard_staged();
        let verdict = simulation.step(World::default());
        assert!(verdict.outcome < Outcome::Fail, "{}", verdict.explain());
    }
}

/// Runs 100 windows of a changed world after quiet windows, and returns their verdicts.
fn run(seed: u64, world: World) -> Vec<Verdict> {
    let mut simulation = Simulation::warm(seed);
    (0..100).map(|_| simulation.step(world)).collect()
}

fn check_no_trip(world: World, check: impl Fn(&Verdict) -> bool) {
    for seed in 1..=3 {
        let verdicts = run(seed, world);
        for (window, verdict) in verdicts.iter().enumerate() {
            let text = verdict.explain();
            assert!(verdict.outcome < Outcome::Fail, "seed {seed}, window {window}: {text}");
        }
        // Holds cost freshness, so they are rare.
        let held = verdicts.iter().filter(|verdict| verdict.outcome == Outcome::Hold).count();
        assert!(held <= 2, "seed {seed}: {held} windows are held");
        assert!(verdicts.iter().any(&check), "the world of seed {seed} has not changed");
    }
}

fn ratio(verdict: &Verdict, name: &str) -> f64 {
    let check = verdict.check(Leg::Inputs, name).unwrap();
    check.value.unwrap() / check.reference.unwrap()
}

#[test]
fn a_higher_click_rate_does_not_trip() {
    // The odds that raise a click rate of about 0.27 by 30 %.
    let world = World { shift: 0.42, ..World::default() };
    check_no_trip(world, |verdict| ratio(verdict, "click_rate") > 1.2);
}

#[test]
fn a_wave_of_new_items_does_not_trip() {
    let world = World { new_items: 0.4, ..World::default() };
    let share = |verdict: &Verdict| verdict.check(Leg::Inputs, "new_keys").unwrap().value.unwrap();
    check_no_trip(world, |verdict| share(verdict) > 0.004);
}

#[test]
fn a_dip_at_night_does_not_trip() {
    let world = World { rows: 600, shift: -0.6, ..World::default() };
    check_no_trip(world, |verdict| ratio(verdict, "click_rate") < 0.75);
}

#[test]
fn a_quiet_stream_is_hardly_held() {
    check_no_trip(World::default(), |_| true);
}

/// Flips a share of the labels that rises from 5 to 25 % in 100 windows. Returns the number of
/// windows that are held, and the lowest AUC of a promoted version against the one before.
fn run_slow_poison(seed: u64, has_baseline: bool) -> (usize, f64) {
    let mut simulation = Simulation::warm(seed);
    simulation.has_baseline = has_baseline;
    let before = simulation.promoted.clone();
    let (mut held, mut lowest) = (0, 0.0_f64);
    for window in 0..100 {
        let flipped_share = 0.05 + 0.2 * f64::from(window) / 100.0;
        let verdict = simulation.step(World { flipped_share, ..World::default() });
        held += usize::from(verdict.outcome >= Outcome::Hold);
        let promoted = simulation.promoted.clone();
        lowest = lowest.min(compare_models(&mut simulation, &promoted, &before));
    }
    (held, lowest)
}

#[test]
fn a_rising_share_of_flipped_labels_is_held() {
    let (mut sum, mut sum_without) = (0.0, 0.0);
    for seed in 1..=3 {
        let (held, lowest) = run_slow_poison(seed, true);
        let (held_without, lowest_without) = run_slow_poison(seed, false);
        eprintln!(
            "seed {seed}: {held} of 100 windows held, {lowest:+.4} AUC at worst; without a \
             baseline {held_without} held, {lowest_without:+.4} at worst"
        );
        assert!(held > 0, "seed {seed}: nothing is held");
        assert!(lowest > -0.03, "seed {seed}: {lowest:+.4}");
        (sum, sum_without) = (sum + lowest, sum_without + lowest_without);
    }
    assert!(sum >= sum_without, "the baseline makes it worse: {sum:+.4} and {sum_without:+.4}");
}

#[test]
fn restored_states_give_the_same_verdicts() {
    let worlds = |window: usize| World { flips_labels: window == 70, ..World::default() };
    let mut plain = Simulation::new(4);
    let mut restored = Simulation { restores: true, ..Simulation::new(4) };
    let mut fails = 0;
    for window in 0..75 {
        let verdict = plain.step(worlds(window));
        assert_eq!(verdict, restored.step(worlds(window)), "window {window}");
        fails += usize::from(verdict.outcome == Outcome::Fail);
    }
    assert!(fails > 0 && fails < 75);
    assert_eq!(plain.gate.state(), restored.gate.state());
}

#[test]
fn a_hold_on_good_data_ends() {
    for seed in 1..=3 {
        let mut simulation = Simulation::warm(seed);
        simulation.has_baseline = false;
        // The promoted version fits the anchor rows, because it has learned from them again.
        let labels = simulation.gate.anchor().labels();
        let score = |model: &Model, rows: &[Row]| -> Vec<f32> {
            rows.iter().map(|row| model.score(row)).collect()
        };
        let usual = score(&simulation.live, &simulation.anchor);
        let mut gain = 0.0;
        for step in 0..200 {
            let part = (step % 16) * 250..(step % 16 + 1) * 250;
            for (row, label) in simulation.anchor[part.clone()].iter().zip(&labels[part]) {
                let logit = simulation.promoted.score(row);
                simulation.promoted.learn(row, logit, *label);
            }
            let fitted = score(&simulation.promoted, &simulation.anchor);
            let paired = compare(&labels, None, &fitted, &usual).unwrap().unwrap();
            gain = paired.auc.unwrap().value;
            if gain > 0.006 {
                break;
            }
        }
        assert!(gain > 0.006, "seed {seed}: the promoted version gains {gain:.4} only");
        let outcomes: Vec<Outcome> =
            (0..300).map(|_| simulation.step(World::default()).outcome).collect();
        let first = outcomes.iter().position(|outcome| *outcome < Outcome::Hold).unwrap_or(300);
        eprintln!("seed {seed}: the first version is published after {first} windows");
        assert!(first > 0, "seed {seed}: no version is held");
        assert!(first < 290, "seed {seed}: good versions are held for {first} windows");
        let later = outcomes[first..].iter().filter(|outcome| **outcome >= Outcome::Hold).count();
        assert!(later <= 3, "seed {seed}: {later} windows are held later");
    }
}
