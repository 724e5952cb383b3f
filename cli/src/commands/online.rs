//! `zillion online`: follows the streams of a job, and trains on them until it is stopped.

use anyhow::Result;
use zillion_console::progress::Progress;
use zillion_console::{compute_pool, durable_files, job_file, print_json_if, signals};
use zillion_trainer::{OnlineReport, TrainOptions, TrainerPlace};

use super::train::{device_setting, open_trail, print_config, serve_metrics};
use crate::args::OnlineArgs;
use crate::operator::{check_key_path, sign_key_of_environment};
use crate::watch::{Choice, Watch};

pub(crate) fn run(args: &OnlineArgs) -> Result<()> {
    let mut sets = args.job.set.clone();
    sets.extend(args.device.as_deref().map(device_setting));
    let mut job = job_file::load_job(&args.job.job, &sets)?;
    if let Some(publish) = &mut job.publish {
        publish.sign = publish.sign.take().or_else(sign_key_of_environment);
        check_key_path(publish.sign.as_deref())?;
    }
    if args.print_config {
        return print_config(&job);
    }
    let address = args.metrics.as_ref().or(job.run.metrics.as_ref());
    let served = address.map(|address| serve_metrics(address, &job)).transpose()?;
    // When the command ends, the listener is dropped, which stops it.
    let (_listener, metrics) = served.unzip();
    let options = TrainOptions {
        resume: true,
        overwrite: false,
        from: args.from.clone(),
        workers: compute_pool(job.run.threads)?,
        files: durable_files()?,
        stop: signals::stop_flag()?,
        profile: None,
        in_memory: false,
        trainer: TrainerPlace::ALONE,
    };
    let trail = open_trail(args.audit_log.as_deref(), &job)?;
    let mut watch = Watch {
        trail,
        progress: Progress::new(),
        metrics,
        nodes: Vec::new(),
        rows: Choice::First(1),
        every: 1,
        stepper: None,
        folder: None,
        stop: options.stop.clone(),
    };
    let report = zillion_trainer::train_online(job, options, &mut watch)?;
    print_summary(&report);
    print_json_if(args.json, &report)
}

fn print_summary(report: &OnlineReport) {
    eprintln!(
        "{} batches  {} rows  {} messages  {} rejected",
        report.batches, report.rows, report.messages, report.rejected
    );
    if let Some(version) = report.published {
        eprintln!("last version {version}");
    }
    eprintln!("log of decisions {}", report.folder.join("log").display());
}
