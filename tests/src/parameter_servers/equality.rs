//! Tests that a run over servers gives the result of one process.

use std::fmt::Write as _;

use super::runs::{addresses, outcome, place_with_everything, replaced, train_alone, train_over};
use super::servers::ServerProcess;
use crate::harness::{JOB, Workplace, row};

#[test]
fn trainers_and_servers_do_not_change_a_byte() {
    let place = place_with_everything();
    let servers = ServerProcess::start_group(&place.path(""), 5, &[]);
    let servers = addresses(&servers);
    for trainers in [1, 2, 4] {
        let alone = format!("alone-{trainers}");
        let accumulate = format!("train.accumulate={trainers}");
        let report = train_alone(&place, &alone, &["--set", &accumulate]);
        let count = |table: usize, name: &str| report["tables"][table][name].as_u64();
        assert!(count(0, "displaced") > Some(0) && count(0, "waiting") > Some(0), "{report}");
        let expected = outcome(&place, &alone);
        for count in [1, 2, 3, 5] {
            let output = format!("over-{trainers}-{count}");
            let reports = train_over(&place, &output, &servers[..count], trainers, &[]);
            assert_eq!(outcome(&place, &output), expected, "{output}");
            for (index, over) in reports.iter().enumerate() {
                for name in ["steps", "epochs", "valid_auc", "best_epoch"] {
                    assert_eq!(over[name], report[name], "{output}, trainer {index}: {name}");
                }
                assert_eq!(over["rewinds"].as_u64().unwrap_or(0), 0, "{output}: {over}");
            }
            assert_eq!(reports[0]["test_auc"], report["test_auc"], "{output}");
        }
    }
    assert_ne!(outcome(&place, "alone-1"), outcome(&place, "alone-2"));
}

/// Without clipping, a trainer sends gradients that are applied at once.
#[test]
fn gradients_that_are_applied_at_once_give_the_same_bytes() {
    let place = Workplace::with_rare_users();
    let changes = [
        ("clip_norm = 1.0\n", ""),
        ("epochs = 3\n", "epochs = 1\n"),
        (
            "[tables.user]\n",
            "[tables.user]\ndtype = 'bf16'\neviction = { kind = 'unseen', steps = 2 }\n",
        ),
        ("[tables.tags]\n", "[tables.tags]\ndtype = 'f16'\n"),
    ];
    place.write("job.toml", &replaced(JOB, &changes));
    let servers = ServerProcess::start_group(&place.path(""), 3, &["--threads", "2"]);
    let servers = addresses(&servers);
    for trainers in [1, 2] {
        let alone = format!("alone-{trainers}");
        let accumulate = format!("train.accumulate={trainers}");
        let report = train_alone(&place, &alone, &["--set", &accumulate]);
        assert!(report["tables"][0]["evicted"].as_u64() > Some(0), "{report}");
        for count in [1, 3] {
            let output = format!("over-{trainers}-{count}");
            train_over(&place, &output, &servers[..count], trainers, &[]);
            assert_eq!(outcome(&place, &output), outcome(&place, &alone), "{output}");
        }
    }
}

/// The table of users may have a sixth less rows than there are users, and a fifth of the batches'
/// users are new.
#[test]
fn a_full_table_holds_the_same_rows_on_any_number_of_servers() {
    let place = Workplace::new();
    let changes = [
        ("epochs = 3\n", "epochs = 2\n"),
        (
            "[tables.user]\n",
            "[tables.user]\nmax_rows = 500\neviction = { kind = 'unseen', steps = 1000 }\n",
        ),
    ];
    place.write("job.toml", &replaced(JOB, &changes));
    let mut text = format!("{}\n", crate::harness::HEADER);
    for index in 0..1500 {
        let line = row(9, index);
        let rest = line.split_once(',').unwrap_or_default().1;
        let user = if index % 5 == 0 { 300 + index / 5 } else { index * 7 % 300 };
        writeln!(text, "user{user},{rest}").expect("a string takes text");
    }
    place.write("train.csv", &text);
    let report = train_alone(&place, "alone", &[]);
    assert!(report["tables"][0]["rows"].as_u64() <= Some(500), "{report}");
    assert!(report["tables"][0]["displaced"].as_u64() >= Some(100), "{report}");
    let servers = ServerProcess::start_group(&place.path(""), 3, &["--shards", "3"]);
    let servers = addresses(&servers);
    for count in [1, 3] {
        let output = format!("over-{count}");
        let over = train_over(&place, &output, &servers[..count], 1, &[]);
        assert_eq!(outcome(&place, &output), outcome(&place, "alone"), "{output}");
        let displaced = |report: &serde_json::Value| report["tables"][0]["displaced"].clone();
        assert_eq!(displaced(&over[0]), displaced(&report), "{output}");
    }
}
