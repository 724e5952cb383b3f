//! `zillion train`: trains a job.

mod progressive;

use std::path::Path;

use anyhow::Result;
use serde::Serialize;
use zillion_console::progress::Progress;
use zillion_console::{compute_pool, durable_files, job_file, print_json_if, profile, signals};
use zillion_trainer::profile::Summary;
use zillion_trainer::{GpuFigures, Job, StageSeconds, TaskReport, TrainOptions, TrainReport};

use crate::args::TrainArgs;
use crate::metrics;
use crate::metrics::{Listener, StreamMetrics, StreamParts, TrainerMetrics};
use crate::operator::{Trail, check_key_path, sign_key_of_environment};
use crate::registry::print_store_retries;
use crate::report;
use crate::text::figure;
use crate::watch::{Choice, Stepper, Watch};

/// The default number of rows of a batch whose values are printed.
const FETCHED_ROWS: u64 = 5;

pub(crate) fn run(args: &TrainArgs) -> Result<()> {
    let mut job = job_file::load_job(&args.job.job, &settings(args))?;
    if let Some(publish) = &mut job.publish {
        publish.sign = publish.sign.take().or_else(sign_key_of_environment);
        check_key_path(publish.sign.as_deref())?;
    }
    if args.print_config {
        return print_config(&job);
    }
    if let Some(span) = args.progressive {
        return progressive::run(args, job, span);
    }
    let address = args.metrics.as_ref().or(job.run.metrics.as_ref());
    let served = address.map(|address| serve_metrics(address, &job)).transpose()?;
    // When the command ends, the listener is dropped, which stops it.
    let (_listener, metrics) = served.unzip();
    let options = TrainOptions {
        resume: args.resume,
        overwrite: args.overwrite,
        from: args.from.clone(),
        workers: compute_pool(job.run.threads)?,
        files: durable_files()?,
        stop: signals::stop_flag()?,
        profile: profile::options(&args.profile)?,
        in_memory: false,
        trainer: args.trainer,
    };
    let fetch = &args.fetch;
    let trail = open_trail(args.audit_log.as_deref(), &job)?;
    let mut watch = Watch {
        trail,
        progress: Progress::new(),
        metrics,
        nodes: fetch.fetch.clone(),
        rows: Choice::new(&fetch.fetch_rows, args.rows, Choice::First(FETCHED_ROWS)),
        every: args.fetch_every,
        stepper: args.step.then(Stepper::default),
        folder: options.trainer.is_first().then(|| job.output()),
        stop: options.stop.clone(),
    };
    let stores = job.data.stores.clone();
    let report = zillion_trainer::train(job, options, &mut watch)?;
    print_summary(&report);
    print_store_retries(&stores.sums());
    let profile = profile::report(&args.profile, &report)?;
    let test = report.test.as_ref();
    let outcome = Outcome {
        test_auc: test.and_then(|t| t.auc),
        test_logloss: test.and_then(|t| t.logloss),
        calibration: test.and_then(|t| t.calibration),
        profile,
        report: &report,
    };
    print_json_if(args.json, &outcome)
}

/// Returns the settings of the command line, of which later ones override earlier ones.
fn settings(args: &TrainArgs) -> Vec<String> {
    let mut sets = args.job.set.clone();
    sets.extend(args.device.as_deref().map(device_setting));
    sets.extend(args.threads.map(|threads| format!("run.threads={threads}")));
    if !args.ps.is_empty() {
        sets.push(format!("ps.servers={:?}", args.ps));
    }
    if !args.ps_etcd.is_empty() {
        sets.push(format!("ps.etcd={:?}", args.ps_etcd));
    }
    sets.extend(args.ps_etcd_prefix.as_ref().map(|prefix| format!("ps.etcd_prefix={prefix:?}")));
    sets.extend(args.ps_count.map(|count| format!("ps.server_count={count}")));
    sets.extend(args.ps_store.as_ref().map(|store| format!("ps.store={store:?}")));
    for (key, file) in [
        ("token_file", &args.ps_token_file),
        ("tls_ca", &args.ps_tls_ca),
        ("tls_cert", &args.ps_tls_cert),
        ("tls_key", &args.ps_tls_key),
    ] {
        sets.extend(file.as_ref().map(|file| format!("ps.{key}={file:?}")));
    }
    sets
}

/// Returns the setting of the device that the command line names.
pub(super) fn device_setting(device: &str) -> String {
    format!("run.device={device:?}")
}

/// Serves the metrics of the run and prints the address. The address is needed because with port 0,
/// the system chooses the port.
pub(super) fn serve_metrics(address: &str, job: &Job) -> Result<(Listener, TrainerMetrics)> {
    let registry = metrics::registry("trainer")?;
    // The tasks of a label of classes are its classes.
    let first_task = match job.schema.labels.first() {
        Some(label) if label.classes.is_some() => label.name.clone(),
        _ => job.tasks().into_iter().next().map(|task| task.name).unwrap_or_default(),
    };
    let mut series = TrainerMetrics::new(&registry, &first_task)?;
    if !job.streams.is_empty() {
        let parts = StreamParts {
            has_join: job.join.is_some(),
            hold_limit: job.gate.as_ref().map(|gate| gate.hold_seconds),
        };
        series.streams = Some(StreamMetrics::new(&registry, &parts)?);
    }
    let listener = Listener::start(address, registry)?;
    eprintln!("metrics on {}", listener.url());
    Ok((listener, series))
}

/// Opens the audit log of what the job publishes, if one is named, and writes that the training
/// begins.
pub(super) fn open_trail(log: Option<&Path>, job: &Job) -> Result<Option<(Trail, String)>> {
    let (Some(path), Some(publish)) = (log, &job.publish) else { return Ok(None) };
    let trail = Trail::open(path, "publish", publish.model.as_deref().unwrap_or(&job.name))?;
    trail.write("asked", &format!("a training publishes to {}", publish.registry))?;
    Ok(Some((trail, publish.promote.clone())))
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
pub(super) fn print_config(job: &Job) -> Result<()> {
    print!("{}", job.in_force()?);
    Ok(())
}

/// The outcome of the command. The figures that scripts read most often come first.
#[derive(Serialize)]
struct Outcome<'a> {
    test_auc: Option<f64>,
    test_logloss: Option<f64>,
    calibration: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<Summary>,
    #[serde(flatten)]
    report: &'a TrainReport,
}

fn print_summary(report: &TrainReport) {
    if let Some(test) = &report.test {
        let of =
            format!("({} rows, epoch {})", test.rows, report.best_epoch.unwrap_or(report.epochs));
        if test.logloss.is_none() && test.candidates > 0 {
            eprintln!("test  {of}");
        } else {
            let first = TaskReport { gauc: None, ..test.first_task() };
            eprintln!("test  {}  {of}", report::format_figures(&first));
        }
        report::print_tasks(test);
        report::print_segments(test);
        report::print_ranking(test);
        report::print_unseen("test", &test.unseen, test.missing_keys);
        report::print_rejected_rows("test", test.rejected_rows);
        report::print_missing_side_rows("test", &test.missing_side_rows);
    }
    report::print_rejected_rows("training", report.rejected_rows);
    report::print_missing_side_rows("trained", &report.missing_side_rows);
    for table in &report.tables {
        let mut line =
            format!("table {}  {} rows  {:.1} MiB", table.name, table.rows, mib(table.bytes));
        for (count, what) in [
            (table.admitted, "keys admitted"),
            (table.candidates, "keys waiting to be admitted"),
            (table.waiting, "gradients dropped (key not admitted yet)"),
            (table.evicted, "rows evicted"),
            (table.displaced, "of these to make room"),
            (table.refused_full, "pushes refused (table full)"),
            (table.lapsed, "waiting keys forgotten"),
            (table.refused, "pushes refused (key not in the vocabulary)"),
            (table.nonfinite, "gradients dropped (not finite)"),
            (table.saturated, "weights held at the largest number of their type"),
            (table.narrow_rows, "narrow rows"),
            (table.narrow_gradients, "gradients cut to what a narrow row has"),
            (table.grown, "rows that became full"),
        ] {
            if count > 0 {
                line.push_str(&format!("  {count} {what}"));
            }
        }
        if let Some(spill) = table.spill {
            line.push_str(&format!(
                "  {} rows on disk ({:.1} MiB): {} written, {} rewritten for space, {} read, {} of these in advance",
                spill.cold_rows,
                mib(spill.disk_bytes),
                spill.spilled,
                spill.compacted,
                spill.brought_in,
                spill.ahead
            ));
        }
        eprintln!("{line}");
    }
    if let Some(stages) = format_stages(&report.seconds) {
        eprintln!("time  {stages}");
    }
    eprintln!(
        "{} steps  {} samples/s  peak memory {} MiB",
        report.steps,
        figure(report.samples_per_second, 0),
        figure(report.peak_rss_mib, 0)
    );
    if let Some(gpu) = &report.gpu {
        eprintln!("{}", format_gpu(gpu));
    }
    eprintln!("checkpoint {}", report.checkpoint.display());
    if report.rewinds > 0 {
        eprintln!(
            "set back {} times after a loss, {} steps repeated",
            report.rewinds, report.repeated_steps
        );
    }
    if report.lost_pushes > 0 {
        eprintln!("{} pushes lost with servers of the tables", report.lost_pushes);
    }
    if report.interrupted {
        eprintln!("interrupted: go on with --resume");
    }
}

/// Formats the work of a GPU.
fn format_gpu(gpu: &GpuFigures) -> String {
    let mut line = format!(
        "gpu  rows on the {}, {:.1} MiB in use, {} of {} steps waited for it, {} allocated memory",
        if gpu.has_rows { "device" } else { "host" },
        mib(gpu.bytes),
        gpu.waited_steps,
        gpu.steps,
        gpu.allocating_steps
    );
    if gpu.cache_slots > 0 {
        let hits = 100.0 * gpu.cache_found_rows as f64 / gpu.cache_wanted_rows.max(1) as f64;
        line += &format!(
            "; cache of {} rows, {hits:.1} % hits, {} rows in, {} out, {} steps waited for rows",
            gpu.cache_slots, gpu.cache_rows_in, gpu.cache_rows_out, gpu.cache_waited_steps
        );
    }
    line
}

/// Formats the time of each stage, or returns `None` if no step was trained.
fn format_stages(seconds: &StageSeconds) -> Option<String> {
    let parts = seconds.of_the_driver();
    let total: f64 = parts.iter().map(|(_, s)| s).sum();
    if total <= 0.0 {
        return None;
    }
    let shown = parts.iter().map(|(name, s)| format!("{name} {:.0} %", 100.0 * s / total));
    let decode = seconds.decode_and_plan;
    let shown = shown.collect::<Vec<_>>().join(", ");
    Some(format!("{total:.1} s: {shown} (decode and plan, beside it: {decode:.1} s)"))
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
