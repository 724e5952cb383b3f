//! The tools that all end-to-end tests use: the binary, a small data set that a model can learn,
//! and a job.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::SystemTime;

use serde_json::Value;
use tempfile::TempDir;
use zillion_feature::random::{combine, mix64};

/// The number of rows of the generated training file.
pub(crate) const ROWS: usize = 1500;

/// Returns the root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is a folder of the repository")
}

/// Returns the path of the `zillion` binary, which is in the same folder as the binary of the
/// tests. `cargo test --workspace` builds it, because its package has an integration test.
///
/// # Panics
/// Panics if the binary is older than the sources.
pub(crate) fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let exe = std::env::current_exe().expect("the test knows its own path");
        let profile = exe.ancestors().nth(2).expect("<target>/<profile>/deps/<test>");
        let binary = profile.join("zillion");
        let changed = |path: &Path| std::fs::metadata(path).and_then(|m| m.modified());
        let built = changed(&binary).unwrap_or(SystemTime::UNIX_EPOCH);
        for (source, _) in sources(root()) {
            assert!(
                !ships(&source) || changed(&source).is_ok_and(|at| at <= built),
                "{} is absent or older than {}: run `cargo test --workspace --release`, or build it",
                binary.display(),
                source.display()
            );
        }
        binary
    })
}

/// Returns whether a source file is compiled into the binary. A change of any other source file (of
/// tests, benches and examples) does not make Cargo build the binary again.
fn ships(source: &Path) -> bool {
    let below = source.strip_prefix(root()).unwrap_or(source);
    !below.iter().any(|name| {
        ["tests", "tests.rs", "benches", "examples"].iter().any(|beside| name == *beside)
    })
}

/// Returns every Rust source below a folder with its text, sorted.
pub(crate) fn sources(top: &Path) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    let mut folders = vec![top.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the folder can be listed") {
            let path = entry.expect("the folder can be listed").path();
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            if path.is_dir() && name != "target" && name != "fixtures" && !name.starts_with('.') {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).expect("sources are text");
                files.push((path, text));
            }
        }
    }
    files.sort();
    assert!(!files.is_empty(), "no sources below {}", top.display());
    files
}

/// Returns a command of the binary. The command gets no settings from the environment of this
/// process.
pub(crate) fn zillion(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ZILLION_")) {
        command.env_remove(name);
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Returns the stdout of a finished command as text.
pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Parses the last line of an output as JSON.
pub(crate) fn last_json(text: &str) -> Value {
    let line = text.lines().last().expect("something on stdout");
    serde_json::from_str(line).expect("the last line is JSON")
}

/// Returns the stderr of a finished command as text.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A folder with a generated data set and a job file. The folder is removed when the value is
/// dropped.
pub(crate) struct Workplace {
    folder: TempDir,
}

impl Workplace {
    /// Creates a folder with generated CSV files and the usual job.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let workplace = Self { folder };
        workplace.write("train.csv", &csv(0, ROWS));
        workplace.write("valid.csv", &csv(1, 400));
        workplace.write("test.csv", &csv(2, 400));
        workplace.write("job.toml", JOB);
        workplace
    }

    /// Creates a folder with the usual job. Some users occur only once in its rows.
    pub(crate) fn with_rare_users() -> Self {
        let workplace = Self::new();
        let mut text = csv(0, 1200);
        for index in 0..300 {
            let line = row(9, index);
            let rest = line.split_once(',').unwrap_or_default().1;
            writeln!(text, "once{index},{rest}").expect("a string takes text");
        }
        workplace.write("train.csv", &text);
        workplace
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("temporary folders have plain names").to_owned()
    }

    pub(crate) fn write(&self, name: &str, contents: &str) {
        std::fs::write(self.path(name), contents).expect("the temporary folder takes files");
    }

    /// Returns the command `zillion train job.toml` with the run folder `output` and the arguments
    /// `more`.
    pub(crate) fn train(&self, output: &str, more: &[&str]) -> Command {
        let root = format!("data.root={}", self.text(""));
        let run = format!("run.output={}", self.text(output));
        let job = self.text("job.toml");
        let mut arguments = vec!["train", &job, "--set", &root, "--set", &run];
        arguments.extend(more);
        zillion(&arguments)
    }

    /// Runs [`Workplace::train`] and asserts that it succeeds.
    pub(crate) fn train_ok(&self, output: &str, more: &[&str]) -> Output {
        let result = self.train(output, more).output().expect("the binary runs");
        assert!(result.status.success(), "{}", stderr(&result));
        result
    }

    /// Runs a training that must fail. Returns the exit code and the error message.
    pub(crate) fn train_fails(&self, more: &[&str]) -> (i32, String) {
        let output = format!("failing-{}", mix64(more.concat().len() as u64));
        let _ = std::fs::remove_dir_all(self.path(&output));
        let result = self.train(&output, more).output().expect("the binary runs");
        assert!(!result.status.success(), "expected a failure\n{}", stderr(&result));
        (result.status.code().unwrap_or(-1), stderr(&result))
    }

    /// Returns the hash of every file below a folder.
    pub(crate) fn digest(&self, name: &str) -> BTreeMap<String, String> {
        let mut files = BTreeMap::new();
        let top = self.path(name);
        collect(&top, &top, &mut files);
        assert!(!files.is_empty(), "nothing in {}", top.display());
        files
    }
}

fn collect(top: &Path, folder: &Path, files: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("the folder can be listed").path();
        if path.is_dir() {
            collect(top, &path, files);
        } else {
            let bytes = std::fs::read(&path).expect("the file can be read");
            let name = path.strip_prefix(top).expect("it lies below the top");
            files.insert(name.display().to_string(), blake3::hash(&bytes).to_hex().to_string());
        }
    }
}

/// The columns of the generated data.
pub(crate) const HEADER: &str = "user,item,tags,price,age,label";

/// Generates one row. The label depends on hidden biases of the user and of the item.
pub(crate) fn row(part: u64, index: usize) -> String {
    let draw = |salt: u64| mix64(combine(combine(part, salt), index as u64));
    let user = draw(1) % 50;
    let item = draw(2) % 80;
    let bias = |id: u64, salt: u64| (mix64(combine(id, salt)) % 1000) as f64 / 250.0 - 2.0;
    let price = (draw(3) % 1000) as f64 / 100.0;
    let logit = bias(user, 77) + bias(item, 78) + 0.1 * (price - 5.0);
    let chance = 1.0 / (1.0 + (-logit).exp());
    let label = u8::from(((draw(4) % 100_000) as f64) < chance * 100_000.0);
    let tags: Vec<String> = (0..draw(5) % 4).map(|i| format!("t{}", draw(6 + i) % 20)).collect();
    let age = if draw(11).is_multiple_of(10) { String::new() } else { (draw(12) % 80).to_string() };
    format!("u{user},{item},{},{price:.2},{age},{label}", tags.join("|"))
}

/// Generates the CSV text of a file.
pub(crate) fn csv(part: u64, rows: usize) -> String {
    let mut text = format!("{HEADER}\n");
    for index in 0..rows {
        writeln!(text, "{}", row(part, index)).expect("a string takes text");
    }
    text
}

/// The text of the usual job. It has a feature of every kind, a dynamic table, two dense tables,
/// batch norm, dropout and clipping. A defect in any of these parts could make a result depend on
/// threads, shards or an interruption.
pub(crate) const JOB: &str = r#"
name = "e2e"
seed = 5

[data]
train = ["train.csv"]
valid = ["valid.csv"]
test = ["test.csv"]

[features.user]
kind = "id"
type = "string"
[features.item]
kind = "id"
[features.tags]
kind = "ids"
type = "string"
pooling = "mean"
[features.price]
kind = "numeric"
transform = "standardise"
[features.age]
kind = "bucketized"
buckets = 4

[labels.label]

[tables."*"]
dim = 4
initializer = { kind = "normal", std = 0.05 }
[tables.user]
optimizer = { kind = "adagrad", lr = 0.05 }
[tables.item]
dense = true
l2 = 1e-3
optimizer = { kind = "adam", lr = 0.01 }
[tables.tags]
optimizer = { kind = "ftrl", lr = 0.05, l1 = 1e-4 }
l2 = 1e-4
[tables.age]
dense = true
optimizer = { kind = "sgd", lr = 0.05 }

[model]
kind = "deepfm"
hidden = [16, 8]
batch_norm = true
dropout = 0.1
l2 = 1e-4

[train]
epochs = 3
batch_size = 64
lanes = 4
tile_rows = 16
clip_norm = 1.0
checkpoint_every = 10
plateau = { factor = 0.5, patience = 3 }

[run]
threads = 1
shards = 3
"#;

/// Prints that a test is skipped and why. Only tests on the list of allowed skips may call this.
pub(crate) fn skip(test: &str, why: &str) {
    let allowed = include_str!("../allowed_skips.txt");
    let listed = allowed.lines().any(|line| line.split_whitespace().next() == Some(test));
    assert!(listed, "{test} may not skip ({why}): it is not in tests/allowed_skips.txt");
    // The test harness hides the output of `eprintln!` if a test passes.
    writeln!(std::io::stderr(), "SKIPPED {test}: {why}").expect("stderr takes a line");
}
