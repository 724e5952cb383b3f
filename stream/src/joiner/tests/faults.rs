//! Disks that fail and processes that are killed, at every durable operation of a run.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use zillion_device::durable::Fault;
use zillion_device::{Failpoint, Files};

use super::checkpoints::mixed_inputs;
use super::*;

/// The number of inputs between two checkpoints.
const EVERY: usize = 30;

/// Runs the joiner over all inputs and writes a checkpoint after each [`EVERY`]. Begins at the
/// newest checkpoint in the folder. Returns the rows since then, and the number of inputs before
/// them.
fn run(folder: &Path, files: &Files, emit: Emit) -> JoinResult<(usize, Vec<Row>)> {
    run_over(&mixed_inputs(120), folder, files, emit)
}

fn run_over(
    inputs: &[Input],
    folder: &Path,
    files: &Files,
    emit: Emit,
) -> JoinResult<(usize, Vec<Row>)> {
    let rows = folder.join("rows");
    let saved = |number: usize| folder.join(format!("checkpoint-{number}"));
    let newest = (1..=inputs.len()).rev().find(|number| saved(*number).exists());
    let mut joiner = match newest {
        Some(number) => Joiner::restore(saved(number), rows, files.clone(), settings(emit))?,
        None => create(&rows, files.clone(), settings(emit), 2)?,
    };
    let start = newest.unwrap_or(0);
    let mut emitted = Vec::new();
    for (number, input) in inputs.iter().enumerate().skip(start) {
        put(&mut joiner, input)?;
        drain(&mut joiner, &mut emitted)?;
        if (number + 1) % EVERY == 0 {
            joiner.checkpoint(saved(number + 1))?;
        }
    }
    Ok((start, emitted))
}

/// Returns the rows of a run without faults, the number of rows before each input, and the number
/// of durable operations.
fn undisturbed(emit: Emit) -> (Vec<Row>, Vec<usize>, u64) {
    let folder = tempfile::tempdir().unwrap();
    let counter = Arc::new(Failpoint::counting());
    let (_, rows) = run(folder.path(), &Files::with_failpoints(counter.clone()), emit).unwrap();
    let mut workplace = Workplace::new(settings(emit), 2);
    let mut before = Vec::new();
    let mut total = 0;
    for input in mixed_inputs(120) {
        before.push(total);
        total += workplace.push(&input).1.len();
    }
    (rows, before, counter.operations())
}

/// Runs again in a folder after a fault, and compares the rows.
fn assert_goes_on(folder: &Path, emit: Emit, rows: &[Row], before: &[usize], what: &str) {
    let (start, after) = run(folder, &Files::new(), emit).unwrap();
    assert_eq!(after, rows[before[start]..], "{what}");
}

#[test]
fn a_failing_disk_loses_nothing() {
    for emit in [Emit::Window, Emit::Now(Late::Correct)] {
        let (rows, before, operations) = undisturbed(emit);
        assert!(operations > 60, "{operations}");
        for at in 1..=operations {
            let fault = if at % 2 == 0 { Fault::Eio } else { Fault::Enospc };
            let folder = tempfile::tempdir().unwrap();
            let files = Files::with_failpoints(Arc::new(Failpoint::new(at, fault)));
            let error = run(folder.path(), &files, emit).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(folder.path().to_str().unwrap()), "{text}");
            assert!(text.contains("could not"), "{text}");
            assert_goes_on(folder.path(), emit, &rows, &before, &format!("{fault:?} at {at}"));
        }
    }
}

#[test]
fn a_failing_disk_during_a_restore_loses_nothing() {
    let (rows, before, _) = undisturbed(Emit::Window);
    let prepare = || {
        let folder = tempfile::tempdir().unwrap();
        let inputs = mixed_inputs(120);
        // The first run goes on a little after its checkpoint, and leaves segments behind.
        run_over(&inputs[..EVERY * 3 - 1], folder.path(), &Files::new(), Emit::Window).unwrap();
        folder
    };
    let counter = Arc::new(Failpoint::counting());
    let files = Files::with_failpoints(counter.clone());
    run(prepare().path(), &files, Emit::Window).unwrap();
    for at in 1..=counter.operations() {
        let folder = prepare();
        let files = Files::with_failpoints(Arc::new(Failpoint::new(at, Fault::Eio)));
        run(folder.path(), &files, Emit::Window).unwrap_err();
        assert_goes_on(folder.path(), Emit::Window, &rows, &before, &format!("at {at}"));
    }
}

/// The name of the environment variable that passes the failpoint and the folder to the process
/// that is killed.
const VICTIM: &str = "ZILLION_JOINER_TEST_VICTIM";

#[test]
#[ignore = "the process that the next test kills"]
fn victim() {
    let Ok(order) = std::env::var(VICTIM) else { return };
    let (failpoint, folder) = order.split_once('@').unwrap();
    let files = Files::with_failpoints(Arc::new(Failpoint::parse(failpoint).unwrap()));
    run(Path::new(folder), &files, Emit::Window).unwrap();
}

#[test]
fn a_killed_process_loses_nothing() {
    let (rows, before, operations) = undisturbed(Emit::Window);
    for at in 1..=operations {
        let fault = if at % 2 == 0 { "kill" } else { "torn" };
        let folder = tempfile::tempdir().unwrap();
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "joiner::tests::faults::victim", "--ignored"])
            .env(VICTIM, format!("{at}:{fault}@{}", folder.path().display()))
            .output()
            .unwrap()
            .status;
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        assert_eq!(signal, Some(9), "{at}:{fault}");
        let what = format!("{fault} at {at}");
        assert_goes_on(folder.path(), Emit::Window, &rows, &before, &what);
    }
}
