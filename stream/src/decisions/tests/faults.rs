//! Faults at every durable operation of a log: a full or broken disk, and a killed process.
//!
//! The syncs themselves are left out, because they take long and change nothing for a process. The
//! failpoints see them all the same.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use zillion_device::durable::{Action, Fault, Op};
use zillion_device::{Failpoint, Failpoints, Files};

use super::{DecisionLog, decision, expected, options, read_all, segments, write_log};
use crate::error::{Error, Result};

/// The number of decisions of the scenario.
const COUNT: u64 = 24;
/// The size of segments. The scenario writes several.
const SEGMENT: u64 = 600;
/// The file beside the log with the number of synced decisions.
const PROGRESS: &str = "progress";

/// Opens a log, appends decisions in groups of three, reopens it in between, and removes segments.
/// Writes down the number of decisions after each sync.
fn scenario(files: &Files, parent: &Path) -> Result<()> {
    let folder = parent.join("runs/log");
    let progress = |synced: u64| fs::write(parent.join(PROGRESS), synced.to_string()).unwrap();
    for end in [COUNT / 2, COUNT] {
        let mut log = DecisionLog::open(files, &folder, options(SEGMENT))?;
        progress(log.synced());
        for number in log.next()..end {
            log.append(&decision(number))?;
            if number % 3 == 2 {
                log.sync()?;
                progress(log.synced());
            }
        }
        log.sync()?;
        progress(log.synced());
    }
    let mut log = DecisionLog::open(files, &folder, options(SEGMENT))?;
    assert!(log.remove_before(COUNT / 2)? > 0);
    Ok(())
}

/// Checks that the log has a prefix of the decisions with everything that was synced, and that it
/// goes on.
fn assert_prefix(parent: &Path, at: u64) {
    let folder = parent.join("runs/log");
    let progress = fs::read_to_string(parent.join(PROGRESS)).unwrap_or_default();
    let synced: u64 = progress.parse().unwrap_or(0);
    let mut log = DecisionLog::open(&Files::new().scratch(), &folder, options(SEGMENT)).unwrap();
    let (first, next) = (log.first(), log.next());
    assert!(next >= synced && next <= COUNT, "{at}: {next} of {synced}");
    assert!(first == 0 || synced == COUNT, "{at}: {first}");
    assert!(first <= COUNT / 2);
    for number in next..COUNT {
        log.append(&decision(number)).unwrap();
    }
    log.sync().unwrap();
    drop(log);
    assert_eq!(read_all(&folder).unwrap(), &expected(COUNT)[first as usize..], "{at}");
    let leftovers = fs::read_dir(&folder).unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.as_encoded_bytes().starts_with(b".")
    });
    assert_eq!(leftovers.count(), 0, "{at}");
}

/// Returns the number of operations in the scenario.
fn operations() -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let counter = Arc::new(Failpoint::counting());
    scenario(&Files::with_failpoints(counter.clone()).scratch(), folder.path()).unwrap();
    assert_prefix(folder.path(), 0);
    counter.operations()
}

#[test]
fn a_failing_disk_loses_nothing_that_was_synced() {
    let operations = operations();
    assert!(operations > 40, "{operations}");
    for at in 1..=operations {
        for fault in [Fault::Eio, Fault::Enospc] {
            let folder = tempfile::tempdir().unwrap();
            let files = Files::with_failpoints(Arc::new(Failpoint::new(at, fault))).scratch();
            let error = scenario(&files, folder.path()).unwrap_err();
            assert!(matches!(error, Error::Device(_)), "{at}: {error}");
            assert_prefix(folder.path(), at);
        }
    }
}

/// The name of the environment variable that passes the failpoint and the folder to the process
/// that is killed.
const VICTIM: &str = "ZILLION_STREAM_TEST_VICTIM";

/// Runs itself again as the process that is killed, once for each operation.
#[test]
fn a_killed_process_loses_nothing_that_was_synced() {
    if let Ok(order) = std::env::var(VICTIM) {
        let (failpoint, folder) = order.split_once('@').unwrap();
        let failpoint = Failpoint::parse(failpoint).unwrap();
        scenario(&Files::with_failpoints(Arc::new(failpoint)).scratch(), Path::new(folder))
            .unwrap();
        return;
    }
    let name = "decisions::tests::faults::a_killed_process_loses_nothing_that_was_synced";
    for at in 1..=operations() {
        for fault in ["kill", "torn"] {
            let folder = tempfile::tempdir().unwrap();
            let status = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name])
                .env(VICTIM, format!("{at}:{fault}@{}", folder.path().display()))
                .output()
                .unwrap()
                .status;
            let signal = std::os::unix::process::ExitStatusExt::signal(&status);
            assert_eq!(signal, Some(9), "{at}:{fault}");
            assert_prefix(folder.path(), at);
        }
    }
}

#[test]
fn a_log_refuses_to_go_on_after_a_failed_sync() {
    let folder = tempfile::tempdir().unwrap();
    let counter = Arc::new(Failpoint::counting());
    drop(DecisionLog::open(
        &Files::with_failpoints(counter.clone()).scratch(),
        folder.path(),
        options(SEGMENT),
    ));
    let reopening = counter.operations();
    // An existing log needs fewer operations to open, so that each of these is tried.
    for at in 1..=reopening + 2 {
        let files = Files::with_failpoints(Arc::new(Failpoint::new(at, Fault::Eio))).scratch();
        let Ok(mut log) = DecisionLog::open(&files, folder.path(), options(SEGMENT)) else {
            continue;
        };
        let number = log.append(&decision(log.next())).unwrap();
        if log.sync().is_err() {
            assert!(log.synced() <= number);
            let error = log.append(&decision(0)).unwrap_err();
            assert!(matches!(error, Error::Failed(_)), "{error}");
            assert!(log.sync().unwrap_err().to_string().contains("open the log again"));
            return;
        }
    }
    panic!("no sync has failed");
}

/// A recorder of the folders that are synced.
#[derive(Debug, Default)]
struct Synced(Mutex<Vec<PathBuf>>);

impl Failpoints for Synced {
    fn before(&self, op: Op, path: &Path) -> Action {
        if op == Op::SyncDir {
            self.0.lock().unwrap().push(path.to_path_buf());
        }
        Action::Proceed
    }
}

#[test]
fn the_names_of_folders_are_synced_until_the_log_has_a_segment() {
    let folder = tempfile::tempdir().unwrap();
    let (runs, log) = (folder.path().join("runs"), folder.path().join("runs/log"));
    let open = || {
        let synced = Arc::new(Synced::default());
        let files = Files::with_failpoints(synced.clone()).scratch();
        DecisionLog::open(&files, &log, options(SEGMENT)).unwrap();
        synced.0.lock().unwrap().clone()
    };
    let outer = folder.path().parent().unwrap();
    let above: Vec<&Path> = vec![outer, folder.path(), &runs];
    assert_eq!(&open()[..3], above, "each folder is synced before the next one is created");
    assert!(!open().contains(&runs), "the log has a segment");
    // A killed process may have created the folders without a sync of the last one.
    fs::remove_file(segments(&log).remove(0)).unwrap();
    assert_eq!(open()[0], runs);
    fs::remove_dir_all(&log).unwrap();
    assert_eq!(&open()[..2], &above[1..]);
}

#[test]
fn a_removal_that_failed_half_way_can_be_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    write_log(folder.path(), 30, 1, 500);
    let total = segments(folder.path()).len();
    assert!(total > 3, "{total}");
    let counter = Arc::new(Failpoint::counting());
    let files = Files::with_failpoints(counter.clone()).scratch();
    drop(DecisionLog::open(&files, folder.path(), options(500)).unwrap());
    // The removal is the next operation, and the sync of the folder the one behind it.
    let at = counter.operations() + 2;
    let files = Files::with_failpoints(Arc::new(Failpoint::new(at, Fault::Eio))).scratch();
    let mut log = DecisionLog::open(&files, folder.path(), options(500)).unwrap();
    assert!(matches!(log.remove_before(30), Err(Error::Device(_))));
    assert_eq!(segments(folder.path()).len(), total - 1, "the file is removed");
    assert_eq!(log.first(), 0, "but it is not known whether the removal is durable");
    assert_eq!(log.remove_before(30).unwrap(), total - 1);
    assert_eq!(segments(folder.path()).len(), 1);
    drop(log);

    // After a failed sync, the log removes nothing.
    let at = at + 10;
    let folder = tempfile::tempdir().unwrap();
    write_log(folder.path(), 30, 1, 500);
    let mut refused = false;
    for at in 1..at {
        let files = Files::with_failpoints(Arc::new(Failpoint::new(at, Fault::Eio))).scratch();
        let Ok(mut log) = DecisionLog::open(&files, folder.path(), options(500)) else { continue };
        log.append(&decision(log.next())).unwrap();
        if log.sync().is_err() {
            assert!(matches!(log.remove_before(30), Err(Error::Failed(_))));
            refused = true;
            break;
        }
    }
    assert!(refused && segments(folder.path()).len() >= total);
}
