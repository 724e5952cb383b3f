//! Tests that make every operation of a durable write fail, and that kill the process at every
//! operation.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use super::{BUFFER_BYTES, Failpoint, Fault, Files};
use crate::error::DeviceError;

/// Replaces the file that `prepare` wrote, writes a new folder, and removes a folder.
fn scenario(files: &Files, folder: &Path) -> Result<(), DeviceError> {
    files.write_file(folder.join("file"), |file| {
        // The file is larger than one buffer, so there are several writes.
        for _ in 0..3 * BUFFER_BYTES / 8 {
            file.write_all(b"new file")?;
        }
        Ok(())
    })?;
    let stage = files.stage(folder.join("set"))?;
    stage.create_dir("inner")?;
    stage.write_bytes("inner/first", b"first")?;
    stage.write_bytes("second", b"second")?;
    stage.commit()?;
    files.remove_dir(folder.join("old"))
}

fn prepare(folder: &Path) {
    fs::write(folder.join("file"), b"old file").unwrap();
    fs::create_dir(folder.join("old")).unwrap();
    fs::write(folder.join("old/one"), b"1").unwrap();
    fs::write(folder.join("old/two"), b"2").unwrap();
}

/// Checks the guarantees of durable writes after a scenario that ended early. Returns whether the
/// scenario had completed all its operations.
fn assert_whole(folder: &Path) -> bool {
    let file = fs::read(folder.join("file")).unwrap();
    let new = file == b"new file".repeat(3 * BUFFER_BYTES / 8);
    assert!(new || file == b"old file", "the file is neither old nor new");
    let set = folder.join("set");
    let staged = set.exists();
    if staged {
        assert_eq!(fs::read(set.join("inner/first")).unwrap(), b"first");
        assert_eq!(fs::read(set.join("second")).unwrap(), b"second");
        assert!(new, "the set came after the file");
    }
    let old = folder.join("old");
    if old.exists() {
        assert_eq!(fs::read_dir(old).unwrap().count(), 2, "the old folder is half there");
        return false;
    }
    assert!(staged, "the removal came last");
    true
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Returns the number of operations in the scenario.
fn operations() -> u64 {
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path());
    let counter = Arc::new(Failpoint::counting());
    scenario(&Files::with_failpoints(counter.clone()), folder.path()).unwrap();
    assert!(assert_whole(folder.path()));
    assert_eq!(names(folder.path()), ["file", "set"]);
    counter.operations()
}

#[test]
fn a_failing_disk_leaves_old_or_new_and_a_message() {
    let operations = operations();
    assert!(operations > 20, "{operations}");
    for at in 1..=operations {
        for (fault, word) in
            [(Fault::Eio, "could not"), (Fault::Enospc, "the disk is full; free some space")]
        {
            let folder = tempfile::tempdir().unwrap();
            prepare(folder.path());
            let files = Files::with_failpoints(Arc::new(Failpoint::new(at, fault)));
            let error = scenario(&files, folder.path()).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
            assert!(error.to_string().contains(folder.path().to_str().unwrap()), "{error}");
            assert_eq!(error.is_disk_full(), fault == Fault::Enospc);
            assert_whole(folder.path());
            // The scenario runs again, now without a failing disk.
            Files::new().sweep(folder.path()).unwrap();
            if folder.path().join("set").exists() {
                fs::remove_dir_all(folder.path().join("set")).unwrap();
            }
            if !folder.path().join("old").exists() {
                fs::create_dir(folder.path().join("old")).unwrap();
            }
            scenario(&Files::new(), folder.path()).unwrap();
            assert!(assert_whole(folder.path()));
            assert_eq!(names(folder.path()), ["file", "set"]);
        }
    }
}

/// The name of the environment variable that passes the folder and the failpoint to the process
/// that is killed.
const VICTIM: &str = "ZILLION_DEVICE_TEST_VICTIM";

#[test]
#[ignore = "the process that the next test kills"]
fn victim() {
    let Ok(order) = std::env::var(VICTIM) else { return };
    let (failpoint, folder) = order.split_once('@').unwrap();
    let failpoint = Failpoint::parse(failpoint).unwrap();
    scenario(&Files::with_failpoints(Arc::new(failpoint)), Path::new(folder)).unwrap();
}

#[test]
fn a_killed_process_leaves_old_or_new() {
    for at in 1..=operations() {
        for fault in ["kill", "torn"] {
            let folder = tempfile::tempdir().unwrap();
            prepare(folder.path());
            let order = format!("{at}:{fault}@{}", folder.path().display());
            let status = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "durable::tests::victim", "--ignored"])
                .env(VICTIM, order)
                .output()
                .unwrap()
                .status;
            let signal = std::os::unix::process::ExitStatusExt::signal(&status);
            assert_eq!(signal, Some(libc::SIGKILL), "{at}:{fault}");
            assert_whole(folder.path());
            Files::new().sweep(folder.path()).unwrap();
            assert!(names(folder.path()).iter().all(|name| !name.starts_with('.')));
        }
    }
}

#[test]
fn the_error_of_the_writer_is_returned_and_no_file_remains() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let error = Files::new()
        .write_file(&path, |file| {
            file.write_all(b"some")?;
            Err(io::Error::other("the encoder is confused"))
        })
        .unwrap_err();
    assert!(error.to_string().contains("the encoder is confused"), "{error}");
    assert!(names(folder.path()).is_empty());
}

#[test]
fn the_error_of_the_disk_wins_over_wrapped_errors() {
    let folder = tempfile::tempdir().unwrap();
    // The first operation creates a file, and the second operation writes to it.
    let files = Files::with_failpoints(Arc::new(Failpoint::new(2, Fault::Enospc)));
    let error = files
        .write_file(folder.path().join("file"), |file| {
            file.write_all(&vec![0; 2 * BUFFER_BYTES]).map_err(|_| io::Error::other("wrapped"))
        })
        .unwrap_err();
    assert!(error.is_disk_full(), "{error}");
}

#[test]
fn a_write_returns_its_size() {
    let folder = tempfile::tempdir().unwrap();
    let size = Files::new().write_file(folder.path().join("a"), |file| file.write_all(&[7; 1234]));
    assert_eq!(size.unwrap(), 1234);
    assert_eq!(fs::read(folder.path().join("a")).unwrap(), [7; 1234]);
}

#[test]
fn a_folder_that_is_not_empty_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("set");
    fs::create_dir(&target).unwrap();
    fs::write(target.join("precious"), b"data").unwrap();
    let stage = Files::new().stage(&target).unwrap();
    assert_eq!(stage.target(), target);
    stage.write_bytes("other", b"data").unwrap();
    let error = stage.commit().unwrap_err();
    assert!(error.to_string().contains("remove it or choose another name"), "{error}");
    assert_eq!(names(&target), ["precious"]);
    assert_eq!(names(folder.path()), ["set"]);
}

#[test]
fn a_dropped_stage_leaves_nothing_and_survives_a_leftover() {
    let folder = tempfile::tempdir().unwrap();
    let files = Files::new();
    let stage = files.stage(folder.path().join("set")).unwrap();
    stage.write_bytes("one", b"1").unwrap();
    drop(stage);
    assert!(names(folder.path()).is_empty());
    fs::create_dir(folder.path().join(".set.tmp")).unwrap();
    fs::write(folder.path().join(".set.tmp/stale"), b"stale").unwrap();
    let stage = files.stage(folder.path().join("set")).unwrap();
    stage.write_bytes("one", b"1").unwrap();
    stage.commit().unwrap();
    assert_eq!(names(&folder.path().join("set")), ["one"]);
}

#[test]
fn a_sweep_takes_leftovers_only() {
    let folder = tempfile::tempdir().unwrap();
    for name in [".a.tmp", "b.tmp", ".c", "d"] {
        fs::write(folder.path().join(name), b"").unwrap();
    }
    fs::create_dir(folder.path().join(".e.removed")).unwrap();
    let swept = Files::new().sweep(folder.path()).unwrap();
    assert_eq!(swept, [".a.tmp", ".e.removed"]);
    assert_eq!(names(folder.path()), [".c", "b.tmp", "d"]);
}

#[test]
fn files_and_folders_are_moved_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let files = Files::new();
    files.create_dir(folder.path().join("a/b")).unwrap();
    files.write_bytes(folder.path().join("a/b/file"), b"x").unwrap();
    files.rename_dir(folder.path().join("a/b"), folder.path().join("c")).unwrap();
    files.remove_file(folder.path().join("c/file")).unwrap();
    files.remove_dir(folder.path().join("c")).unwrap();
    assert_eq!(names(folder.path()), ["a"]);
    let missing = files.remove_dir(folder.path().join("c")).unwrap_err();
    assert!(missing.to_string().contains("check that it exists"), "{missing}");
    assert!(files.write_bytes("/", b"").is_err());
}

#[test]
fn failpoints_are_read_from_text() {
    for text in ["17:kill", "1:torn", "2:enospc", "3 : eio"] {
        assert!(Failpoint::parse(text).is_ok(), "{text}");
    }
    for text in ["", "kill", "0:kill", "x:kill", "-1:kill", "1:", "1:fire", "1:kill:kill"] {
        let message = Failpoint::parse(text).unwrap_err().to_string();
        assert!(message.contains("N:kill") && message.contains(text), "{message}");
    }
}
