//! Tests of checkpoints of changes. Training can resume from such a checkpoint after a kill at any
//! moment, and ends in the same bytes as from a full checkpoint. Every reader of checkpoints can
//! read them. A damaged chain is refused, and the error names the damaged checkpoint.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use zillion_feature::random::mix64;

use crate::harness::{JOB, Workplace, stderr, stdout, zillion};

const SIGKILL: i32 = 9;

/// The settings of a run with four checkpoints in each epoch. The run evicts users that did not
/// occur for six steps, so its checkpoints contain tombstones.
const GOING: [&str; 4] = [
    "--set",
    "tables.user.eviction={ kind = 'unseen', steps = 6 }",
    "--set",
    "train.checkpoint_every=6",
];

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    GOING.iter().chain(more).copied().collect()
}

/// The settings of a run that writes full checkpoints at the steps 6, 24 and 42, and checkpoints of
/// changes at the steps 12, 18, 30 and 36. The epochs end at the steps 24 and 48.
const CHAINED: [&str; 4] = ["--set", "train.full_every=3", "--set", "train.epochs=2"];

fn folder(run: &str, step: u64) -> String {
    format!("{run}/checkpoints/step-{step:012}")
}

fn parent_of(place: &Workplace, run: &str, step: u64) -> Option<String> {
    let manifest = fs::read_to_string(place.path(&folder(run, step)).join("MANIFEST"));
    let text = manifest.expect("the checkpoint is there");
    let body = text.split_once('\n').expect("a head and a body").1;
    let json: serde_json::Value = serde_json::from_str(body).expect("JSON");
    json["parent"]["folder"].as_str().map(ToOwned::to_owned)
}

fn steps(place: &Workplace, run: &str) -> Vec<u64> {
    let entries = fs::read_dir(place.path(run).join("checkpoints")).expect("the folder is there");
    let names = entries.map(|e| e.expect("it can be listed").file_name());
    let step = |name: std::ffi::OsString| {
        name.to_str().and_then(|n| n.strip_prefix("step-")?.parse().ok()).expect("a checkpoint")
    };
    let mut steps: Vec<u64> = names.map(step).collect();
    steps.sort_unstable();
    steps
}

/// Returns the files of a checkpoint without its manifest, because the manifest depends on the path
/// of the run.
fn contents(place: &Workplace, folder: &str) -> Vec<(String, String)> {
    let files = place.digest(folder).into_iter();
    files.filter(|(name, _)| name != "MANIFEST").collect()
}

#[test]
fn every_reader_of_checkpoints_reads_chains() {
    let place = Workplace::new();
    let all = ["--set", "train.keep=100", "--set", "run.threads=2"];
    place.train_ok("whole", &with(&[&all[..], &["--set", "train.epochs=2"]].concat()));
    place.train_ok("chained", &with(&[&all[..], &CHAINED].concat()));
    assert_eq!(steps(&place, "chained"), [6, 12, 18, 24, 30, 36, 42, 48]);
    let parents = [6, 12, 18, 24, 30, 36, 42, 48].map(|step| parent_of(&place, "chained", step));
    let named = |step: u64| Some(format!("step-{step:012}"));
    let expected = [None, named(6), named(12), None, named(24), named(30), None, None];
    assert_eq!(parents, expected);
    let gone = place.digest(&folder("chained", 18));
    assert!(gone.keys().any(|name| name.contains("tables/user/gone-")), "{gone:?}");
    // The number of threads and shards does not matter.
    let other = ["--set", "train.keep=100", "--set", "run.threads=1", "--set", "run.shards=7"];
    place.train_ok("elsewhere", &with(&[&other[..], &CHAINED].concat()));
    assert!(place.digest("elsewhere/checkpoints") == place.digest("chained/checkpoints"));
    // The full checkpoints are the same, and the checkpoints of changes between them do not matter.
    for step in [6, 24, 42, 48] {
        let (a, b) = (folder("whole", step), folder("chained", step));
        assert!(contents(&place, &a) == contents(&place, &b), "step {step}");
    }
    let said = |arguments: &[&str], run: &str| {
        let result = zillion(arguments).current_dir(place.path("")).output().expect("it runs");
        assert!(result.status.success(), "{arguments:?}: {}", stderr(&result));
        stdout(&result).replace(run, "run")
    };
    let root = format!("--data={}", place.text("test.csv"));
    for step in [12, 18, 36] {
        let read = |run: &str| {
            let from = folder(run, step);
            vec![
                said(&["eval", &from, &root, "--json", "--threads", "1"], run),
                said(&["table", "top", &from, "--table", "user", "-n", "99", "--json"], run),
                said(&["table", "top", &from, "--table", "item", "--by", "norm", "--json"], run),
                said(&["table", "histogram", &from, "--of", "norm", "--json"], run),
                said(
                    &["table", "explain", &from, "--table", "tags", "--key", "0x123", "--json"],
                    run,
                ),
            ]
        };
        assert_eq!(read("whole"), read("chained"), "step {step}");
        // A shrunk checkpoint is a full checkpoint. If no row is left out, it is equal to the full
        // checkpoint of the other run.
        for run in ["whole", "chained"] {
            let out = format!("{run}-shrunk-{step}");
            let rule = ["--table", "tags", "--min-count", "0", "--out", &out];
            said(&[&["table", "shrink", &folder(run, step)], &rule[..]].concat(), run);
        }
        let shrunk = contents(&place, &format!("chained-shrunk-{step}"));
        assert_eq!(shrunk, contents(&place, &format!("whole-shrunk-{step}")));
        assert_eq!(shrunk, contents(&place, &folder("whole", step)));
        // Training can start from it, and it can be published as a version.
        let once =
            ["--set", "train.epochs=1", "--set", "tables.user.eviction={kind='unseen',steps=6}"];
        for run in ["whole", "chained"] {
            let from = place.text(&folder(run, step));
            let began = format!("{run}-from-{step}");
            place.train_ok(&began, &[&once[..], &["--from", &from]].concat());
            let registry = place.text(&format!("registry-{run}-{step}"));
            said(&["publish", &folder(run, step), "--registry", &registry, "--model", "m"], run);
        }
        let runs = ["whole", "chained"].map(|run| format!("{run}-from-{step}/checkpoints"));
        assert!(place.digest(&runs[0]) == place.digest(&runs[1]), "from step {step}");
        let layers = ["whole", "chained"].map(|run| {
            let files = place.digest(&format!("registry-{run}-{step}")).into_iter();
            let rows =
                files.filter(|(name, _)| name.contains("/files/") && name.ends_with(".arrow"));
            rows.map(|(_, hash)| hash).collect::<BTreeSet<_>>()
        });
        assert!(!layers[0].is_empty() && layers[0] == layers[1], "versions of step {step}");
    }
}

#[test]
fn parents_of_kept_checkpoints_are_kept() {
    let place = Workplace::new();
    let one = ["--set", "train.epochs=1", "--set", "train.full_every=10"];
    // The newest two checkpoints are 18 and 24. Checkpoint 18 depends on 12, and 12 depends on 6.
    place.train_ok("two", &with(&[&one[..], &["--set", "train.keep=2"]].concat()));
    assert_eq!(steps(&place, "two"), [6, 12, 18, 24]);
    place.train_ok("one", &with(&[&one[..], &["--set", "train.keep=1"]].concat()));
    assert_eq!(steps(&place, "one"), [24]);
    // Older checkpoints are removed when no checkpoint depends on them any more, even if all later
    // checkpoints are full.
    let more = ["--resume", "--set", "train.epochs=2", "--set", "train.keep=2"];
    place.train_ok("two", &with(&more));
    assert_eq!(steps(&place, "two"), [42, 48]);
}

#[test]
fn killed_at_random_moments_in_a_chain_and_resumed() {
    let place = Workplace::new();
    let long = with(&[&CHAINED[..], &["--set", "train.keep=3", "--set", "run.threads=2"]].concat());
    let began = Instant::now();
    place.train_ok("reference", &long);
    let whole_run = began.elapsed();
    let reference = place.digest("reference/checkpoints");
    assert_eq!(steps(&place, "reference"), [24, 30, 36, 42, 48]);
    for kill in 0..12 {
        let output = format!("killed-{kill}");
        let mut child = place
            .train(&output, &long)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs");
        let share = (mix64(kill + 99) % 1000) as f64 / 1000.0;
        std::thread::sleep(Duration::from_secs_f64(whole_run.as_secs_f64() * share));
        child.kill().expect("our own child can be killed");
        child.wait().expect("our own child can be waited for");
        place.train_ok(&output, &[&long[..], &["--resume"]].concat());
        assert_eq!(place.digest(&format!("{output}/checkpoints")), reference, "kill {kill}");
    }
}

#[test]
fn disturbed_at_writes_of_a_chain_and_resumed() {
    let place = Workplace::new();
    let short = with(&["--set", "train.epochs=1", "--set", "train.full_every=3"]);
    place.train_ok("reference", &short);
    let reference = place.digest("reference/checkpoints");
    assert_eq!(steps(&place, "reference"), [6, 12, 18, 24]);
    for (fault, every) in [("kill", 2), ("torn", 7), ("enospc", 7), ("eio", 7)] {
        let mut disturbed = 0;
        for operation in (1..).step_by(every) {
            let output = format!("{fault}-{operation}");
            let result = place
                .train(&output, &short)
                .env("ZILLION_FAILPOINT", format!("{operation}:{fault}"))
                .output()
                .expect("the binary runs");
            if result.status.success() {
                break;
            }
            disturbed += 1;
            match fault {
                "kill" | "torn" => assert_eq!(result.status.signal(), Some(SIGKILL)),
                _ => assert_eq!(result.status.code(), Some(1), "{}", stderr(&result)),
            }
            place.train_ok(&output, &[&short[..], &["--resume"]].concat());
            let files = place.digest(&format!("{output}/checkpoints"));
            assert_eq!(files, reference, "{fault} at operation {operation}");
            fs::remove_dir_all(place.path(&output)).expect("our own folder can be removed");
        }
        assert!(disturbed > 10, "{fault}: only {disturbed} operations were disturbed");
    }
}

#[test]
fn a_chain_with_a_gap_or_another_link_is_refused_by_name() {
    let place = Workplace::new();
    let short = with(&["--set", "train.epochs=1", "--set", "train.full_every=3"]);
    place.train_ok("run", &short);
    let seed = [&short[..], &["--set", "seed=6"]].concat();
    place.train_ok("other", &seed);
    let child = place.text(&folder("run", 18));
    let eval = || {
        let data = place.text("test.csv");
        let result = zillion(&["eval", &child, "--data", &data]).output().expect("it runs");
        (result.status.code(), stderr(&result))
    };
    assert_eq!(eval().0, Some(0));
    let refused = |parts: &[&str]| {
        let (code, said) = eval();
        assert_eq!(code, Some(1), "{said}");
        for part in parts {
            assert!(said.contains(part), "expected `{part}` in: {said}");
        }
    };
    // First, the parent is missing.
    for step in [6, 12] {
        let (path, aside) = (place.path(&folder("run", step)), place.path("aside"));
        fs::rename(&path, &aside).expect("it can be moved");
        refused(&[&format!("step-{step:012}"), "not beside it"]);
        // Then another checkpoint is in its place. It belongs to another training, but it is
        // complete and all its hashes are right.
        let copied = std::process::Command::new("cp")
            .args(["-r", &place.text(&folder("other", step)), path.to_str().expect("text")])
            .status();
        assert!(copied.expect("cp runs").success());
        refused(&[&format!("step-{step:012}"), "another checkpoint is in its place"]);
        fs::remove_dir_all(&path).expect("our own folder can be removed");
        fs::rename(&aside, &path).expect("it can be moved");
        assert_eq!(eval().0, Some(0));
    }
    // Then one bit of each file of the chain is flipped.
    let mut tried = 0;
    for step in [6, 12, 18] {
        for name in place.digest(&folder("run", step)).keys() {
            let is_below = step < 18;
            if is_below && (name.contains("item") || name.contains("dense")) {
                // This file is complete in the newest checkpoint, so it is not read from the
                // parent.
                continue;
            }
            let path = place.path(&folder("run", step)).join(name);
            let good = fs::read(&path).expect("it is there");
            for share in [1, 5, 8] {
                let mut bad = good.clone();
                bad[(good.len() - 1) * share / 9] ^= 1 << (share % 8);
                fs::write(&path, &bad).expect("it can be replaced");
                let file = path.file_name().and_then(|n| n.to_str()).expect("a plain name");
                refused(&[file]);
                tried += 1;
            }
            fs::write(&path, &good).expect("it can be replaced");
        }
    }
    assert!(tried > 30, "{tried}");
    assert_eq!(eval().0, Some(0));
}

#[test]
fn changes_without_checkpoints_inside_an_epoch_are_refused() {
    let place = Workplace::new();
    place.write("job.toml", &JOB.replace("checkpoint_every = 10\n", ""));
    let (code, said) = place.train_fails(&["--set", "train.full_every=2"]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("train.full_every") && said.contains("train.checkpoint_every"), "{said}");
}
