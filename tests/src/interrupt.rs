//! Tests of Ctrl-C during training. The run must finish its batch, write a checkpoint and exit with
//! code 0. The resumed run must end with the same bytes as a run that was not interrupted.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::{Workplace, stderr};

/// The arguments for many epochs, so that the signal arrives in the middle of the run. The large
/// patience keeps the schedule from ending the run before the signal arrives.
const LONG: [&str; 4] = ["--set", "train.epochs=40", "--set", "train.plateau.patience=1000"];

#[test]
fn a_signal_ends_a_run_after_a_checkpoint() {
    let place = Workplace::new();
    place.train_ok("reference", &LONG);
    for signal in ["INT", "TERM"] {
        let child = place
            .train(signal, &LONG)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        // The first checkpoint shows that training has begun.
        let checkpoints = place.path(&format!("{signal}/checkpoints"));
        while !std::fs::read_dir(&checkpoints).is_ok_and(|mut entries| {
            entries.any(|e| e.is_ok_and(|e| e.file_name().to_string_lossy().starts_with("step-")))
        }) {
            std::thread::sleep(Duration::from_millis(2));
        }
        let id = child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &id]).status();
        assert!(sent.expect("kill runs").success());
        let result = child.wait_with_output().expect("our own child can be waited for");
        let said = stderr(&result);
        assert_eq!(result.status.code(), Some(0), "{said}");
        assert!(said.contains("interrupted: go on with --resume"), "{said}");

        let mut resume = LONG.to_vec();
        resume.push("--resume");
        place.train_ok(signal, &resume);
        assert_eq!(
            place.digest(&format!("{signal}/checkpoints")),
            place.digest("reference/checkpoints")
        );
    }
}
