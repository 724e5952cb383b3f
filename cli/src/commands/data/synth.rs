//! `zillion data synth`: writes a synthetic click log. `zillion quickstart` uses the same log.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Serialize;
use zillion_console::{compute_pool, durable_files, print_json_if};
use zillion_datatools::ClickLog;
use zillion_device::{Files, Workers};
use zillion_nn::metrics;

use crate::args::SynthArgs;
use crate::text::figure;

/// The description of a generated click log.
#[derive(Debug, Serialize)]
pub(in crate::commands) struct Synthetic {
    /// The seed of the random numbers.
    pub(in crate::commands) seed: u64,
    /// The folder with the files `train.parquet`, `valid.parquet` and `test.parquet`.
    pub(in crate::commands) folder: PathBuf,
    /// The number of rows of each file.
    pub(in crate::commands) rows: [u64; 3],
    /// The share of clicks in the test rows.
    pub(in crate::commands) base_rate: f64,
    /// The AUC of the true probabilities on the test rows, or `None` if all test rows have the same
    /// label.
    pub(in crate::commands) truth_auc: Option<f64>,
    /// The log loss of the true probabilities on the test rows, or `None` if it cannot be computed.
    pub(in crate::commands) truth_logloss: Option<f64>,
}

pub(crate) fn run(args: &SynthArgs) -> Result<()> {
    let written = write(args.seed, args.rows, &args.out, &*compute_pool(None)?, &durable_files()?)?;
    written.print_summary();
    print_json_if(args.json, &written)
}

/// Writes the three files of a synthetic log.
pub(in crate::commands) fn write(
    seed: u64,
    rows: u64,
    folder: &Path,
    workers: &Workers,
    files: &Files,
) -> Result<Synthetic> {
    files.create_dir(folder)?;
    let log = ClickLog::new(seed, rows);
    let (train, valid) = (rows * 8 / 10, rows * 9 / 10);
    let file = |name: &str, rows| log.write(&folder.join(name), rows, workers, files);
    file("train.parquet", 0..train)?;
    file("valid.parquet", train..valid)?;
    let test = file("test.parquet", valid..rows)?;
    let mut truth = metrics::Evaluation::new();
    truth.push(metrics::Scores::Logits(&test.logits), &test.labels, None, None)?;
    let truth = truth.finish()?;
    Ok(Synthetic {
        seed,
        folder: folder.to_owned(),
        rows: [train, valid - train, rows - valid],
        base_rate: truth.positives as f64 / truth.rows as f64,
        truth_auc: truth.auc,
        truth_logloss: truth.logloss,
    })
}

impl Synthetic {
    /// Prints a summary for people on stderr.
    pub(in crate::commands) fn print_summary(&self) {
        let [train, valid, test] = self.rows;
        eprintln!(
            "{}: {train} rows to train, {valid} to validate, {test} to test; {:.1} % are clicks",
            self.folder.display(),
            100.0 * self.base_rate
        );
        eprintln!(
            "the true model has test auc {}, logloss {}: training cannot do better",
            figure(self.truth_auc, 5),
            figure(self.truth_logloss, 5)
        );
    }
}
