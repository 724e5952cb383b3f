//! `zillion model rewind`: takes an online run back to a version.
//!
//! Versions that came later go into quarantine, and the batches that they have learned from are
//! left out from now on. The consequences are printed before anything changes.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use serde::Serialize;
use zillion_console::exit::refuse;
use zillion_console::{durable_files, job_file, open_registry, print_json_if};
use zillion_registry::{Model, VersionId};
use zillion_trainer::{
    REWIND_FILE, RewindPlan, RewindRequest, has_rewound, plan_rewind, quarantine_versions,
    request_rewind, rewind_stopped, stream_folder, versions_after,
};

use crate::args::RewindArgs;
use crate::moment::Moment;
use crate::registry::current_user;
use crate::text::grouped;

/// The longest wait for a live run to act.
const PATIENCE: Duration = Duration::from_secs(120);

/// The outcome of the command, printed for scripts.
#[derive(Serialize)]
struct Outcome {
    version: VersionId,
    /// The versions that go into quarantine.
    quarantined: Vec<VersionId>,
    #[serde(flatten)]
    plan: RewindPlan,
    /// Whether the run was rewound.
    is_done: bool,
}

pub(super) fn run(args: &RewindArgs) -> Result<()> {
    let job = job_file::load_job(&args.job.job, &args.job.set)?;
    let Some(publish) = &job.publish else {
        return refuse("the job publishes no versions to go back to; add `[publish]`");
    };
    let folder = job.output();
    if !stream_folder(&folder).is_dir() {
        return refuse(format!(
            "`{}` is not the folder of a run with streams; name the job of a run that `zillion \
             online` has started",
            folder.display()
        ));
    }
    let name = publish.model.as_deref().unwrap_or(&job.name);
    let model = open_registry(&publish.registry)?.model(name)?;
    let version = match (args.to_version, args.to_time) {
        (Some(version), _) => version,
        (None, Some(time)) => find_version(&model, time)?,
        (None, None) => bail!("no version is given; give --to-version or --to-time"),
    };
    let manifest = model.version(version)?;
    if let Some(root) = model.quarantined()?.find(&model, version)? {
        return refuse(format!(
            "version {version} is in quarantine because of version {root}; go back to an earlier \
             version, or lift the quarantine"
        ));
    }
    let plan = plan_rewind(&job, manifest.origin.step)?;
    let quarantined = versions_after(&model, version)?;
    print_plan(&model, &folder.to_string_lossy(), version, &quarantined, &plan)?;
    let mut outcome = Outcome { version, quarantined, plan, is_done: false };
    if args.dry_run {
        eprintln!("nothing was changed (--dry-run)");
        return print_json_if(args.json, &outcome);
    }
    if !args.yes {
        print_json_if(args.json, &outcome)?;
        return refuse("nothing was changed; repeat the command with --yes to rewind the run");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64;
    let user = current_user();
    let request = RewindRequest {
        version: version.0,
        from: outcome.plan.from,
        // The time makes each request another one.
        reason: format!(
            "{} (rewound to version {version} by {user}, {})",
            args.reason,
            Moment(now)
        ),
    };
    let files = durable_files()?;
    if outcome.plan.is_live {
        request_rewind(&folder, &files, &request)?;
        wait_for_run(&folder)?;
        if !has_rewound(&folder, &request)? {
            return refuse(
                "the run has not followed the request, because it cannot go back so far any more; \
                 its log says why, and a repetition of the command does too",
            );
        }
    } else {
        quarantine_versions(&model, &outcome.quarantined, &user, &request.reason)?;
        rewind_stopped(&job, &files, &request)?;
    }
    outcome.is_done = true;
    let pointer = match publish.promote.as_str() {
        "" => String::new(),
        pointer => format!("; `{pointer}` points to {}", model.pointer(pointer)?.to.version),
    };
    eprintln!("the run was rewound{pointer}");
    print_json_if(args.json, &outcome)
}

/// Returns the newest version that was published at or before a moment and is not in quarantine.
fn find_version(model: &Model, time: Moment) -> Result<VersionId> {
    let (mut end, mut quarantine) = (None, model.quarantined()?);
    loop {
        let page = model.page(end, 100)?;
        for &version in &page {
            let is_before = model.version(version)?.published_ms <= time.0;
            if is_before && quarantine.find(model, version)?.is_none() {
                return Ok(version);
            }
        }
        end = page.last().copied();
        if page.is_empty() {
            return refuse(format!(
                "no usable version was published at or before {time}; choose a later time, or see \
                 `zillion model list`"
            ));
        }
    }
}

fn print_plan(
    model: &Model,
    run: &str,
    version: VersionId,
    quarantined: &[VersionId],
    plan: &RewindPlan,
) -> Result<()> {
    let newest = |version| Ok::<_, anyhow::Error>(model.version(version)?.origin.newest_event_ms);
    let state = if plan.is_live { "live" } else { "stopped" };
    eprintln!(
        "to go back to version {version} of `{}` means for the {state} run {run}:",
        model.name()
    );
    match (quarantined.first(), quarantined.last()) {
        (Some(first), Some(last)) => eprintln!(
            "  {} versions go into quarantine, from {first} to {last}, and pointers on them go back",
            grouped(quarantined.len() as u64)
        ),
        _ => eprintln!("  no version goes into quarantine"),
    }
    let until = match quarantined.last() {
        Some(&last) => newest(last)?,
        None => None,
    };
    let events = match (newest(version)?, until) {
        (Some(from), Some(until)) => {
            format!(", with events from about {} to {}", Moment(from), Moment(until))
        }
        _ => String::new(),
    };
    eprintln!(
        "  batches {} to {} are left out for ever: {} batches of {} rows{events}",
        grouped(plan.from),
        grouped(plan.last),
        grouped(plan.batches),
        grouped(plan.rows)
    );
    let begin = match plan.checkpoint_batches {
        0 => "its beginning".to_owned(),
        batches => format!("the checkpoint after batch {}", grouped(batches)),
    };
    eprintln!(
        "  the run goes on from {begin}, and repeats {} batches; later checkpoints are removed",
        grouped(plan.repeated)
    );
    Ok(())
}

/// Waits until a live run has acted on the request.
fn wait_for_run(folder: &std::path::Path) -> Result<()> {
    let (path, began) = (stream_folder(folder).join(REWIND_FILE), Instant::now());
    while path.exists() {
        if began.elapsed() > PATIENCE {
            bail!(
                "the run has not acted for {} seconds; it acts on `{}` when it reads its streams \
                 again, unless the file is removed",
                PATIENCE.as_secs(),
                path.display()
            );
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
