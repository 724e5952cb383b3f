//! The check of a job before it runs: its cost and the problems that it would meet.
//!
//! The rows of a sample go through the same reader as in training, so the check finds the errors
//! that training would return, with the same texts. If the reader refuses the whole schema, each
//! feature is tried alone, so one run of the check names every wrong column and not only the first.

mod cost;
mod gradients;
mod label_counts;
mod learning;
mod limits;
mod report;
mod sample;
mod streams;
mod stretches;

use std::path::Path;
use std::sync::Arc;

use zillion_device::matmul::bf16::Instructions;
use zillion_device::{Workers, machine};
use zillion_feature::{FeatureKind, Schema};
use zillion_reader::{Dataset, Labels, Paths, ReaderError, estimated_rows};

use crate::checkpoint::RunDir;
use crate::error::Result;
use crate::job::{DeviceChoice, Job, Precision};
use crate::overlap::shared_files;
pub use gradients::{GradientCheck, GradientGroup, gradients};
use report::Findings;
pub use report::{
    CheckReport, DataCheck, FeatureCheck, Finding, LabelCheck, MemoryCheck, Severity, TableCheck,
};
pub(crate) use sample::without_statistics;

/// Checks a job and `sample` rows of its training data.
///
/// # Errors
/// Returns an error if the check itself cannot run. Problems of the job or of its data are findings
/// of the report instead.
pub fn check(job: &Job, sample: u64, workers: &Arc<Workers>) -> Result<CheckReport> {
    let mut findings = Findings::default();
    let has_streams = !job.streams.is_empty();
    streams::check_streams(job, &mut findings);
    let train = match job.data.train.is_empty() {
        true if has_streams => None,
        true => {
            findings.error(
                "data.train",
                "names no files, but a job needs training data; name at least one file",
            );
            None
        }
        false => open(job, "train", &job.data.train, &mut findings),
    };
    for (part, paths) in [("valid", &job.data.valid), ("test", &job.data.test)] {
        match paths.is_empty() {
            true if has_streams => {}
            true => findings.note(
                &format!("data.{part}"),
                match part {
                    "valid" => {
                        "names no files, so every epoch counts as the best so far; name \
                         validation files"
                    }
                    _ => "names no files, so no test AUC is reported; name test files",
                },
            ),
            false => drop(open(job, part, paths, &mut findings)),
        }
    }
    for (part, text) in shared_files(job) {
        findings.warning(&format!("data.{part}"), text);
    }
    let mut data = None;
    let mut tables = Vec::new();
    let mut rows = None;
    if let Some(train) = &train {
        rows = estimated_rows(train)?;
        if rows.is_none() {
            findings.note(
                "data.train",
                "the number of rows is unknown, because the text is compressed, so all figures \
                 are about the sample only; convert the files to Parquet",
            );
        }
        let known = rows.map(|(n, _)| n);
        let sampled = sample::draw(job, train, sample, known, workers, &mut findings)?;
        rows = rows.map(|rows| sampled.of_data(job, rows));
        tables = cost::estimate_tables(job, &sampled, rows.map(|(n, _)| n), &mut findings);
        limits::find_contradictions(job, &sampled, &tables, machine::total_memory(), &mut findings);
        data = Some(sampled.into_check(rows));
    }
    learning::report_consequences(job, rows.map(|(n, _)| n), &mut findings);
    let memory = cost::estimate_memory(job, &tables, rows.map(|(n, _)| n), workers, &mut findings);
    check_machine(job, &tables, train.as_ref(), &mut findings);
    Ok(CheckReport { findings: findings.sorted(), data, tables, memory })
}

/// Opens the data set of a list of files. If that fails, reports every wrong column.
fn open(job: &Job, part: &str, paths: &Paths, findings: &mut Findings) -> Option<Dataset> {
    let files = match job.data.files(paths) {
        Ok(files) => files,
        Err(error) => {
            findings.error(&format!("data.{part}"), error.to_string());
            return None;
        }
    };
    let error = match Dataset::open(&job.data, &files, &job.schema) {
        Ok(dataset) => return Some(dataset),
        Err(error) => error,
    };
    // The other columns would be reported with the same fault.
    if matches!(error, ReaderError::NoHeader { .. }) {
        findings.error(&format!("data.{part}"), error.to_string());
        return None;
    }
    let mut found = false;
    for (used_by, schema) in parts(&job.schema) {
        if let Err(error) = Dataset::open_with(&job.data, &files, &schema, Labels::Required) {
            let of_column = matches!(
                error,
                ReaderError::MissingColumn { .. }
                    | ReaderError::ColumnType { .. }
                    | ReaderError::AmbiguousColumn { .. }
            );
            if of_column {
                findings.error(&used_by, error.to_string());
                found = true;
            }
        }
    }
    if !found {
        findings.error(&format!("data.{part}"), error.to_string());
    }
    None
}

/// Splits the schema into schemas that can be read alone: one for each feature, one for each label,
/// and one for the other columns.
fn parts(schema: &Schema) -> Vec<(String, Schema)> {
    let bare = Schema {
        features: Vec::new(),
        labels: Vec::new(),
        weight: None,
        group: None,
        event_time: None,
        ..schema.clone()
    };
    let mut parts = Vec::new();
    for feature in &schema.features {
        // Other kinds of features depend on other features.
        let alone = matches!(
            feature.kind,
            FeatureKind::Id { .. }
                | FeatureKind::Ids { .. }
                | FeatureKind::Numeric { .. }
                | FeatureKind::Vector { .. }
                | FeatureKind::Bucketized { .. }
        );
        if alone {
            let part = Schema { features: vec![feature.clone()], ..bare.clone() };
            parts.push((format!("features.{}", feature.name), part));
        }
    }
    for label in &schema.labels {
        let part = Schema { labels: vec![label.clone()], ..bare.clone() };
        parts.push((format!("labels.{}", label.name), part));
    }
    let columns = Schema {
        weight: schema.weight.clone(),
        group: schema.group.clone(),
        event_time: schema.event_time.clone(),
        ..bare
    };
    parts.push(("columns".to_owned(), columns));
    parts
}

fn check_machine(
    job: &Job,
    tables: &[TableCheck],
    train: Option<&Dataset>,
    findings: &mut Findings,
) {
    let cores = machine::cpus();
    if let Some(threads) = job.run.threads.filter(|&threads| threads > cores) {
        findings.warning(
            "run.threads",
            format!("{threads} threads on {cores} cores wait for each other; remove the setting to get one thread for each core"),
        );
    }
    check_precision(job, findings);
    let lanes = job.train.lanes;
    let threads = job.run.threads.unwrap_or(cores);
    if threads > lanes {
        findings.warning(
            "train.lanes",
            format!("{lanes} lanes occupy only {lanes} of {threads} threads; set more lanes (their number is part of the result)"),
        );
    }
    if machine::huge_pages() == Some(machine::HugePages::Never) {
        findings.warning(
            "machine",
            "huge pages are off, which makes large tables about half as fast; \
             run `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`",
        );
    }
    // Row groups are read at the same time, and all parts of tables are mapped at once when a table
    // is loaded.
    let parts: u64 = tables.iter().map(|t| t.rows_high.div_ceil(1 << 20)).sum();
    let files = 64 + parts + train.map_or(0, |t| t.paths().len().min(64) as u64);
    if let Some(limit) = machine::file_limit().filter(|limit| limit.soft < files) {
        findings.warning(
            "machine",
            format!(
                "about {files} files will be open at once, and the limit is {}; run `ulimit -n {}`",
                limit.soft,
                2 * files
            ),
        );
    }
    check_disk(job, tables, findings);
    let run = RunDir::new(job.output());
    if run.steps().is_ok_and(|steps| !steps.is_empty()) {
        findings.note(
            "run.output",
            format!(
                "already holds checkpoints; resume that run, replace it (`overwrite`), or choose another \
                 folder: {}",
                run.path().display()
            ),
        );
    }
}

/// Checks that the device of the run has the precision of the job, and that a GPU trains the job.
fn check_precision(job: &Job, findings: &mut Findings) {
    let (precision, device) = (job.train.precision, job.run.device);
    if precision == Precision::F32 {
        return;
    }
    let problem = |reason: &str| precision.problem_on_processors(Instructions::detect(), reason);
    let (problem, is_error) = match (device, job.problem_on_gpu()) {
        (DeviceChoice::Cpu, _) => (problem("`run.device` is \"cpu\""), true),
        (_, Some(refused)) => (problem(&format!("none trains this job: {refused}")), true),
        (DeviceChoice::Auto | DeviceChoice::Cuda(_), None) if machine::gpus().is_none() => {
            (problem("this machine has no NVIDIA driver"), false)
        }
        _ => (None, false),
    };
    match problem {
        Some(problem) if is_error => findings.error("train.precision", problem),
        Some(problem) => findings.warning("train.precision", problem),
        None => {}
    }
}

fn check_disk(job: &Job, tables: &[TableCheck], findings: &mut Findings) {
    let checkpoint: u64 = tables.iter().map(|t| t.checkpoint_bytes).sum();
    // The disk holds the checkpoints that are kept, the best checkpoint, and the checkpoint that is
    // being written. The parents of the oldest checkpoint hold changes, which may be every row.
    let count = job.train.keep.get() as u64 + 1 + job.train.full_every.get() as u64;
    let all = checkpoint * count;
    let output = job.output();
    if let Some(free) = free_disk(output.as_path()).filter(|&free| free < all) {
        findings.stop(
            "run.output",
            format!(
                "{count} checkpoints of {} MiB will not fit into the {} MiB of free disk at {}; lower \
                 `train.keep`, or choose a folder on another disk",
                checkpoint >> 20,
                free >> 20,
                output.display()
            ),
        );
    }
    let spilled: u64 = tables.iter().map(|t| t.spill_bytes).sum();
    let folder = job.spill_folder();
    if let Some(free) = free_disk(&folder).filter(|&free| free < spilled) {
        findings.stop(
            "run.spill_folder",
            format!(
                "rows on disk may take {} MiB, but {} has only {} MiB free; choose a folder on another disk",
                spilled >> 20,
                folder.display(),
                free >> 20
            ),
        );
    }
}

/// Returns the free space in bytes on the disk of a folder, which may not exist yet. Returns `None`
/// if the system does not tell it.
fn free_disk(folder: &Path) -> Option<u64> {
    // The last ancestor of a relative path is empty, and an empty path does not exist.
    machine::free_disk(folder.ancestors().find(|p| p.exists()).unwrap_or(Path::new(".")))
}
