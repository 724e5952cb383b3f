//! A trainer whose memory is limited to a twentieth of the table that its servers hold. The limit
//! is one of the system (`ulimit -d`), so a trainer that holds the table cannot pass.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use super::runs::{TrainerProcess, addresses};
use super::sites::Site;
use crate::harness::stderr;
use crate::server::{MODEL, REGISTRY};
use crate::stores::{Create, S3Server};

/// The largest size of the private memory of the trainer.
const LIMIT: u64 = 48 << 20;

/// The number of rows of the data that bring new keys, and the number of keys of each of them.
const ROWS: usize = 7808;
const KEYS: usize = 32;

/// The number of rows of the data that come last and repeat the first keys.
const AGAIN: usize = 32;

const JOB: &str = r#"
name = "e2e"
seed = 3

[data]
train = ["flat.csv"]
shuffle = false

[features.ids]
kind = "ids"
pooling = "mean"
[features.side]
kind = "id"

[labels.label]

[tables."*"]
dim = 512
optimizer = { kind = "adagrad", lr = 0.05 }

[model]
kind = "deepfm"
hidden = [4]

[train]
epochs = 1
batch_size = 8
lanes = 1

[run]
threads = 1
"#;

/// Returns the text of a file with new keys in its first rows.
fn data(rows: usize) -> String {
    let mut text = "ids,side,label\n".to_owned();
    for row in (0..rows).chain(0..AGAIN) {
        let ids: Vec<String> = (0..KEYS).map(|key| (row * KEYS + key).to_string()).collect();
        writeln!(text, "{},{},{}", ids.join("|"), row % 3, row % 2).expect("a string takes text");
    }
    text
}

/// Returns the command under the limit of memory.
fn limited(command: &Command) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -d \"$0\" && exec \"$@\"", &(LIMIT >> 10).to_string()]);
    limited.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited
}

/// The largest sizes of a trainer.
#[derive(Debug, Default)]
struct Peaks {
    /// The resident memory, with the pages of the program.
    memory: u64,
    /// The files in the folder of the run.
    disk: u64,
}

/// Returns the sum of the sizes of all files below a folder.
fn size_of(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let size = |path: &Path| match path.is_dir() {
        true => size_of(path),
        false => std::fs::metadata(path).map_or(0, |found| found.len()),
    };
    entries.flatten().map(|entry| size(&entry.path())).sum()
}

/// Returns the largest resident memory that a process has had.
fn peak_memory(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Trains with tables on two servers. Returns the report and the peaks of the trainer.
fn train(site: &Site, output: &str, rows: usize) -> (serde_json::Value, Peaks) {
    site.place().write("flat.csv", &data(rows));
    // A checkpoint and the base come after the new keys, and the delta at the end.
    let step = rows / 8 + 2;
    let registry = format!("publish.registry={}-{REGISTRY}", site.store().display());
    let every = format!("publish.every={step}");
    let checkpoint = format!("train.checkpoint_every={step}");
    let settings =
        ["--set", &registry, "--set", &every, "--set", &checkpoint, "--set", "train.keep=1"];
    let servers = site.servers(2);
    let command = site.train(output, &addresses(&servers), (0, 1), &settings);
    let mut trainer = TrainerProcess::spawn(site.place(), limited(&command));
    let mut peaks = Peaks::default();
    while trainer.is_running() {
        peaks.memory = peaks.memory.max(peak_memory(trainer.id()));
        peaks.disk = peaks.disk.max(size_of(&site.place().path(output)));
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    (trainer.end().succeeded(), peaks)
}

#[test]
fn the_trainer_stays_flat_beside_a_table_20_times_its_memory() {
    let server = S3Server::start(Create::Honoured);
    let site = Site::bucket(server.address).with_long_requests();
    site.place().write("job.toml", JOB);
    let (report, big) = train(&site, "big", ROWS);
    let tables = report["tables"].as_array().expect("a list of tables");
    let bytes: u64 = tables.iter().filter_map(|table| table["bytes"].as_u64()).sum();
    assert!(bytes >= 20 * LIMIT, "the table has {bytes} bytes");
    assert!(report["rewinds"].is_null(), "{report}");
    // The base has all rows, and the delta only those that came again.
    let list = ["model", "list", "--model", MODEL, "--json", "--registry"];
    let registry = format!("{}-{REGISTRY}", site.store().display());
    let mut list = site.command(crate::harness::zillion(&[&list[..], &[&registry]].concat()));
    let listed = crate::harness::stdout(&list.output().expect("the binary runs"));
    let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    let versions = listed["versions"].as_array().expect("a list of versions");
    assert_eq!(versions.len(), 2, "{listed}");
    // With an eighth of the table, the trainer needs nearly the same.
    let (_, small) = train(&site, "small", ROWS / 8);
    eprintln!(
        "table {} MiB, limit {} MiB; trainer: {} MiB resident (with an eighth of the table: {} \
         MiB), {} KiB on disk",
        bytes >> 20,
        LIMIT >> 20,
        big.memory >> 20,
        small.memory >> 20,
        big.disk >> 10
    );
    assert!(big.memory <= small.memory + (8 << 20), "{big:?} {small:?}");
    assert!(big.disk < LIMIT / 4, "{big:?}");
    // The same limit is too low for the table.
    site.place().write("flat.csv", &data(ROWS));
    let alone = limited(&site.place().train("alone", &[])).output().expect("`sh` runs");
    assert!(!alone.status.success(), "the table fits into the memory of the trainer");
    // The tables report that memory is exhausted, and other allocations end the process.
    let said = stderr(&alone);
    let is_full = ["memory is exhausted", "memory allocation of"].iter().any(|t| said.contains(t));
    assert!(is_full, "another failure: {said}");
}
