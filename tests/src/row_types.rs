//! Tests of versions with rows of a smaller number type or without zeros: the same scores from
//! mapped files, from records in memory and from `zillion predict`, and the AUC that a publication
//! prints.

use serde_json::Value;

use crate::harness::{Workplace, csv, stderr, stdout, zillion};
use crate::online::served::auc;
use crate::server::{MODEL, REGISTRY, Server, infer_body, instances, operate, output};
use crate::serving::{bits, published, publishing};

const ROWS: usize = 500;

#[test]
fn rounded_rows_score_the_same_everywhere() {
    let (shown, _) = score_everywhere(&["--set", "publish.rows='int8'"]);
    assert!(shown.contains(" int8 rows"), "{shown}");
}

#[test]
fn pruned_rows_score_the_same_everywhere() {
    let prune = "train.prune={ share = 0.8, until = 8, every = 4 }";
    let (shown, printed) = score_everywhere(&["--set", prune]);
    let zeros = shown.lines().find(|line| line.starts_with("zeros")).expect("a line of zeros");
    let share = zeros.split_once('(').and_then(|(_, rest)| rest.split_once(" %"));
    let share: f64 = share.expect("a share").0.parse().expect("a number");
    assert!((40.0..=95.0).contains(&share), "{zeros}");
    assert!(printed.contains("weights of rows are zero"), "{printed}");
}

/// Publishes a base and deltas, and compares the scores of servers with those of `zillion predict`.
/// Returns what `zillion model show` and the training have printed.
fn score_everywhere(more: &[&str]) -> (String, String) {
    let place = Workplace::new();
    place.write("rows.csv", &csv(7, ROWS));
    let rows = instances(&csv(7, ROWS));
    let printed = publishing(&place, "run", 8, more);
    let listed: Value =
        serde_json::from_str(&operate(&place, &["model", "list", "--json"])).expect("JSON");
    let newest = listed["versions"][0]["version"].as_u64().expect("a number");
    assert!(newest > 1, "the newest version is a delta");
    let shown = operate(&place, &["model", "show"]);
    let wanted = published(&place, newest, "rows.csv", ROWS);
    let infer = format!("/v2/models/{MODEL}/infer");
    for more in [&[][..], &["--row-records"], &["--load-into-memory"]] {
        let mut server = Server::start(&place, more);
        assert!(server.becomes_ready());
        server.wait_for(newest);
        let reply = server.post(&infer, infer_body(&rows, &["logits"]).as_bytes());
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_eq!(bits(&output(&reply, "logits")), bits(&wanted), "{more:?}");
        assert!(server.terminate().success());
    }
    operate(&place, &["model", "verify"]);
    (shown, printed)
}

#[test]
fn a_publication_prints_what_rounding_costs() {
    let place = Workplace::new();
    place.train_ok("run", &[]);
    place.write("valid.csv", &csv(3, 2000));
    let (registry, root) = (place.text(REGISTRY), format!("data.root={}", place.text("")));
    let text = csv(3, 2000);
    let label = |line: &str| line.ends_with(",1");
    let labels: Vec<bool> = text.lines().skip(1).map(label).collect();
    for rows in ["f16", "bf16", "int8"] {
        let valid = "data.valid=['valid.csv']";
        let result = zillion(&[
            "publish",
            &place.text("run"),
            "--registry",
            &registry,
            "--model",
            rows,
            "--rows",
            rows,
            "--set",
            &root,
            "--set",
            valid,
            "--json",
        ])
        .output()
        .expect("the binary runs");
        let said: Value = serde_json::from_str(stdout(&result).trim()).expect("JSON");
        let cost = &said["rounding"];
        assert_eq!(cost["row_type"], rows, "{said}");
        // The AUC after rounding is the one of the version in the registry, and not of the run.
        let file = place.text("valid.csv");
        let predict = [
            "predict",
            "--registry",
            &registry,
            "--model",
            rows,
            "--version",
            "1",
            &file,
            "--json",
        ];
        let scored = zillion(&predict).output().expect("the binary runs");
        let logit = |line: &str| -> f64 {
            let row: Value = serde_json::from_str(line).expect("a line of JSON");
            row["logit"].as_f64().expect("a number")
        };
        let scores: Vec<f64> = stdout(&scored).lines().map(logit).collect();
        let figure = |name: &str| cost[name].as_f64().expect("a number");
        assert!((figure("rounded") - auc(&scores, &labels)).abs() < 1e-9, "{said}");
        if rows == "int8" {
            assert_ne!(figure("rounded"), figure("whole"), "{said}");
        }
    }
    // Without the option, a version has the rows of the version before it.
    let publish = ["publish", &place.text("run"), "--registry", &registry, "--model", "int8"];
    let result = zillion(&[&publish[..], &["--base", "--set", &root, "--json"]].concat()).output();
    let result = result.expect("the binary runs");
    assert!(stderr(&result).contains("the rows are int8, as in version 1"), "{}", stderr(&result));
}
