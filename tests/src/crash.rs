//! Tests of runs that are killed at any moment and then resumed. They must end with the same bytes
//! as a run that was not interrupted.
//!
//! With one thread, a checkpoint is written between two steps. With two threads, it is written
//! during the steps. The tests kill runs of both kinds.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use zillion_feature::random::mix64;

use crate::harness::{Workplace, stderr};

const SIGKILL: i32 = 9;
const RANDOM_KILLS: u64 = 20;

#[test]
fn killed_at_random_moments_and_resumed() {
    let place = Workplace::new();
    let threads = ["run.threads=1", "run.threads=2"];
    let whole_runs = threads.map(|threads| {
        let began = Instant::now();
        place.train_ok(threads, &["--set", threads]);
        began.elapsed()
    });
    place.train_ok("reference", &[]);
    let reference = place.digest("reference/checkpoints");
    let mut killed = 0;
    for kill in 0..RANDOM_KILLS {
        let output = format!("killed-{kill}");
        let way = (kill % 2) as usize;
        let mut child = place
            .train(&output, &["--set", threads[way]])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs");
        let share = (mix64(kill) % 1000) as f64 / 1000.0;
        std::thread::sleep(Duration::from_secs_f64(whole_runs[way].as_secs_f64() * share));
        child.kill().expect("our own child can be killed");
        let status = child.wait().expect("our own child can be waited for");
        killed += u32::from(status.signal() == Some(SIGKILL));
        place.train_ok(&output, &["--resume"]);
        assert_eq!(place.digest(&format!("{output}/checkpoints")), reference, "kill {kill}");
    }
    assert!(killed >= 10, "most kills must come before the end: {killed} of {RANDOM_KILLS}");
}

/// Injects a fault into each durable operation, one fault in each run. The runs with one thread
/// test every kind of fault. In the runs with two threads, the order of the operations varies. The
/// job writes few checkpoints, so that the test takes seconds.
#[test]
fn disturbed_at_every_write_fsync_and_rename_and_resumed() {
    let place = Workplace::new();
    let short =
        ["--set", "train.epochs=2", "--set", "train.checkpoint_every=14", "--set", "train.keep=1"];
    place.train_ok("reference", &short);
    let reference = place.digest("reference/checkpoints");
    // A kill disturbs every operation, the other faults some of them, which takes half of the time.
    for (fault, count, step) in [
        ("kill", 1, 1),
        ("torn", 1, 2),
        ("enospc", 1, 2),
        ("eio", 1, 2),
        ("kill", 2, 3),
        ("eio", 2, 3),
    ] {
        let threads = format!("run.threads={count}");
        let mut disturbed = 0;
        for operation in (1..).step_by(step) {
            let output = format!("{fault}-{count}-{operation}");
            let result = place
                .train(&output, &[&short[..], &["--set", &threads]].concat())
                .env("ZILLION_FAILPOINT", format!("{operation}:{fault}"))
                .output()
                .expect("the binary runs");
            if result.status.success() {
                // The run has fewer operations than this number, so all its operations have been
                // disturbed.
                break;
            }
            disturbed += 1;
            match fault {
                "kill" | "torn" => assert_eq!(result.status.signal(), Some(SIGKILL)),
                _ => {
                    assert_eq!(result.status.code(), Some(1), "{}", stderr(&result));
                    let said = stderr(&result);
                    assert!(said.contains("error: "), "{said}");
                    if fault == "enospc" {
                        assert!(said.contains("space"), "{said}");
                    }
                }
            }
            let mut resume = short.to_vec();
            resume.push("--resume");
            place.train_ok(&output, &resume);
            let files = place.digest(&format!("{output}/checkpoints"));
            assert_eq!(files, reference, "{fault} at operation {operation}");
            std::fs::remove_dir_all(place.path(&output)).expect("our own folder can be removed");
        }
        assert!(disturbed * step > 20, "{fault}: only {disturbed} operations were disturbed");
    }
}
