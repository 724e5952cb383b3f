//! `zillion table plan`: forecasts the rows, bytes and hit rates of a job's tables under different
//! settings, from one pass over data.

mod advice;
mod plot;
mod text;

use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;
use zillion_console::exit::usage_error;
use zillion_console::{compute_pool, durable_files, job_file, print_result};
use zillion_embedding::capacity::{AdmissionPoint, CachePoint, EvictionPoint};
use zillion_rows::{Admission, Eviction, TableSpec};
use zillion_trainer::{Job, PlanOptions, PlanReport, TablePlan, plan_tables};

use crate::args::TablePlanArgs;
use crate::bar::Bar;
use crate::raw_files::estimate_rows;
use crate::text::grouped;
use zillion_console::svg;

/// A table of the job, with its forecast and functions that compute its bytes under different
/// settings.
struct Planned<'a> {
    spec: &'a TableSpec,
    plan: &'a TablePlan,
    shards: usize,
}

impl Planned<'_> {
    /// Returns the bytes of `rows` rows with the settings of the job.
    fn bytes(&self, rows: u64) -> u64 {
        self.spec.memory(rows, self.shards)
    }

    /// Returns the bytes under an admission rule. They consist of the bytes of rows and the bytes
    /// of candidates' counts. Candidates are keys without a row.
    fn admitted_bytes(&self, point: &AdmissionPoint) -> u64 {
        let waiting = self.plan.usage.keys.saturating_sub(point.rows);
        let counting = TableSpec {
            admission: Admission::Count { at_least: point.at_least },
            ..self.spec.clone()
        };
        let counts = if point.at_least > 1 { counting.candidate_memory(waiting) } else { 0 };
        self.bytes(point.rows) + counts
    }

    /// Returns the number of occurrences at which the job admits a key. For admission by chance,
    /// this is the average number.
    fn own_threshold(&self) -> u32 {
        match self.spec.admission {
            Admission::All => 1,
            Admission::Count { at_least } | Admission::Bloom { at_least, .. } => at_least,
            // A key gets its row at its 1/p-th occurrence on average.
            Admission::Probability { p } => (1.0 / p).round() as u32,
        }
    }

    /// Returns the number of steps without a push after which the job evicts a row. Returns `None`
    /// if the job sets no such limit.
    fn own_limit(&self) -> Option<u64> {
        match self.spec.eviction {
            Eviction::Unseen { steps } => Some(steps),
            _ => None,
        }
    }
}

#[derive(Serialize)]
struct Outcome<'a> {
    job: &'a str,
    sample: Vec<PathBuf>,
    rows: u64,
    rejected_rows: u64,
    batch_size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_rows: Option<u64>,
    tables: Vec<TableOutcome<'a>>,
    /// The names of the tables whose rows belong to buckets of numbers.
    buckets: &'a [String],
}

#[derive(Serialize)]
struct TableOutcome<'a> {
    #[serde(flatten)]
    plan: &'a TablePlan,
    bytes: u64,
    bytes_per_row: u64,
    /// The bytes of the table at each point of `admission`.
    admission_bytes: Vec<u64>,
    /// The largest number of bytes of the table at each point of `eviction`.
    eviction_bytes: Vec<u64>,
    cache_bytes: Vec<u64>,
    advice: Vec<String>,
}

pub(crate) fn run(args: &TablePlanArgs) -> Result<()> {
    let job = job_file::load_job(&args.job.job, &args.job.set)?;
    // Files that are named on the command line are relative to the current folder, not to the job's
    // `data.root`.
    let (sample, known) = match args.sample.is_empty() {
        true if job.data.train.is_empty() => {
            return usage_error("the job names no training files; give some with --sample DATA");
        }
        true => (job.data.files(&job.data.train)?, None),
        false => (args.sample.clone(), estimate_rows(&job.data, &args.sample)),
    };
    let workers = compute_pool(job.run.threads)?;
    let mut bar = Bar::new("planning", args.rows.or(known).unwrap_or(0), "rows");
    let options = PlanOptions { rows: args.rows, keys: args.keys as usize };
    let report = plan_tables(&job, &sample, options, &workers, &mut |rows| bar.update(rows))?;
    drop(bar);
    let planned = pair_with_specs(&job, &report);
    if let Some(path) = &args.svg {
        let svg = svg::page(&title(&job, &report), &plot::rows(&planned));
        durable_files()?.write_bytes(path, svg.as_bytes())?;
    }
    let outcome = outcome(&job, sample, &report, &planned);
    print_result(args.json, &outcome, |_| text::show(&title(&job, &report), &report, &planned))
}

fn title(job: &Job, report: &PlanReport) -> String {
    format!("{}: tables after {} rows", job.name, grouped(report.rows))
}

fn pair_with_specs<'a>(job: &'a Job, report: &'a PlanReport) -> Vec<Planned<'a>> {
    let shards = job.run.shards.get();
    let with_spec = report.tables.iter().filter_map(|plan| {
        let spec = job.tables.iter().find(|spec| spec.name == plan.table)?;
        Some(Planned { spec, plan, shards })
    });
    with_spec.collect()
}

fn outcome<'a>(
    job: &'a Job,
    sample: Vec<PathBuf>,
    report: &'a PlanReport,
    planned: &[Planned<'a>],
) -> Outcome<'a> {
    let table = |p: &Planned<'a>| {
        let usage = &p.plan.usage;
        let peak = |point: &EvictionPoint| p.bytes(point.rows_peak);
        let held = |point: &CachePoint| p.bytes(point.rows);
        TableOutcome {
            plan: p.plan,
            bytes: p.bytes(usage.keys),
            bytes_per_row: p.spec.bytes_per_row(),
            admission_bytes: usage.admission.iter().map(|x| p.admitted_bytes(x)).collect(),
            eviction_bytes: usage.eviction.iter().map(peak).collect(),
            cache_bytes: usage.cache.iter().map(held).collect(),
            advice: advice::advise(p),
        }
    };
    Outcome {
        job: &job.name,
        sample,
        rows: report.rows,
        rejected_rows: report.rejected,
        batch_size: report.batch_size,
        data_rows: report.data_rows,
        tables: planned.iter().map(table).collect(),
        buckets: &report.buckets,
    }
}
