//! Tests of runs whose labels are rare, or numbers.

use std::fmt::Write as _;
use std::panic::AssertUnwindSafe;
use std::path::Path;

use zillion_feature::LabelKind;
use zillion_feature::random::{combine, mix64};

use super::tests::Place;
use super::*;
use crate::observer::Silent;

const SMALL: &str = "[model]\nkind = 'deepfm'\nhidden = [8]\n";

fn draw(part: u64, salt: u64, index: u64) -> u64 {
    mix64(combine(combine(part, salt), index))
}

/// Writes rows of a user and an item with a label, by the function `label` of a draw and the ids.
fn write(path: &Path, part: u64, rows: u64, label: impl Fn(u64, u64, u64) -> f64) {
    let mut text = "user,item,price,label,weight,kind\n".to_owned();
    for index in 0..rows {
        let (user, item) = (draw(part, 1, index) % 20, draw(part, 2, index) % 30);
        let label = label(draw(part, 4, index), user, item);
        let kind = ["phone", "tablet", "desktop"][(user % 3) as usize];
        writeln!(text, "{user},{item},0.5,{label},{},{kind}", 1 + index % 2).unwrap();
    }
    std::fs::write(path, text).unwrap();
}

fn place(label: impl Fn(u64, u64, u64) -> f64) -> Place {
    let place = Place::new();
    write(&place.path("train.csv"), 0, 6000, &label);
    write(&place.path("valid.csv"), 1, 3000, &label);
    place
}

/// Returns a label that is 1 in one row of 200.
fn rare(draw: u64, _: u64, _: u64) -> f64 {
    f64::from(u8::from(draw.is_multiple_of(200)))
}

fn bias_of(place: &Place, output: &str) -> f32 {
    place.params(output).0.get("output.bias").unwrap()[0]
}

fn run_with(place: &Place, label: &str, output: &str, more: &str) -> TrainReport {
    let options = TrainOptions::new(2).unwrap();
    train(place.job_with(label, output, more), options, &mut Silent).unwrap()
}

/// Steps that move nothing, so that the figures are those of the beginning.
const STILL: &str =
    "[train]\nbatch_size = 500\noptimizer = { kind = 'sgd', lr = 1e-12 }\nfreeze_tables = ['*']\n";

/// Returns the mean of the predicted probabilities divided by the rate of the training rows.
fn compare_with_rate(place: &Place, report: &TrainReport) -> f64 {
    let scores = place.logits_of(&report.checkpoint);
    let sum: f64 = scores.iter().map(|&z| LabelKind::Binary.predict_exactly(z)).sum();
    let text = std::fs::read_to_string(place.path("train.csv")).unwrap();
    let ones = text.lines().filter(|line| line.split(',').nth(3) == Some("1")).count();
    sum / scores.len() as f64 / (ones as f64 / 6000.0)
}

#[test]
fn a_rare_label_is_calibrated_from_the_first_step() {
    let place = place(rare);
    let begun = place.run("mean", &format!("{SMALL}{STILL}"));
    let ratio = compare_with_rate(&place, &begun);
    assert!((0.8..1.25).contains(&ratio), "{ratio}");
    // Without the mean, the first predictions are a hundred times the rate.
    let zero = place.run("zero", &format!("{SMALL}{STILL}output_bias = 'zero'\n"));
    assert!(compare_with_rate(&place, &zero) > 50.0);
    assert!(bias_of(&place, "zero").abs() < 1e-6, "the rate is nearly 0");
    assert!(zero.test.unwrap().calibration > begun.test.unwrap().calibration.map(|c| 40.0 * c));
    // It stays calibrated while it learns, where a run that begins at 0 is far away.
    let more = |bias: &str| {
        let rates = "optimizer = { kind = 'adam', lr = 1e-3 }";
        format!("{SMALL}[train]\nbatch_size = 500\n{rates}\noutput_bias = '{bias}'\n")
    };
    let ratio = compare_with_rate(&place, &place.run("learned", &more("mean")));
    assert!((0.6..1.6).contains(&ratio), "{ratio}");
    let ratio = compare_with_rate(&place, &place.run("far", &more("zero")));
    assert!(ratio > 20.0, "{ratio}");
}

#[test]
fn the_bias_is_that_of_the_weighted_rows_that_train() {
    let place = place(rare);
    let text = std::fs::read_to_string(place.path("train.csv")).unwrap();
    let (mut ones, mut all) = (0.0f64, 0.0f64);
    for line in text.lines().skip(1) {
        let cells: Vec<f64> = line.split(',').take(5).map(|cell| cell.parse().unwrap()).collect();
        ones += cells[3] * cells[4];
        all += cells[4];
    }
    let row = all / 6000.0;
    let rate = (ones + row / 2.0) / (all + row);
    let odds = (rate / (1.0 - rate)).ln();
    let close = |found: f32, expected: f64| {
        assert!((f64::from(found) - expected).abs() < 1e-4, "{found} {expected}");
    };
    let weighted = format!("{SMALL}{STILL}[columns]\nweight = 'weight'\n");
    place.run("weighted", &weighted);
    close(bias_of(&place, "weighted"), odds);
    // Training on a tenth of the zeros has ten times the odds, and predictions are corrected.
    let thinned = format!("{weighted}[data.negatives]\nkeep = 0.1\n");
    let report = place.run("thinned", &thinned);
    close(bias_of(&place, "thinned"), odds - 0.1f64.ln());
    let ratio = compare_with_rate(&place, &report);
    assert!((0.7..1.4).contains(&ratio), "{ratio}");
    // A class weight moves the best score, and the job may give the mean.
    let heavy = format!("{weighted}[train.loss.click]\nkind = 'bce'\npositive_weight = 4.0\n");
    place.run("heavy", &heavy);
    close(bias_of(&place, "heavy"), odds + 4.0f64.ln());
    run_with(&place, "mean = 0.25", "given", &format!("{SMALL}{STILL}"));
    close(bias_of(&place, "given"), -(3.0f64.ln()));
}

#[test]
fn a_resumed_run_keeps_the_bias_that_it_began_with() {
    let place = place(rare);
    let more = format!("{SMALL}[train]\nbatch_size = 500\nepochs = 2\n");
    place.run("whole", &more);
    let once = format!("{SMALL}[train]\nbatch_size = 500\nepochs = 1\n");
    place.run("parts", &once);
    let options = TrainOptions { resume: true, ..TrainOptions::new(1).unwrap() };
    train(place.job("parts", &more), options, &mut Silent).unwrap();
    assert_eq!(place.files("parts"), place.files("whole"));
}

#[test]
fn numbers_and_counts_are_learned_and_measured() {
    // The label depends on the ids, with noise of a mean of 0.
    let mean = |user: u64, item: u64| 3.0 + (user % 5) as f64 - (item % 3) as f64;
    let noise = |draw: u64| (draw % 1000) as f64 / 1000.0 - 0.4995;
    let place = place(move |draw, user, item| mean(user, item) + noise(draw));
    for (kind, loss) in [("number", ""), ("number", "huber"), ("count", "")] {
        let loss_text = match loss {
            "" => String::new(),
            loss => format!("[train.loss.click]\nkind = '{loss}'\n"),
        };
        let output = format!("{kind}{loss}");
        let more = format!(
            "{SMALL}[train]\nbatch_size = 100\nepochs = 6\n\
             optimizer = {{ kind = 'adam', lr = 0.01 }}\n{loss_text}"
        );
        let report = run_with(&place, &format!("kind = '{kind}'"), &output, &more);
        let test = report.test.unwrap();
        let numbers = test.numbers.unwrap();
        // The labels have a deviation of 1.65, and the noise one of 0.29.
        assert!(numbers.rmse < 0.5 && numbers.mae < 0.45, "{output}: {numbers:?}");
        assert!((0.95..1.05).contains(&test.calibration.unwrap()), "{output}: {test:?}");
        assert_eq!(numbers.deviance.is_some(), kind == "count");
        assert_eq!((test.auc, test.logloss, test.rows), (None, None, 3000));
        // The figures are those of the scores of the checkpoint.
        let labels = std::fs::read_to_string(place.path("valid.csv")).unwrap();
        let labels = labels.lines().skip(1).map(|line| line.split(',').nth(3).unwrap());
        let predictions = place.logits_of(&report.checkpoint).into_iter().map(f64::from);
        let predictions = predictions.map(|z| if kind == "count" { z.exp() } else { z });
        let squares = predictions.zip(labels).map(|(p, y)| (p - y.parse::<f64>().unwrap()).powi(2));
        let rmse = (squares.sum::<f64>() / 3000.0).sqrt();
        assert!((numbers.rmse - rmse).abs() < 1e-5, "{} {rmse}", numbers.rmse);
    }
}

#[test]
fn segments_have_the_figures_of_their_rows() {
    let place = place(|draw, user, _| f64::from(u8::from(draw % 10 < 2 + user % 5)));
    let more = format!(
        "{SMALL}[train]\nbatch_size = 200\n[features.kind]\nkind = 'id'\ntype = 'string'\n\
         [tables.kind]\ndim = 4\n[eval]\nsegments = ['kind', 'user']\n"
    );
    let report = place.run("segments", &more);
    let test = report.test.unwrap();
    let named: Vec<_> = test.segments.iter().filter(|s| s.feature == "kind").collect();
    let mut names: Vec<&str> = named.iter().map(|s| s.value.as_deref().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["desktop", "phone", "tablet"]);
    let text = std::fs::read_to_string(place.path("valid.csv")).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().skip(1).map(|l| l.split(',').collect()).collect();
    let logits = place.logits("segments");
    for segment in &test.segments {
        let column = if segment.feature == "kind" { 5 } else { 0 };
        let is_in = |row: &usize| match segment.value.as_deref() {
            Some(value) => rows[*row][column] == value,
            None => {
                let shown = test.segments.iter().filter(|s| s.feature == segment.feature);
                !shown.filter_map(|s| s.value.as_deref()).any(|value| rows[*row][column] == value)
            }
        };
        let chosen: Vec<usize> = (0..rows.len()).filter(is_in).collect();
        let scores: Vec<f32> = chosen.iter().map(|&row| logits[row]).collect();
        let labels: Vec<f32> = chosen.iter().map(|&row| rows[row][3].parse().unwrap()).collect();
        assert_eq!(segment.rows, chosen.len() as u64, "{segment:?}");
        let auc = zillion_nn::metrics::auc(&scores, &labels, None).unwrap();
        assert_eq!(segment.auc, auc, "{segment:?}");
        assert_eq!(segment.positives, labels.iter().filter(|&&y| y == 1.0).count() as u64);
    }
    // The 20 users have 16 segments, and one for the others.
    assert_eq!(test.segments.len(), 3 + 16 + 1);
    for feature in ["kind", "user"] {
        let own = test.segments.iter().filter(|s| s.feature == feature);
        assert_eq!(own.map(|s| s.rows).sum::<u64>(), 3000);
    }
}

#[test]
fn a_version_of_counts_is_checked_against_training_and_says_what_it_predicts() {
    let place = place(|draw, user, _| ((draw % 3) * (1 + user % 4)) as f64);
    let registry = place.path("registry");
    let more = format!(
        "[publish]\nregistry = {registry:?}\nmodel = 'm'\nparity_rows = 16\n{SMALL}[train]\nbatch_size = 200\n"
    );
    let report = run_with(&place, "kind = 'count'", "counts", &more);
    assert!(report.test.unwrap().numbers.is_some_and(|numbers| numbers.rmse < 2.5));
    // A run that begins from the version moves nothing, and scores as the version does. Loading the
    // version compares its scores with those of training.
    let still = format!(
        "{SMALL}{STILL}warm_start = {{ registry = {registry:?}, model = 'm', version = 1 }}\n"
    );
    run_with(&place, "kind = 'count'", "still", &still);
    assert_eq!(place.logits("still"), place.logits("counts"));
}

#[test]
fn what_does_not_fit_the_kind_of_a_label_is_refused_by_its_key() {
    let place = Place::new();
    for (label, more, words) in [
        ("kind = 'number'", "[train.loss.click]\nkind = 'bce'", "`train.loss.click`: `bce` learns"),
        ("", "[train.loss.click]\nkind = 'mse'", "kind = \"number\""),
        ("kind = 'number'", "[train.loss.click]\nkind = 'poisson'", "kind = \"count\""),
        ("", "[train.loss.click]\nkind = 'softmax'", "softmax"),
        ("kind = 'number'\nat_least = 2", "", "labels.click.at_least"),
        ("mean = 1.0", "", "labels.click.mean"),
        ("kind = 'count'\nmean = 0.0", "", "labels.click.mean"),
        ("kind = 'number'", "[data.negatives]\nkeep = 0.5", "data.negatives.label"),
        ("kind = 'number'", "[train.plateau]\nmetric = 'auc'", "train.plateau.metric"),
        ("", "[train.plateau]\nmetric = 'rmse'", "train.plateau.metric"),
        ("", "[eval]\nsegments = ['usr']", "did you mean `user`"),
        ("", "[eval]\nsegments = ['user', 'user']", "named twice"),
    ] {
        let make = AssertUnwindSafe(|| place.job_with(label, "x", &format!("{SMALL}{more}")));
        let error = std::panic::catch_unwind(make).expect_err(words);
        let error = error.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(error.contains(words), "{label} {more}: {error}");
    }
}
