//! Test of the published result of logistic regression on the Frappe data, which trains in seconds.
//! `zillion bench frappe` measures all models.

use serde_json::Value;

use crate::harness::{root, skip, stderr, stdout, zillion};

#[test]
fn logistic_regression_reaches_the_published_auc() {
    let data = root().join("../shared/data/frappe_x1r");
    if !data.join("train.parquet").exists() {
        return skip("frappe", "the data set is not beside the checkout");
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let job = root().join("examples/frappe/lr.toml");
    let set_root = format!("data.root={}", data.display());
    let set_output = format!("run.output={}", folder.path().join("lr").display());
    let job = job.to_str().expect("a plain path");
    let arguments = ["train", job, "--json", "--set", &set_root, "--set", &set_output];
    let output = zillion(&arguments).output().expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let line = stdout(&output).lines().last().expect("a line").to_owned();
    let outcome: Value = serde_json::from_str(&line).expect("JSON");
    let auc = outcome["test_auc"].as_f64().expect("a number");
    assert!(auc >= 0.935, "LR on Frappe: {auc}, published 0.9356");
}
