//! Tests of runs whose servers keep their checkpoints in a bucket.

use std::path::Path;

use super::runs::{addresses, outcome, train_alone};
use super::sites::{Site, whole_checkpoints};
use crate::stores::{Create, Proxy, S3Server, storm};

/// The settings of a run that stops after its first epoch, and of one that goes on.
const EPOCHS: [[&str; 2]; 2] = [["--set", "train.epochs=1"], ["--set", "train.epochs=2"]];

/// Returns the names of all files below a folder.
fn files_below(folder: &Path) -> Vec<String> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the folder can be listed") {
        let path = entry.expect("the folder can be listed").path();
        match path.is_dir() {
            true => files.extend(files_below(&path)),
            false => files.push(path.display().to_string()),
        }
    }
    files
}

/// Returns the number of manifests in the folder of the bucket.
fn committed(checkpoints: &Path) -> usize {
    let folders = std::fs::read_dir(checkpoints).into_iter().flatten().flatten();
    folders.filter(|folder| folder.path().join("MANIFEST").exists()).count()
}

/// Another machine has nothing but the job, the data and the bucket. The checkpoints hold changes,
/// so that a restore reads a chain of them.
#[test]
fn a_run_is_resumed_from_its_bucket_alone() {
    let server = S3Server::start(Create::Honoured);
    let site = Site::bucket(server.address);
    let place = site.place();
    let chains = ["--set", "train.full_every=3", "--set", "train.keep=2"];
    let first = [&EPOCHS[0][..], &chains].concat();
    let more = [&EPOCHS[1][..], &chains].concat();
    train_alone(place, "alone", &more);
    let servers = site.servers(3);
    let checkpoints = site.checkpoints_in(&server, "clicks");
    // The first machine is lost after a checkpoint of changes.
    let mut lost = site.start_all("first/clicks", &addresses(&servers), 1, &first).remove(0);
    let began = std::time::Instant::now();
    while lost.is_running() && committed(&checkpoints) < 2 {
        assert!(began.elapsed() < super::proxy::PATIENCE, "{}", lost.said());
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    drop(lost);
    drop(servers);
    assert!(whole_checkpoints(&checkpoints).len() >= 2);
    // No row is on the machine of the trainer.
    let here = files_below(&place.path("first/clicks"));
    assert!(here.iter().any(|file| file.ends_with("MANIFEST")), "{here:?}");
    assert!(!here.iter().any(|file| file.ends_with(".arrow")), "{here:?}");
    let servers = site.servers(2);
    let resume = [&more[..], &["--resume"]].concat();
    site.train_over("second/clicks", &addresses(&servers), 1, &resume);
    assert_eq!(outcome(place, "second/clicks"), outcome(place, "alone"));
    let id = |output: &str| std::fs::read_to_string(place.path(output).join("RUN")).expect("an id");
    assert_eq!(id("second/clicks"), id("first/clicks"));
    // What is not needed any more was removed, and nothing else.
    let whole = whole_checkpoints(&checkpoints);
    let all = std::fs::read_dir(&checkpoints).expect("the folder can be listed");
    let named = all.map(|entry| entry.expect("the folder can be listed").path());
    let left: Vec<_> = named.filter(|folder| !files_below(folder).is_empty()).collect();
    assert_eq!(left.len(), whole.len(), "{left:?}");
    assert!((2..=5).contains(&whole.len()), "{whole:?}");
    // A run that does not resume refuses to overwrite the checkpoints, also from a third machine.
    let command = site.train("third/clicks", &addresses(&servers), (0, 1), &more);
    let refused = super::runs::TrainerProcess::spawn(place, command).end();
    assert!(!refused.status.success());
    assert!(refused.said.contains("already holds checkpoints"), "{}", refused.said);
}

#[test]
fn two_trainers_and_a_bucket_full_of_faults() {
    let server = S3Server::start(Create::Honoured);
    let proxy = Proxy::start(server.address, storm(11, 200));
    let site = Site::bucket(proxy.address);
    let place = site.place();
    train_alone(place, "alone", &["--set", "train.accumulate=2"]);
    let servers = site.servers(2);
    let reports = site.train_over("run", &addresses(&servers), 2, &[]);
    assert!(reports.iter().all(|report| report["rewinds"].is_null()), "{reports:?}");
    assert_eq!(outcome(place, "run"), outcome(place, "alone"));
    assert!(proxy.broken() > 5, "{} faults", proxy.broken());
    assert!(!whole_checkpoints(&site.checkpoints_in(&server, "run")).is_empty());
}

/// The best epoch is an earlier one. Its test reads the rows from the servers, because the trainer
/// has none.
#[test]
fn the_best_epoch_is_tested_over_the_servers() {
    let server = S3Server::start(Create::Honoured);
    let site = Site::bucket(server.address);
    let place = site.place();
    // With such a rate, later epochs make the model worse.
    site.change_job(&[
        ("epochs = 1\n", "epochs = 6\n"),
        ("lr = 0.05 }\n[tables.item]", "lr = 3.0 }\n[tables.item]"),
        ("patience = 3 }", "patience = 3, metric = 'logloss' }"),
    ]);
    let alone = train_alone(place, "alone", &[]);
    assert!(alone["best_epoch"].as_u64() < alone["epochs"].as_u64(), "{alone}");
    let servers = site.servers(2);
    let over = site.train_over("run", &addresses(&servers), 1, &[]).remove(0);
    for figure in ["best_epoch", "valid_auc", "test_auc"] {
        assert!(!alone[figure].is_null(), "{figure}: {alone}");
        assert_eq!(over[figure], alone[figure], "{figure}");
    }
    assert_eq!(outcome(place, "run"), outcome(place, "alone"));
}
