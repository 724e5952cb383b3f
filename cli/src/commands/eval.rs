//! `zillion eval`: scores labelled rows with a checkpoint and reports the metrics.

use anyhow::Result;
use zillion_console::exit::usage_error;
use zillion_console::{compute_pool, data_settings, job_file, print_json_if};
use zillion_reader::Dataset;
use zillion_trainer::{Loaded, TaskReport};

use crate::args::EvalArgs;
use crate::device::chosen_gpu;
use crate::registry::print_store_retries;
use crate::report;

pub(crate) fn run(args: &EvalArgs) -> Result<()> {
    let mut loaded = Loaded::open(&args.checkpoint, compute_pool(args.threads)?)?;
    if let Some(path) = &args.job {
        loaded.checkpoint().check_job(&job_file::load_job(path, &args.set)?)?;
    }
    loaded.set_dense(args.dense);
    if let Some(device) = chosen_gpu(&args.device, args.dense)? {
        loaded.set_device(device)?;
    }
    let data = data_settings::of_checkpoint(&loaded.job, &args.set)?;
    let Some(files) = data_settings::files_to_score(&data, &args.data)? else {
        return usage_error("the checkpoint's job names no test files; give some with --data FILE");
    };
    let dataset = Dataset::open(&data, &files, &loaded.job.schema)?
        .with_statistics(loaded.statistics().clone());
    let report = loaded.evaluate(&dataset);
    report::write_rejects(&data, &dataset)?;
    let report = report?;
    if report.logloss.is_none() && report.candidates > 0 {
        eprintln!("rows {}", report.rows);
    } else {
        eprintln!(
            "{}  rows {}  positives {}",
            report::format_figures(&TaskReport { gauc: None, ..report.first_task() }),
            report.rows,
            report.positives
        );
    }
    if let Some(gauc) = report.gauc {
        eprintln!("gauc {gauc:.6}");
    }
    report::print_tasks(&report);
    report::print_segments(&report);
    report::print_ranking(&report);
    report::print_unseen("scored", &report.unseen, report.missing_keys);
    report::print_rejected_rows("scored", report.rejected_rows);
    report::print_missing_side_rows("scored", &report.missing_side_rows);
    print_store_retries(&data.stores.sums());
    print_json_if(args.json, &report)
}
