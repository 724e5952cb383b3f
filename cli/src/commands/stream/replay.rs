//! `zillion stream replay`: repeats the log of a run in another folder.

use std::path::Path;

use anyhow::{Result, bail};
use zillion_console::progress::Progress;
use zillion_console::{compute_pool, durable_files, job_file, print_json_if, signals};
use zillion_trainer::{
    TrainOptions, TrainerPlace, check_replay_target, replay_online, schema_folder, stream_folder,
};

use super::find_streams;
use crate::args::StreamReplayArgs;
use crate::watch::{Choice, Watch};

pub(super) fn run(args: &StreamReplayArgs) -> Result<()> {
    let job = job_file::load_job(&args.job.job, &args.job.set)?;
    let log = find_streams(&args.of)?.join("log");
    let target = stream_folder(&job.output()).join("log");
    if target.exists() {
        bail!("`{}` has a log already; choose another folder (`run.output`)", target.display());
    }
    let files = durable_files()?;
    check_replay_target(&job, &files)?;
    files.create_dir(&target)?;
    for entry in std::fs::read_dir(&log)? {
        let name = entry?.file_name();
        if name.to_string_lossy().ends_with(".log") {
            std::fs::copy(log.join(&name), target.join(&name))?;
        }
    }
    copy_schemas(&schema_folder(&args.of), &schema_folder(&job.output()))?;
    let options = TrainOptions {
        resume: true,
        overwrite: false,
        from: None,
        workers: compute_pool(job.run.threads)?,
        files,
        stop: signals::stop_flag()?,
        profile: None,
        in_memory: false,
        trainer: TrainerPlace::ALONE,
    };
    let mut watch = Watch {
        trail: None,
        progress: Progress::new(),
        metrics: None,
        nodes: Vec::new(),
        rows: Choice::First(1),
        every: 1,
        stepper: None,
        folder: None,
        stop: options.stop.clone(),
    };
    let report = replay_online(job, options, &mut watch)?;
    eprintln!("{} batches of {} rows repeated", report.batches, report.rows);
    print_json_if(args.json, &report)
}

/// Copies the schemas that the log names, if there are any, so that no registry is asked.
fn copy_schemas(from: &Path, to: &Path) -> Result<()> {
    if !from.exists() {
        return Ok(());
    }
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let name = entry?.file_name();
        std::fs::copy(from.join(&name), to.join(&name))?;
    }
    Ok(())
}
