//! Tests of determinism: the same job must give the same bytes with any number of threads and
//! shards.

use std::process::Output;

use tempfile::TempDir;

use crate::harness::{Workplace, last_json, stderr, stdout};

#[test]
fn threads_and_shards_do_not_change_a_byte() {
    let place = Workplace::new();
    place.train_ok("reference", &[]);
    let reference = place.digest("reference/checkpoints");
    assert!(reference.keys().any(|name| name.ends_with("MANIFEST")));
    for threads in [1, 2] {
        for shards in [1, 3, 8] {
            let output = format!("t{threads}s{shards}");
            let threads = format!("run.threads={threads}");
            let shards = format!("run.shards={shards}");
            place.train_ok(&output, &["--set", &threads, "--set", &shards]);
            let files = place.digest(&format!("{output}/checkpoints"));
            assert_eq!(files, reference, "{output}");
        }
    }
}

#[test]
fn rows_on_disk_do_not_change_a_byte() {
    let place = Workplace::new();
    // The rows are so wide that not all of them fit into memory.
    let wide = ["--set", "tables.\"*\".dim=64"];
    place.train_ok("reference", &wide);
    let reference = place.digest("reference/checkpoints");
    for shards in [1, 3] {
        let output = format!("s{shards}");
        // This is the minimum size of slabs: a few rows for each shard.
        let memory = |table: &str| format!("run.spill.{table}=\"{} KiB\"", 9 * shards);
        let (user, tags) = (memory("user"), memory("tags"));
        let shards = format!("run.shards={shards}");
        let tight = ["--set", &shards, "--set", &user, "--set", &tags];
        place.train_ok(&output, &[&wide[..], &tight].concat());
        assert_eq!(place.digest(&format!("{output}/checkpoints")), reference, "{output}");
        let left = std::fs::read_dir(place.path(&output).join("spill")).expect("it was made");
        assert_eq!(left.count(), 0, "the files went with the process");
    }
}

#[test]
fn a_folder_in_memory_is_distinguished_from_a_disk() {
    let place = Workplace::new();
    let memory = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    let disk =
        tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder beside the build");
    let folder = |at: &TempDir| format!("run.spill_folder={}", at.path().display());
    let (disk_folder, memory_folder) = (folder(&disk), folder(&memory));
    let wide = ["--set", "tables.\"*\".dim=64", "--set", "train.epochs=1"];
    let spill = ["--set", "run.spill.user=\"27 KiB\"", "--json"];
    let on_disk = place.train_ok("disk", &[&wide[..], &spill, &["--set", &disk_folder]].concat());
    let in_memory =
        place.train_ok("memory", &[&wide[..], &spill, &["--set", &memory_folder]].concat());
    assert!(!stderr(&on_disk).contains("run.spill_folder"), "{}", stderr(&on_disk));
    assert!(stderr(&in_memory).contains("run.spill_folder"), "{}", stderr(&in_memory));
    let files = |output: &Output| {
        let tables = last_json(&stdout(output))["tables"].as_array().expect("a list").clone();
        tables.iter().find_map(|table| table["spill"]["cached_files"].as_u64())
    };
    assert_eq!((files(&on_disk), files(&in_memory)), (Some(0), Some(3)));
}

#[test]
fn another_seed_gives_other_bytes() {
    let place = Workplace::new();
    place.train_ok("a", &["--set", "train.epochs=1"]);
    place.train_ok("b", &["--set", "train.epochs=1", "--set", "seed=6"]);
    let (a, b) = (place.digest("a/checkpoints"), place.digest("b/checkpoints"));
    for (name, hash) in a.iter().filter(|(name, _)| !name.ends_with("MANIFEST")) {
        assert_ne!(Some(hash), b.get(name), "{name}");
    }
}
