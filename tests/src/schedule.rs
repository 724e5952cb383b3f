//! Tests of the schedule of training. It must use the best epoch for the test and the evaluation,
//! and must stop a run that overfits.

use crate::harness::{ROWS, Workplace, last_json, stderr, stdout, zillion};

/// The settings of a job that overfits: a large model, high learning rates, no regularization and
/// many epochs.
const OVERFIT: [&str; 14] = [
    "--set",
    "train.epochs=40",
    "--set",
    "train.plateau={factor=0.5,patience=3}",
    "--set",
    "model.dropout=0.0",
    "--set",
    "model.hidden=[64,64]",
    "--set",
    "train.optimizer={kind=\"adam\",lr=0.01}",
    "--set",
    "tables.user.optimizer.lr=0.5",
    "--set",
    "tables.item.l2=0.0",
];

#[test]
fn the_best_epoch_is_tested_and_overfitting_is_stopped() {
    let place = Workplace::new();
    let mut arguments = OVERFIT.to_vec();
    arguments.extend(["--json", "--set", "train.keep=9"]);
    let output = place.train_ok("run", &arguments);
    let outcome = last_json(&stdout(&output));
    let count = |key: &str| outcome[key].as_u64().expect("a number");
    let (best, epochs) = (count("best_epoch"), count("epochs"));
    assert_eq!(epochs, best + 3, "patience is three: {outcome}");
    assert!(epochs < 40, "it is stopped: {outcome}");

    // The validation AUC of every epoch is printed. The best epoch has the largest AUC.
    let said = stderr(&output);
    let aucs: Vec<f64> = said
        .lines()
        .filter_map(|l| l.split_once("valid auc ")?.1.split(' ').next()?.parse().ok())
        .collect();
    assert_eq!(aucs.len() as u64, epochs, "{said}");
    let largest = aucs.iter().copied().fold(f64::MIN, f64::max);
    assert_eq!(aucs[best as usize - 1], largest, "{said}");
    assert!(aucs[epochs as usize - 1] < largest, "{said}");

    // The tested checkpoint is the checkpoint of the best epoch, and not the last one.
    let steps = ROWS.div_ceil(64) as u64;
    let checkpoint = outcome["checkpoint"].as_str().expect("a path");
    assert!(checkpoint.ends_with(&format!("step-{:012}", best * steps)), "{checkpoint}");
    let auc_of = |folder: &str| {
        let output = zillion(&["eval", folder, "--json"]).output().expect("it runs");
        last_json(&stdout(&output))["auc"].as_f64().expect("a number")
    };
    let test_auc = outcome["test_auc"].as_f64().expect("a number");
    assert_eq!(auc_of(checkpoint), test_auc);
    let last = place.text(&format!("run/checkpoints/step-{:012}", epochs * steps));
    assert_ne!(auc_of(&last), test_auc);
}

/// Checks a checkpoint at the last step of an epoch. It must contain the result of the validation
/// at the end of this epoch.
#[test]
fn a_checkpoint_on_the_last_step_of_an_epoch_is_the_epochs() {
    let place = Workplace::new();
    let train = |output: &str, more: &[&str]| {
        last_json(&stdout(&place.train_ok(output, &[&["--json"], more].concat())))
    };
    let every = format!("train.checkpoint_every={}", ROWS.div_ceil(64));
    let with = train("with", &["--set", &every]);
    let without = train("without", &["--set", "train.checkpoint_every=100000"]);
    for key in ["best_epoch", "valid_auc", "test_auc", "test_logloss"] {
        assert_eq!(with[key], without[key], "{key}");
    }
    // A finished run has no more steps.
    let again = train("with", &["--resume", "--set", &every]);
    assert_eq!(again["seconds"]["validate"], 0.0);
    assert_eq!(again["test_auc"], with["test_auc"]);
}
