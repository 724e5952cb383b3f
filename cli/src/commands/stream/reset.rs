//! `zillion stream reset`: sets the streams of a stopped run to other messages.

use anyhow::Result;
use serde::Serialize;
use zillion_console::exit::refuse;
use zillion_console::{durable_files, job_file, open_registry, print_json_if};
use zillion_registry::{Model, VersionId};
use zillion_stream::Place;
use zillion_trainer::{Job, ResetPlan, plan_reset, reset_streams};

use super::find_streams;
use crate::args::StreamResetArgs;
use crate::text::grouped;

/// The outcome of the command, printed for scripts.
#[derive(Serialize)]
struct Outcome {
    #[serde(flatten)]
    plan: ResetPlan,
    /// The oldest and the newest version that contain messages which are read again.
    versions: Option<(VersionId, VersionId)>,
    /// Whether the streams were reset.
    is_done: bool,
}

pub(super) fn run(args: &StreamResetArgs) -> Result<()> {
    let job = job_file::load_job(&args.job.job, &args.job.set)?;
    find_streams(&job.output())?;
    let place = match args.to {
        Some(time) => Place::Time(i64::try_from(time.0).unwrap_or(i64::MAX)),
        None if args.to_start => Place::Start,
        None => Place::End,
    };
    let files = durable_files()?;
    let plan = plan_reset(&job, &files, place)?;
    let versions = match plan.first_step {
        Some(step) => find_versions(&job, step)?,
        None => None,
    };
    print_plan(&job, &plan, versions);
    let mut outcome = Outcome { plan, versions, is_done: false };
    if outcome.plan.partitions.is_empty() && outcome.plan.forgotten.is_none() {
        eprintln!("nothing was changed: all partitions are there already");
        return print_json_if(args.json, &outcome);
    }
    if args.dry_run {
        eprintln!("nothing was changed (--dry-run)");
        return print_json_if(args.json, &outcome);
    }
    if !args.yes {
        print_json_if(args.json, &outcome)?;
        return refuse("nothing was changed; repeat the command with --yes to reset the streams");
    }
    reset_streams(&job, &files, &outcome.plan)?;
    outcome.is_done = true;
    eprintln!("the streams were reset; `zillion online` goes on there");
    print_json_if(args.json, &outcome)
}

/// Returns the oldest and the newest version of the run with more than `step` steps.
fn find_versions(job: &Job, step: u64) -> Result<Option<(VersionId, VersionId)>> {
    let Some(publish) = &job.publish else { return Ok(None) };
    let name = publish.model.as_deref().unwrap_or(&job.name);
    let model: Model = open_registry(&publish.registry)?.model(name)?;
    let (mut found, mut end, mut run) = (None, None, None);
    loop {
        let page = model.page(end, 100)?;
        for &version in &page {
            let origin = model.version(version)?.origin;
            let run = run.get_or_insert_with(|| origin.run.clone());
            if *run != origin.run || origin.step <= step {
                return Ok(found);
            }
            let newest = found.map_or(version, |(_, newest)| newest);
            found = Some((version, newest));
        }
        end = page.last().copied();
        if page.is_empty() {
            return Ok(found);
        }
    }
}

fn print_plan(job: &Job, plan: &ResetPlan, versions: Option<(VersionId, VersionId)>) {
    eprintln!("a reset of the streams of {} means:", job.output().display());
    for reset in &plan.partitions {
        let fate = if reset.is_again() { "are read again" } else { "are left out for ever" };
        eprintln!(
            "  {}, partition {}: from offset {} to {}; {} messages {fate}",
            reset.stream,
            reset.partition,
            reset.from,
            reset.to,
            grouped(reset.messages)
        );
    }
    if let Some(forgotten) = &plan.forgotten {
        eprintln!(
            "  the run cannot repeat what it did after its newest checkpoint, because {}: it forgets \
             {} batches of {} rows, which versions may have",
            forgotten.missing,
            grouped(forgotten.batches),
            grouped(forgotten.rows)
        );
    }
    if plan.partitions.iter().any(zillion_trainer::PartitionReset::is_again) {
        let batches = match plan.first_batch {
            Some(first) => format!("batch {} and later ones contain some of them", grouped(first)),
            None => "the log does not say which batches contain them".to_owned(),
        };
        eprintln!("  rows that are read again count twice in the model: {batches}");
        if let Some((first, last)) = versions {
            eprintln!("  versions {first} to {last} contain some of them, and stay as they are");
        }
        eprintln!(
            "  events before the present watermark are in no window of the validation, so that the \
             gate judges by the anchor alone until the run has caught up"
        );
    }
}
