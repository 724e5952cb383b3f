//! The job file of the quickstart.

use std::fmt::Write as _;

use super::place::Place;
use crate::args::QuickstartArgs;

/// The name of the job and of the model in the registry.
pub(super) const NAME: &str = "quickstart";

pub(super) fn job_text(args: &QuickstartArgs, place: &Place) -> String {
    let root = toml::Value::from(place.data.to_string_lossy().as_ref());
    let output = toml::Value::from(place.first.to_string_lossy().as_ref());
    let threads = args.threads.map_or_else(String::new, |n| format!("threads = {n}\n"));
    let mut job = format!(
        r#"# DeepFM on a synthetic click log: 26 ids and 13 numbers a row, as Criteo's.
name = "{NAME}"
seed = {seed}

[data]
root = {root}            # relative to the current folder, or else to that of this file
train = "train.parquet"
valid = "valid.parquet"
test = "test.parquet"

[labels.click]
column = "label"

# Settings of every table; a section [tables.C3] would override them for one. An id gets a row when
# training first meets it. Adagrad gives rare ids long steps and frequent ones short steps.
[tables."*"]
dim = 8
initializer = {{ kind = "normal", std = 0.01 }}
optimizer = {{ kind = "adagrad", lr = 0.05, initial_accumulator = 0.001 }}

[model]
kind = "deepfm"
hidden = [64, 32]
dropout = 0.2

[train]
epochs = 4
batch_size = 1024
optimizer = {{ kind = "adam", lr = 1e-3 }}
# An epoch that validates no better cuts the learning rates; the second in a row ends training.
plateau = {{ factor = 0.1, patience = 2 }}

[run]
output = {output}
{threads}
# A number becomes the id of its bucket: twenty buckets of equal count, told from the training data. That
# learns effects of any shape, and a missing value is a bucket of its own. The other way would be
# kind = "numeric" with a transform.
"#,
        seed = args.seed,
    );
    for i in 1..=zillion_datatools::NUMERIC_FIELDS {
        let _ = writeln!(job, "[features.I{i}]\nkind = \"bucketized\"\nbuckets = 20");
    }
    job.push_str("\n# Each id has a table of its own name; a missing value is an id of its own.\n");
    for i in 1..=zillion_datatools::ID_FIELDS {
        let _ = writeln!(job, "[features.C{i}]\nkind = \"id\"");
    }
    job
}
