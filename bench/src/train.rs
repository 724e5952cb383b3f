//! The benchmark `zillion bench train`: samples trained per second from a Parquet file with the
//! shape of Criteo's data, and the AUC of the same run.
//!
//! The systems with which Zillion is compared train the same job: batches of 4,096 rows, 16
//! dimensions, tables with row-wise Adagrad that grow with new keys, Adam for the dense part, one
//! epoch over the first four fifths of the rows, and a test on the remaining rows.

use std::collections::BTreeMap;
use std::fs::File;
use std::num::NonZeroU64;
use std::path::Path;

use anyhow::{Context, Result, bail};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReaderBuilder, RowSelection, RowSelector};
use serde::Serialize;
use toml::{Table, Value};
use zillion_device::machine::CpuTimes;
use zillion_trainer::profile::{ProfileOptions, Summary};
use zillion_trainer::{Job, StageSeconds, TrainOptions, TrainerPlace};

use crate::args::{BenchModel, BenchTrainArgs};
use crate::print_outcome;
use zillion_console::progress::Progress;
use zillion_console::{compute_pool, durable_files};
use zillion_console::{job_file, profile, signals};

/// The recording options of a run without `--profile`. They record only a few batches, from which
/// the number of operations for each sample is computed.
const FOR_THE_BOUND: ProfileOptions =
    ProfileOptions { every: NonZeroU64::new(100).expect("not zero"), most_spans: 10_000 };

#[derive(Serialize)]
struct Outcome {
    model: BenchModel,
    threads: usize,
    /// Whether all batches are decoded and planned before the first step.
    in_memory: bool,
    samples_per_second: Option<f64>,
    /// The upper bound of the rate. Training would reach this rate if it consisted only of matrix
    /// products. The bound is computed from the best rate of such products, which is measured after
    /// the run.
    bound_samples_per_second: Option<f64>,
    /// The time from the call to the end of the first step, in seconds. It includes checking the
    /// job, opening the files and reading the statistics. `None` if no step was trained.
    first_step_seconds: Option<f64>,
    test_auc: Option<f64>,
    test_logloss: Option<f64>,
    rows_trained: u64,
    table_rows: u64,
    table_bytes: u64,
    peak_rss_mib: Option<f64>,
    /// The number of processors that this run kept busy.
    own_cpus: f64,
    /// The number of processors that other programs kept busy. The figures are valid if this number
    /// is below 0.25.
    other_cpus: Option<f64>,
    seconds: StageSeconds,
    /// The share of the run's time for each stage of the thread that drives training.
    shares: BTreeMap<&'static str, f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<Summary>,
}

pub(crate) fn run(args: &BenchTrainArgs, is_json: bool) -> Result<()> {
    let folder = tempfile::tempdir().context("the folder of the run cannot be created")?;
    let [train, test] = ["train.parquet", "test.parquet"].map(|name| folder.path().join(name));
    let rows_trained = split(&args.data, &train, &test)?;

    let mut value: Table =
        job(args.model).parse().context("the job of the benchmark is not valid")?;
    job_file::overlay(&mut value, std::env::vars(), &args.set)?;
    let text = |path: &Path| Value::from(path.display().to_string());
    let sets = [
        format!("data.root={}", text(folder.path())),
        format!("run.output={}", text(&folder.path().join("run"))),
        format!("run.threads={}", args.threads),
    ];
    job_file::overlay(&mut value, std::iter::empty(), &sets)?;
    let job = Job::from_value(value.into())?;

    let options = TrainOptions {
        resume: false,
        overwrite: false,
        from: None,
        workers: compute_pool(Some(args.threads))?,
        files: durable_files()?,
        stop: signals::stop_flag()?,
        profile: profile::options(&args.profile)?.or(Some(FOR_THE_BOUND)),
        in_memory: args.in_memory,
        trainer: TrainerPlace::ALONE,
    };
    let before = CpuTimes::now();
    let report = zillion_trainer::train(job, options, &mut Progress::new())?;
    let cpus = CpuTimes::now().since(&before);
    if report.interrupted {
        bail!("the benchmark was stopped by a signal; start it again");
    }
    let profile = profile::report(&args.profile, &report)?;
    let stages = report.seconds.of_the_driver();
    let all: f64 = stages.iter().map(|(_, seconds)| seconds).sum();
    let outcome = Outcome {
        model: args.model,
        threads: args.threads.get(),
        in_memory: args.in_memory,
        samples_per_second: report.samples_per_second,
        bound_samples_per_second: profile.as_ref().and_then(|p| p.bound_samples_per_second),
        first_step_seconds: report.first_step_seconds,
        test_auc: report.test.as_ref().and_then(|t| t.auc),
        test_logloss: report.test.as_ref().and_then(|t| t.logloss),
        rows_trained,
        table_rows: report.tables.iter().map(|t| t.rows).sum(),
        table_bytes: report.tables.iter().map(|t| t.bytes).sum(),
        peak_rss_mib: report.peak_rss_mib,
        own_cpus: cpus.own_cpus,
        other_cpus: cpus.other_cpus,
        seconds: report.seconds,
        shares: stages.map(|(stage, seconds)| (stage, seconds / all)).into(),
        profile: profile.filter(|_| args.profile.profile.is_some()),
    };
    print_outcome(&outcome, is_json)
}

/// Writes the first four fifths of the rows to one file and the rest to another file. Returns the
/// number of rows in the first file.
fn split(data: &Path, train: &Path, test: &Path) -> Result<u64> {
    let open = || {
        let file = File::open(data)
            .with_context(|| format!("file `{}` cannot be opened", data.display()))?;
        ParquetRecordBatchReaderBuilder::try_new(file)
            .with_context(|| format!("file `{}` is not a Parquet file", data.display()))
    };
    let rows = usize::try_from(open()?.metadata().file_metadata().num_rows())?;
    let cut = rows * 4 / 5;
    let selections = [
        (train, vec![RowSelector::select(cut), RowSelector::skip(rows - cut)]),
        (test, vec![RowSelector::skip(cut), RowSelector::select(rows - cut)]),
    ];
    for (path, selection) in selections {
        let reader = open()?.with_row_selection(RowSelection::from(selection));
        let schema = reader.schema().clone();
        let file = File::create(path).with_context(|| path.display().to_string())?;
        let properties = parquet::file::properties::WriterProperties::builder()
            .set_compression(parquet::basic::Compression::ZSTD(Default::default()))
            .set_max_row_group_row_count(Some(65_536))
            .build();
        let mut writer = ArrowWriter::try_new(file, schema, Some(properties))?;
        for batch in reader.build()? {
            writer.write(&batch?)?;
        }
        writer.close()?;
    }
    Ok(cut as u64)
}

fn job(model: BenchModel) -> String {
    let mut job = String::from(
        r#"
        name = "bench"
        seed = 1
        [data]
        train = ["train.parquet"]
        test = ["test.parquet"]
        [labels.click]
        column = "label"
        [tables."*"]
        dim = 16
        initializer = { kind = "normal", std = 0.01 }
        optimizer = { kind = "rowwise_adagrad", lr = 0.02, initial_accumulator = 1e-8 }
        [train]
        epochs = 1
        batch_size = 4096
        optimizer = { kind = "adam", lr = 1e-3 }
        "#,
    );
    job.push_str(match model {
        BenchModel::Deepfm => "[model]\nkind = 'deepfm'\nbias = true\nhidden = [400, 400, 400]\n",
        BenchModel::Dcnv2 => {
            "[model]\nkind = 'dcnv2'\nstructure = 'parallel'\ncross_layers = 3\nhidden = [512, 256, 128]\n"
        }
        BenchModel::Dlrm => {
            "[model]\nkind = 'dlrm'\ninteraction = 'dot'\nbottom = [512, 256, 16]\nhidden = [512, 256]\n"
        }
    });
    for i in 1..=13 {
        job.push_str(&format!("[features.I{i}]\nkind = 'numeric'\nmissing = 0\n"));
    }
    for i in 1..=26 {
        job.push_str(&format!("[features.C{i}]\nkind = 'id'\n"));
    }
    job
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn the_job_of_every_model_is_valid() {
        for &model in BenchModel::value_variants() {
            let job: Table = job(model).parse().unwrap();
            Job::from_value(job.into()).unwrap();
        }
    }
}
