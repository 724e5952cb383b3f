//! Single checks of the gate, and the rules of the anchor.

use super::*;
use crate::gate::{Admitted, Band, Bands, Leg};

/// Draws a closed window of `rows` rows. Scores are true log-odds plus `shift`.
fn draw_window(rows: usize, shift: f32) -> ClosedWindow {
    let mut random = Random(1);
    let live: Vec<f32> = (0..rows).map(|_| random.normal() as f32 - 1.0).collect();
    let labels: Vec<f32> = live
        .iter()
        .map(|logit| f32::from(u8::from(random.uniform() < 1.0 / (1.0 + f64::from(-logit).exp()))))
        .collect();
    let live: Vec<f32> = live.iter().map(|logit| logit + shift).collect();
    let mut windows = Windows::new(window_settings()).unwrap();
    let times = vec![EventTime(0); rows];
    let batch = Batch {
        times: &times,
        labels: &labels,
        weights: None,
        live: &live,
        stable: Some(&live),
        segments: &[],
    };
    windows.add(&batch).unwrap();
    windows.close(EventTime(LENGTH)).remove(0)
}

fn inputs() -> Inputs {
    Inputs {
        missing: BTreeMap::from([("country".to_owned(), 0.02)]),
        new_keys: Some(0.05),
        update_norm: Some(2.0),
        not_finite: 0,
    }
}

/// Returns a gate with a reference.
fn gate(window: &ClosedWindow) -> Gate {
    let mut gate = Gate::new(GateSettings::default()).unwrap();
    let windows = std::slice::from_ref(window);
    gate.promote(EventTime(0), &Evidence { windows, anchor: None, inputs: &inputs() });
    gate
}

#[test]
fn usual_inputs_pass() {
    let window = draw_window(2_000, 0.0);
    let windows = std::slice::from_ref(&window);
    let evidence = Evidence { windows, anchor: None, inputs: &inputs() };
    let verdict = gate(&window).judge(&evidence).unwrap();
    assert_eq!(verdict.outcome, Outcome::Pass, "{verdict:?}");
    assert_eq!(verdict.explain(), "");
    for name in ["click_rate", "calibration", "score_drift", "missing.country", "new_keys"] {
        assert!(verdict.check(Leg::Inputs, name).unwrap().value.is_some(), "{name}");
    }
}

#[test]
fn each_band_warns_and_fails_at_its_bounds() {
    let window = draw_window(2_000, 0.0);
    let gate = gate(&window);
    let judge = |inputs: Inputs, name: &str| {
        let windows = std::slice::from_ref(&window);
        let verdict = gate.judge(&Evidence { windows, anchor: None, inputs: &inputs }).unwrap();
        let worst: Vec<_> = verdict.checks.iter().filter(|c| c.outcome > Outcome::Pass).collect();
        assert!(worst.iter().all(|check| check.name == name), "{worst:?}");
        verdict.outcome
    };
    let missing =
        |share| Inputs { missing: BTreeMap::from([("country".into(), share)]), ..inputs() };
    assert_eq!(judge(missing(0.2), "missing.country"), Outcome::Pass);
    assert_eq!(judge(missing(0.3), "missing.country"), Outcome::Warn);
    assert_eq!(judge(missing(0.95), "missing.country"), Outcome::Fail);
    let new_keys = |share| Inputs { new_keys: Some(share), ..inputs() };
    assert_eq!(judge(new_keys(0.2), "new_keys"), Outcome::Pass);
    assert_eq!(judge(new_keys(0.5), "new_keys"), Outcome::Warn);
    assert_eq!(judge(new_keys(1.0), "new_keys"), Outcome::Warn);
    let norm = |norm| Inputs { update_norm: Some(norm), ..inputs() };
    assert_eq!(judge(norm(0.0), "update_norm"), Outcome::Pass);
    assert_eq!(judge(norm(9.0), "update_norm"), Outcome::Pass);
    assert_eq!(judge(norm(11.0), "update_norm"), Outcome::Warn);
    assert_eq!(judge(norm(201.0), "update_norm"), Outcome::Fail);
    assert_eq!(judge(norm(f64::NAN), "not_finite"), Outcome::Fail);
    assert_eq!(judge(Inputs { not_finite: 1, ..inputs() }, "not_finite"), Outcome::Fail);
}

#[test]
fn windows_with_other_figures_warn_and_fail() {
    let gate = gate(&draw_window(2_000, 0.0));
    let judge = |window: ClosedWindow| {
        let windows = std::slice::from_ref(&window);
        gate.judge(&Evidence { windows, anchor: None, inputs: &inputs() }).unwrap()
    };
    let outcome = |verdict: &Verdict, name| verdict.check(Leg::Inputs, name).unwrap().outcome;
    let verdict = judge(draw_window(2_000, 1.0));
    assert_eq!(outcome(&verdict, "calibration"), Outcome::Warn);
    assert_eq!(outcome(&verdict, "score_drift"), Outcome::Warn);
    assert_eq!(outcome(&verdict, "click_rate"), Outcome::Pass);
    assert_eq!(outcome(&judge(draw_window(2_000, -4.0)), "calibration"), Outcome::Fail);
    assert_eq!(outcome(&judge(draw_window(2_000, 9.0)), "score_drift"), Outcome::Fail);
    let mut window = draw_window(2_000, 0.0);
    window.positives *= 2.5;
    assert_eq!(outcome(&judge(window.clone()), "click_rate"), Outcome::Warn);
    window.positives = 0.0;
    assert_eq!(outcome(&judge(window.clone()), "click_rate"), Outcome::Fail);
    window = draw_window(2_000, 0.0);
    window.not_finite = 1;
    assert_eq!(outcome(&judge(window), "not_finite"), Outcome::Fail);
    // A window with few rows is not judged.
    let verdict = judge(draw_window(100, 9.0));
    assert_eq!(verdict.outcome, Outcome::Pass);
    let skipped = verdict.check(Leg::Inputs, "window").unwrap();
    assert!(skipped.reason.contains("100 rows"), "{skipped:?}");
}

#[test]
fn a_loss_on_the_newest_window_fails() {
    let mut simulation = Simulation::warm(2);
    simulation.live.features = [0.0; FEATURES];
    let verdict = simulation.step(World { learns: false, ..World::default() });
    for leg in [Leg::Progressive, Leg::Anchor] {
        let check = verdict.check(leg, "auc").unwrap();
        assert_eq!(check.outcome, Outcome::Fail, "{check:?}");
        assert!(check.value < check.fail && check.reason.contains("a loss of more than 0.005"));
    }
}

#[test]
fn rows_enter_the_anchor_only_after_the_delay() {
    let settings = GateSettings {
        anchor_rows: 100,
        min_rows: 40,
        anchor_every: 1,
        anchor_delay_seconds: 10,
        ..GateSettings::default()
    };
    let mut gate = Gate::new(settings.clone()).unwrap();
    let offer = |gate: &mut Gate, second: i64, rows: usize, label: f32| -> Vec<usize> {
        let times = vec![EventTime(second * 1000); rows];
        let staged = gate.offer(&times, &vec![label; rows], None).unwrap();
        staged.iter().map(|staged| staged.place).collect()
    };
    let promote = |gate: &mut Gate, second: i64| -> Vec<Admitted> {
        let none = Inputs::default();
        let evidence = Evidence { windows: &[], anchor: None, inputs: &none };
        gate.promote(EventTime(second * 1000), &evidence)
    };
    assert_eq!(offer(&mut gate, 0, 20, 1.0), (0..20).collect::<Vec<_>>());
    assert_eq!(offer(&mut gate, 5, 10, 0.0), (20..25).collect::<Vec<_>>(), "25 places");
    assert!(promote(&mut gate, 9).is_empty());
    let admitted = promote(&mut gate, 10);
    assert_eq!(admitted.len(), 20);
    assert_eq!(admitted[19], Admitted { from: 19, to: 19 });
    assert_eq!(gate.anchor().labels(), [1.0; 20]);
    // Poisoned rows go with the version that learned from them.
    gate.discard_staged();
    assert!(promote(&mut gate, 1_000).is_empty());
    for round in 0..5 {
        assert_eq!(offer(&mut gate, 100 + round, 25, 0.0).len(), 25);
        assert_eq!(promote(&mut gate, 200).len(), 25);
    }
    // The oldest rows were replaced: 20 and 25 more in the circle of 100.
    assert_eq!(gate.anchor().len(), 100);
    assert_eq!(gate.anchor().labels(), [0.0; 100]);

    let verdict = gate.judge(&Evidence { windows: &[], anchor: None, inputs: &inputs() }).unwrap();
    let anchor = verdict.check(Leg::Anchor, "auc").unwrap();
    assert!(anchor.value.is_none() && anchor.reason.contains("scored no anchor rows"));
    let scores = AnchorScores { candidate: &[0.0; 99], promoted: &[0.0; 100], baseline: None };
    let anchor = Some(scores);
    assert!(gate.judge(&Evidence { windows: &[], anchor, inputs: &inputs() }).is_err());
    // Scores that are not a number fail, although no difference can be judged.
    let nan = AnchorScores { candidate: &[f32::NAN; 100], promoted: &[0.0; 100], baseline: None };
    let evidence = Evidence { windows: &[], anchor: Some(nan), inputs: &inputs() };
    assert_eq!(gate.judge(&evidence).unwrap().outcome, Outcome::Fail);
    let other = GateSettings { anchor_rows: 200, ..settings };
    assert!(Gate::restore(other, gate.state().clone()).is_err());
}

#[test]
fn nonsense_is_refused() {
    let refuse = |settings: GateSettings, name: &str| {
        let error = Gate::new(settings).unwrap_err().to_string();
        assert!(error.starts_with(&format!("`gate.{name}` =")), "{error}");
    };
    let usual = GateSettings::default;
    refuse(GateSettings { min_rows: 0, ..usual() }, "min_rows");
    refuse(GateSettings { errors: 0.0, ..usual() }, "errors");
    refuse(GateSettings { errors: f64::NAN, ..usual() }, "errors");
    refuse(GateSettings { auc_drop: -0.1, ..usual() }, "auc_drop");
    refuse(GateSettings { anchor_auc_drop: 0.6, ..usual() }, "anchor_auc_drop");
    refuse(GateSettings { anchor_rows: 500, ..usual() }, "anchor_rows");
    refuse(GateSettings { anchor_every: 0, ..usual() }, "anchor_every");
    refuse(GateSettings { anchor_delay_seconds: 604_801, ..usual() }, "anchor_delay_seconds");
    refuse(GateSettings { reference_versions: 0, ..usual() }, "reference_versions");
    let bands = |band| Bands { calibration: band, ..Bands::default() };
    for band in [Band { warn: 1.0, fail: 2.0 }, Band { warn: 3.0, fail: 2.0 }] {
        refuse(GateSettings { bands: bands(band), ..usual() }, "bands.calibration");
    }
    let text = r#"{ "auc_drp": 0.1 }"#;
    assert!(serde_json::from_str::<GateSettings>(text).is_err());
    let gate = Gate::new(usual()).unwrap();
    let judge = |inputs: Inputs| {
        gate.judge(&Evidence { windows: &[], anchor: None, inputs: &inputs }).unwrap_err()
    };
    let error = judge(Inputs { new_keys: Some(1.5), ..inputs() }).to_string();
    assert!(error.contains("`new_keys`"), "{error}");
    let error = judge(Inputs { update_norm: Some(-1.0), ..inputs() }).to_string();
    assert!(error.contains("`update_norm`"), "{error}");
}

/// Offers `rows` rows to a gate whose labels fit to the scores, or are all the other ones.
fn observe(gate: &mut Gate, rows: usize, is_flipped: bool) {
    let live: Vec<f32> = (0..rows).map(|row| if row % 4 == 0 { 1.0 } else { -2.0 }).collect();
    let label = |logit: &f32| f32::from(u8::from((*logit > 0.0) != is_flipped));
    gate.observe(&live.iter().map(label).collect::<Vec<_>>(), None, &live).unwrap();
}

/// Judges a gate without a window and ends the verdict, and returns the check of the newest rows.
fn judge_newest(gate: &mut Gate) -> Option<Outcome> {
    let none = Inputs::default();
    let verdict = gate.judge(&Evidence { windows: &[], anchor: None, inputs: &none }).unwrap();
    gate.end_verdict(&verdict);
    let check = verdict.check(Leg::Progressive, "newest_auc").map(|check| check.outcome);
    assert_eq!(verdict.outcome, check.unwrap_or(Outcome::Pass), "{verdict:?}");
    check
}

#[test]
fn a_hold_by_the_newest_rows_lasts_until_enough_rows_are_as_usual() {
    let mut gate = gate(&draw_window(2_000, 0.0));
    let (pass, hold) = (Some(Outcome::Pass), Some(Outcome::Hold));
    let mut judge = |rows: usize, is_flipped: bool| {
        observe(&mut gate, rows, is_flipped);
        let stored = serde_json::to_string(gate.state()).unwrap();
        gate = Gate::restore(gate_settings(), serde_json::from_str(&stored).unwrap()).unwrap();
        judge_newest(&mut gate)
    };
    // Each version has half of the rows that are needed.
    assert_eq!(judge(250, false), pass);
    assert_eq!(judge(250, false), pass);
    assert_eq!(judge(250, true), pass, "too few rows begin no hold");
    for version in 0..8 {
        assert_eq!(judge(250, true), hold, "version {version}");
    }
    // Labels are right again, but half of the rows that are judged have wrong ones.
    assert_eq!(judge(250, false), hold);
    assert_eq!(judge(250, false), hold, "too few rows end no hold");
    assert_eq!(judge(250, false), pass);
    assert_eq!(judge(250, false), pass);
}

#[test]
fn rows_whose_auc_is_not_known_end_no_hold() {
    let mut gate = gate(&draw_window(2_000, 0.0));
    observe(&mut gate, 500, true);
    assert_eq!(judge_newest(&mut gate), Some(Outcome::Hold));
    assert_eq!(judge_newest(&mut gate), Some(Outcome::Hold), "no row has come");
    gate.observe(&[0.0; 600], None, &[-2.0; 600]).unwrap();
    assert_eq!(judge_newest(&mut gate), Some(Outcome::Hold), "all labels are equal");
    observe(&mut gate, 500, false);
    assert_eq!(judge_newest(&mut gate), Some(Outcome::Pass));
    assert_eq!(judge_newest(&mut gate), None);
}
