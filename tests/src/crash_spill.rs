//! Tests of runs with rows on disk. The runs are killed, or the disk refuses an operation. After
//! they are resumed, they must end with the same bytes as a run that was not interrupted.
//!
//! The files of `[run.spill]` are temporary. A killed run leaves its files, and the next run
//! removes them. The next run continues from the checkpoint, which contains the rows in memory and
//! the rows on disk. Reads and writes of these files use the same failpoint as durable operations.
//! So the tests inject faults into the spilling of rows, into the reading of spilled rows, into
//! compaction and into checkpoints.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use zillion_feature::random::mix64;

use crate::harness::{Workplace, last_json, stderr, stdout};

const SIGKILL: i32 = 9;
const RANDOM_KILLS: u64 = 10;

/// The dimension of the rows. It is so large that only a third of the rows fits into the smallest
/// memory.
const WIDE: [&str; 2] = ["--set", "tables.\"*\".dim=64"];

/// Returns the settings of a run whose memory holds only some rows of two tables.
fn tight(shards: u64) -> Vec<String> {
    let memory = |table: &str| format!("run.spill.{table}=\"{} KiB\"", 9 * shards);
    vec![format!("run.shards={shards}"), memory("user"), memory("tags")]
}

fn arguments<'a>(settings: &'a [String], more: &[&'a str]) -> Vec<&'a str> {
    let settings = settings.iter().flat_map(|setting| ["--set", setting.as_str()]);
    WIDE.into_iter().chain(settings).chain(more.iter().copied()).collect()
}

/// Returns the number of files in the folder for rows on disk.
fn left(place: &Workplace, output: &str) -> usize {
    std::fs::read_dir(place.path(output).join("spill")).map_or(0, Iterator::count)
}

#[test]
fn killed_at_random_moments_and_resumed_with_rows_on_disk() {
    let place = Workplace::new();
    place.train_ok("reference", &WIDE);
    let reference = place.digest("reference/checkpoints");
    let tight = tight(2);
    let began = Instant::now();
    let whole = last_json(&stdout(&place.train_ok("whole", &arguments(&tight, &["--json"]))));
    let one_thread = began.elapsed();
    let began = Instant::now();
    let threads = ["run.threads=1", "run.threads=2"];
    place.train_ok("beside", &arguments(&tight, &["--set", threads[1]]));
    let whole_runs = [one_thread, began.elapsed()];
    assert_eq!(place.digest("beside/checkpoints"), reference);
    let all = |what: &str| -> u64 {
        let tables = whole["tables"].as_array().expect("a list").iter();
        tables.filter_map(|table| table["spill"][what].as_u64()).sum()
    };
    // A run without a kill uses all parts of spilling.
    for what in ["spilled", "brought_in", "compacted", "cold_rows"] {
        assert!(all(what) > 0, "{what}: {whole}");
    }
    assert_eq!(place.digest("whole/checkpoints"), reference);
    let (mut killed, mut leftovers) = (0, 0);
    for kill in 0..RANDOM_KILLS {
        let output = format!("killed-{kill}");
        let way = (kill % 2) as usize;
        let mut child = place
            .train(&output, &arguments(&tight, &["--set", threads[way]]))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs");
        let share = (mix64(100 + kill) % 1000) as f64 / 1000.0;
        std::thread::sleep(Duration::from_secs_f64(whole_runs[way].as_secs_f64() * share));
        child.kill().expect("our own child can be killed");
        let status = child.wait().expect("our own child can be waited for");
        killed += u32::from(status.signal() == Some(SIGKILL));
        leftovers += left(&place, &output);
        // The run resumes with the same memory, with another memory and number of shards, or with
        // all rows in memory.
        let then = match kill % 3 {
            0 => tight.clone(),
            1 => self::tight(1),
            _ => Vec::new(),
        };
        place.train_ok(&output, &arguments(&then, &["--resume"]));
        assert_eq!(place.digest(&format!("{output}/checkpoints")), reference, "kill {kill}");
        if !then.is_empty() {
            assert_eq!(left(&place, &output), 0, "kill {kill}: what the dead have left goes");
        }
    }
    assert!(killed >= 5, "most kills must come before the end: {killed} of {RANDOM_KILLS}");
    assert!(leftovers > 0, "no kill found rows on disk");
}

/// Injects one fault into each run. A run has hundreds of operations and most of them are similar.
/// So the test disturbs each of the first operations, and later only some of the operations.
#[test]
fn disturbed_at_operations_of_the_files_and_resumed() {
    let place = Workplace::new();
    let short =
        ["--set", "train.epochs=1", "--set", "train.checkpoint_every=7", "--set", "train.keep=1"];
    place.train_ok("reference", &[&WIDE[..], &short].concat());
    let reference = place.digest("reference/checkpoints");
    let tight = tight(1);
    let faults = [("kill", 1, 1), ("torn", 2, 1), ("enospc", 3, 1), ("eio", 4, 2), ("kill", 2, 2)];
    for (fault, first, count) in faults {
        let threads = format!("run.threads={count}");
        let (mut disturbed, mut of_rows) = (0, 0);
        let mut operation = first;
        loop {
            let output = format!("{fault}-{count}-{operation}");
            let beside = [&short[..], &["--set", &threads]].concat();
            let result = place
                .train(&output, &arguments(&tight, &beside))
                .env("ZILLION_FAILPOINT", format!("{operation}:{fault}"))
                .output()
                .expect("the binary runs");
            if result.status.success() {
                // The run has fewer operations than this number.
                break;
            }
            disturbed += 1;
            let said = stderr(&result);
            match fault {
                "kill" | "torn" => {
                    assert_eq!(result.status.signal(), Some(SIGKILL), "{said}");
                    of_rows += left(&place, &output);
                }
                _ => {
                    assert_eq!(result.status.code(), Some(1), "{said}");
                    assert!(said.contains("error: ") && !said.contains("panicked"), "{said}");
                    // The error contains the path of the disk, because rows may be on another disk
                    // than checkpoints.
                    assert!(said.contains(place.text("").trim_end_matches('/')), "{said}");
                    if fault == "enospc" {
                        assert!(said.contains("free some space"), "{said}");
                    }
                    of_rows += usize::from(said.contains(".log"));
                    assert_eq!(left(&place, &output), 0, "an error removes the files: {said}");
                }
            }
            let resume: Vec<&str> = [&short[..], &["--resume"]].concat();
            place.train_ok(&output, &arguments(&tight, &resume));
            let files = place.digest(&format!("{output}/checkpoints"));
            assert_eq!(files, reference, "{fault} at operation {operation}");
            std::fs::remove_dir_all(place.path(&output)).expect("our own folder can be removed");
            operation += 1 + operation / 2;
        }
        assert!(disturbed > 8, "{fault}: only {disturbed} operations were disturbed");
        assert!(of_rows > 1, "{fault}: only {of_rows} of {disturbed} met the files of rows");
    }
}
