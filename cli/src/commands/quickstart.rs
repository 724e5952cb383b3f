//! `zillion quickstart`: runs the whole loop, from generated data to a rollback. At the end, prints
//! the commands with which a user can run the steps by hand.

mod job;
mod online;
mod place;
mod serve;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use zillion_console::exit::refuse;
use zillion_console::progress::Progress;
use zillion_console::{compute_pool, durable_files, job_file, print_json_if, signals};
use zillion_datatools::ClickLog;
use zillion_device::Workers;
use zillion_trainer::{
    EpochReport, Job, Observer, StepReport, TrainOptions, TrainReport, TrainerPlace, train,
};

use place::{Place, run_setting};
use serve::Served;

use super::data::synth::{self, Synthetic};
use crate::args::QuickstartArgs;
use crate::text::figure;

/// The outcome of the command, printed for scripts.
#[derive(Serialize)]
struct Outcome {
    data: Synthetic,
    job: PathBuf,
    test_auc: Option<f64>,
    test_logloss: Option<f64>,
    /// The value of (test AUC - 0.5) / (AUC of the true model - 0.5), or `None` if it cannot be
    /// computed.
    share_of_ceiling: Option<f64>,
    samples_per_second: Option<f64>,
    checkpoint: PathBuf,
    interrupted_at_step: u64,
    steps: u64,
    resumed_to_same_bytes: bool,
    served: Served,
    commands: Vec<String>,
    seconds: f64,
}

pub(crate) fn run(args: &QuickstartArgs) -> Result<()> {
    if args.online {
        return online::run(args);
    }
    let began = Instant::now();
    let place = Place::new(&args.output);
    if args.output.exists() {
        return refuse(format!(
            "the folder {} exists; remove it, or choose another one with --output",
            args.output.display()
        ));
    }
    let workers = compute_pool(args.threads)?;
    let stop = signals::stop_flag()?;

    eprintln!("1. a click log of {} rows, by seed {}", args.rows, args.seed);
    let data = synth::write(args.seed, args.rows, &place.data, &workers, &durable_files()?)?;
    data.print_summary();
    std::fs::write(&place.job, job::job_text(args, &place))
        .with_context(|| format!("cannot write {}", place.job.display()))?;
    eprintln!("   job file: {}", place.job.display());

    eprintln!("2. train DeepFM on {} threads", workers.threads());
    let report = sitting(
        &place,
        &[run_setting(&place.first)],
        &workers,
        &stop,
        false,
        None,
        &mut Progress::new(),
    )?;
    if report.interrupted {
        bail!("stopped by a signal: go on with\n  {}", place.resume(&place.first));
    }
    let test_auc = report.test.as_ref().and_then(|t| t.auc);
    let share = share_of_ceiling(test_auc, data.truth_auc);
    eprintln!(
        "   test auc {} of a ceiling of {}{}",
        figure(test_auc, 5),
        figure(data.truth_auc, 5),
        share.map_or_else(String::new, |s| {
            format!(": {:.0} % of the way from guessing to the truth", 100.0 * s)
        })
    );

    eprintln!("3. the same again, interrupted and resumed");
    let second = [run_setting(&place.second)];
    let own_stop = Arc::new(AtomicBool::new(false));
    let mut interrupter =
        Interrupter { after: report.steps / 3, stop: own_stop.clone(), signal: stop.clone() };
    let cut = sitting(&place, &second, &workers, &own_stop, false, None, &mut interrupter)?;
    if stop.load(Ordering::Relaxed) {
        bail!("stopped by a signal: go on with\n  {}", place.resume(&place.second));
    }
    let whole = sitting(&place, &second, &workers, &stop, true, None, &mut Progress::new())?;
    if whole.interrupted {
        bail!("stopped by a signal: go on with\n  {}", place.resume(&place.second));
    }
    let same = same_bytes(&report.checkpoint, &whole.checkpoint)?;
    if !same {
        bail!(
            "the resumed run did not end in the same bytes, which is a defect of zillion; report \
             it with {} and {}",
            report.checkpoint.display(),
            whole.checkpoint.display()
        );
    }
    eprintln!(
        "   stopped after step {} of {}, resumed: every byte of the best checkpoint is the same",
        cut.steps, whole.steps
    );

    let log = ClickLog::new(args.seed, args.rows);
    let served = serve::run(args, &place, &log, &workers, &stop)?;

    let mut commands = place.commands();
    commands.extend(serve::commands(&place, &served));
    let outcome = Outcome {
        job: place.job.clone(),
        test_auc,
        test_logloss: report.test.as_ref().and_then(|t| t.logloss),
        share_of_ceiling: share,
        samples_per_second: report.samples_per_second,
        checkpoint: report.checkpoint.clone(),
        interrupted_at_step: cut.steps,
        steps: whole.steps,
        resumed_to_same_bytes: same,
        served,
        commands: commands.iter().map(|(_, command)| command.clone()).collect(),
        seconds: began.elapsed().as_secs_f64(),
        data,
    };
    eprintln!("done in {:.1} s; each step by hand:", outcome.seconds);
    for (what, command) in &commands {
        eprintln!("  # {what}\n  {command}");
    }
    outcome.served.print_next();
    print_json_if(args.json, &outcome)
}

/// Trains a job. Returns at the end of the job or when the run is stopped.
fn sitting(
    place: &Place,
    settings: &[String],
    workers: &Arc<Workers>,
    stop: &Arc<AtomicBool>,
    resume: bool,
    from: Option<&Path>,
    observer: &mut dyn Observer,
) -> Result<TrainReport> {
    let value = job_file::load(&place.job, std::iter::empty(), settings)?;
    let options = TrainOptions {
        resume,
        overwrite: false,
        from: from.map(Path::to_owned),
        workers: workers.clone(),
        files: durable_files()?,
        stop: stop.clone(),
        profile: None,
        in_memory: false,
        trainer: TrainerPlace::ALONE,
    };
    Ok(train(Job::from_value(value)?, options, observer)?)
}

/// An observer that stops a run early: after the step `after`, or at the end of the first epoch if
/// that is earlier. Ctrl-C also stops the run.
struct Interrupter {
    after: u64,
    stop: Arc<AtomicBool>,
    signal: Arc<AtomicBool>,
}

impl Observer for Interrupter {
    fn step(&mut self, report: &StepReport) {
        if report.step >= self.after || self.signal.load(Ordering::Relaxed) {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    fn epoch(&mut self, _: &EpochReport) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Returns the share of the best possible gain in AUC that training has reached. A gain is the
/// difference of an AUC and 0.5, and the best possible gain is that of the true model. Returns
/// `None` if an AUC is absent, or if the AUC of the true model is not above 0.5.
fn share_of_ceiling(auc: Option<f64>, truth: Option<f64>) -> Option<f64> {
    let (auc, truth) = (auc?, truth?);
    (truth > 0.5).then(|| (auc - 0.5) / (truth - 0.5))
}

/// Returns whether two folders have the same file names, and the files have the same bytes.
fn same_bytes(a: &Path, b: &Path) -> Result<bool> {
    let list = |folder: &Path| -> Result<BTreeMap<OsString, PathBuf>> {
        let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
        let entries = entries.map(|entry| entry.map(|e| (e.file_name(), e.path())));
        Ok(entries.collect::<std::io::Result<_>>()?)
    };
    let (first, second) = (list(a)?, list(b)?);
    if !first.keys().eq(second.keys()) {
        return Ok(false);
    }
    for (a, b) in first.values().zip(second.values()) {
        let is_same = match (a.is_dir(), b.is_dir()) {
            (true, true) => same_bytes(a, b)?,
            (false, false) => std::fs::read(a)? == std::fs::read(b)?,
            _ => false,
        };
        if !is_same {
            return Ok(false);
        }
    }
    Ok(true)
}
