//! Tests of runs whose label has classes.

use std::fmt::Write as _;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;

use zillion_device::Workers;
use zillion_feature::random::{combine, mix64};
use zillion_reader::Dataset;

use super::tests::Place;
use super::*;
use crate::observer::Silent;
use crate::predict::Loaded;

const MODEL: &str = "[model]\nkind = 'deepfm'\nhidden = [8]\n";
const LABEL: &str = "kind = 'class'\nclasses = ['red', 'green', 'dark blue', 'never']";
const NAMES: [&str; 3] = ["red", "green", "dark blue"];

fn draw(part: u64, salt: u64, index: u64) -> u64 {
    mix64(combine(combine(part, salt), index))
}

/// Returns the class of a row: it follows from the ids in four of five rows.
fn class(draw: u64, user: u64, item: u64) -> usize {
    let of_ids = if user.is_multiple_of(2) { 0 } else { 1 + (item % 2) as usize };
    if draw.is_multiple_of(5) { (draw / 5 % 3) as usize } else { of_ids }
}

fn write(path: &Path, part: u64, rows: u64) {
    let mut text = "user,item,price,label,weight\n".to_owned();
    for index in 0..rows {
        let (user, item) = (draw(part, 1, index) % 20, draw(part, 2, index) % 30);
        let name = NAMES[class(draw(part, 4, index), user, item)];
        writeln!(text, "{user},{item},0.5,{name},{}", 1 + index % 2).unwrap();
    }
    std::fs::write(path, text).unwrap();
}

fn place() -> Place {
    let place = Place::new();
    write(&place.path("train.csv"), 0, 3000);
    write(&place.path("valid.csv"), 1, 1500);
    place
}

fn run_with(place: &Place, output: &str, more: &str, threads: usize) -> TrainReport {
    let options = TrainOptions::new(threads).unwrap();
    train(place.job_with(LABEL, output, more), options, &mut Silent).unwrap()
}

/// Returns the scores of each class of the validation rows, as a checkpoint computes them.
fn scores(checkpoint: &Path) -> Vec<Vec<f32>> {
    let workers = Arc::new(Workers::new(NonZeroUsize::MIN).unwrap());
    let mut loaded = Loaded::open(checkpoint, workers).unwrap();
    let files = loaded.job.data.files(&loaded.job.data.valid).unwrap();
    let data = Dataset::open(&loaded.job.data, &files, &loaded.job.schema).unwrap();
    let mut all = vec![Vec::new(); 4];
    let sink = |prediction: crate::predict::Prediction<'_>| {
        assert_eq!(prediction.logits.len(), 4);
        all.iter_mut().zip(prediction.logits).for_each(|(all, of)| all.extend_from_slice(of));
        Ok(true)
    };
    loaded.predict(&data, sink).unwrap();
    all
}

const LEARN: &str =
    "[train]\nbatch_size = 100\nepochs = 4\noptimizer = { kind = 'adam', lr = 0.01 }\n";

#[test]
fn classes_are_learned_and_measured() {
    let place = place();
    let report = run_with(&place, "run", &format!("{MODEL}{LEARN}"), 2);
    let test = report.test.unwrap();
    // Four of five classes follow from the ids, and a third of the rest is right by chance.
    assert!((0.80..0.92).contains(&test.accuracy.unwrap()), "{test:?}");
    assert!(test.auc.unwrap() > 0.85 && test.logloss.unwrap() < 0.75, "{test:?}");
    assert_eq!((test.rows, test.positives, test.calibration), (1500, 1500, None));
    let names: Vec<&str> = test.tasks.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["click=red", "click=green", "click=dark blue", "click=never"]);
    let positives: u64 = test.tasks.iter().map(|(_, task)| task.positives).sum();
    assert_eq!((positives, test.tasks[3].1.auc, test.tasks[3].1.positives), (1500, None, 0));
    for (_, task) in &test.tasks[..3] {
        assert!((0.85..1.15).contains(&task.calibration.unwrap()), "{task:?}");
    }
    // The figures are those of the scores of the best checkpoint.
    let scores = scores(&report.checkpoint);
    let text = std::fs::read_to_string(place.path("valid.csv")).unwrap();
    let (mut loss, mut right) = (0.0, 0);
    for (row, line) in text.lines().skip(1).enumerate() {
        let name = line.split(',').nth(3).unwrap();
        let class = NAMES.iter().position(|known| *known == name).unwrap();
        // A logarithm of a probability near 1 may be rounded to a number above 0.
        loss -= f64::from(scores[class][row]).min(0.0);
        right += u32::from((0..4).all(|other| scores[other][row] <= scores[class][row]));
    }
    // Scores are rounded to 32 bits.
    assert!((loss / 1500.0 - test.logloss.unwrap()).abs() < 1e-6);
    assert_eq!(f64::from(right) / 1500.0, test.accuracy.unwrap());
}

#[test]
fn outputs_begin_at_the_logarithms_of_the_shares() {
    let place = place();
    let still = "[train]\nbatch_size = 500\noptimizer = { kind = 'sgd', lr = 1e-12 }\n\
                 freeze_tables = ['*']\n[columns]\nweight = 'weight'\n";
    run_with(&place, "begun", &format!("{MODEL}{still}"), 1);
    let text = std::fs::read_to_string(place.path("train.csv")).unwrap();
    let mut weights = [0.0f64; 4];
    for line in text.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let class = NAMES.iter().position(|name| *name == cells[3]).unwrap();
        weights[class] += cells[4].parse::<f64>().unwrap();
    }
    let (total, row): (f64, f64) = (weights.iter().sum(), weights.iter().sum::<f64>() / 3000.0);
    let (params, _) = place.params("begun");
    for (weight, &bias) in weights.iter().zip(params.get("output.bias").unwrap()) {
        let share = (weight + row / 2.0) / (total + row);
        assert!((f64::from(bias) - share.ln()).abs() < 1e-4, "{bias} {share}");
    }
}

#[test]
fn runs_of_classes_repeat_resume_and_publish() {
    let place = place();
    let registry = place.path("registry");
    let train_keys = |epochs: u64| format!("{MODEL}[train]\nbatch_size = 200\nepochs = {epochs}\n");
    run_with(&place, "whole", &train_keys(2), 1);
    run_with(&place, "threads", &train_keys(2), 3);
    assert_eq!(place.files("threads"), place.files("whole"));
    run_with(&place, "parts", &train_keys(1), 2);
    let options = TrainOptions { resume: true, ..TrainOptions::new(1).unwrap() };
    train(place.job_with(LABEL, "parts", &train_keys(2)), options, &mut Silent).unwrap();
    assert_eq!(place.files("parts"), place.files("whole"));
    // Loading a version compares its scores with those of training.
    let publish = format!(
        "[publish]\nregistry = {registry:?}\nmodel = 'm'\nparity_rows = 16\n{}",
        train_keys(1)
    );
    run_with(&place, "published", &publish, 2);
    let still = format!(
        "{MODEL}[train]\nbatch_size = 500\noptimizer = {{ kind = 'sgd', lr = 1e-12 }}\n\
         freeze_tables = ['*']\nwarm_start = {{ registry = {registry:?}, model = 'm', version = 1 }}\n"
    );
    run_with(&place, "still", &still, 2);
    let newest = |output: &str| scores(place.newest(output).path());
    assert_eq!(newest("still"), newest("published"));
}

#[test]
fn the_metric_of_a_schedule_can_be_the_accuracy() {
    let place = place();
    let plateau = format!("{MODEL}{LEARN}[train.plateau]\nmetric = 'accuracy'\npatience = 3\n");
    let report = run_with(&place, "run", &plateau, 2);
    assert!(report.best_epoch.is_some());
}

#[test]
fn a_value_that_is_no_class_names_its_row_and_the_classes() {
    let place = place();
    let mut text = std::fs::read_to_string(place.path("train.csv")).unwrap();
    text.push_str("1,2,0.5,Red,1\n");
    std::fs::write(place.path("train.csv"), text).unwrap();
    let options = TrainOptions::new(1).unwrap();
    let job = place.job_with(LABEL, "run", MODEL);
    let error = train(job, options, &mut Silent).unwrap_err().to_string();
    for part in ["3001", "\"Red\" is not a class of label `click`", "red, green, dark blue, never"]
    {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn what_does_not_fit_classes_is_refused_by_its_key() {
    let place = Place::new();
    let class = "kind = 'class'\nclasses = ['a', 'b']";
    for (label, more, words) in [
        ("kind = 'class'", "", "labels.click.classes"),
        ("classes = ['a', 'b']", "", "needs `kind = \"class\"`"),
        ("kind = 'class'\nclasses = ['a', 1]", "", "all texts or all whole numbers"),
        ("kind = 'class'\nclasses = ['a', 'b']\nmean = 0.5", "", "labels.click.mean"),
        (class, "[train.loss.click]\nkind = 'bce'", "`bce` learns"),
        ("", "[train.loss.click]\nkind = 'softmax'", "kind = \"class\""),
        (class, "[model]\nkind = 'mmoe'", "mmoe cannot learn label `click`, which has classes"),
        (class, "[labels.other]\ncolumn = 'x'", "learns one label"),
        (class, "[data.negatives]\nkeep = 0.5", "data.negatives.label"),
        (class, "[train.plateau]\nmetric = 'rmse'", "\"accuracy\""),
        (class, "[train.plateau]\nmetric = 'pr_auc'", "\"accuracy\""),
        ("", "[train.plateau]\nmetric = 'accuracy'", "train.plateau.metric"),
        (class, "[eval]\nsegments = ['user']", "numbers or classes"),
    ] {
        let more =
            if more.contains("[model]") { more.to_owned() } else { format!("{MODEL}{more}") };
        let make = AssertUnwindSafe(|| place.job_with(label, "x", &more));
        let error = std::panic::catch_unwind(make).expect_err(words);
        let error = error.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(error.contains(words), "{label} {more}: {error}");
    }
}
