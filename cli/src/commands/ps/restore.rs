//! `zillion ps restore`: sets a run back to a checkpoint.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::json;
use zillion_console::exit::refuse;
use zillion_console::print_result;
use zillion_ps::admin::proto::StatusResponse;

use super::access::{Access, find_servers, seconds};
use crate::args::PsRestoreArgs;

/// The time between two looks whether the run goes on.
const LOOK: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &PsRestoreArgs) -> Result<()> {
    let until = Instant::now() + seconds("--wait", args.wait)?;
    let servers = find_servers(&args.servers, &args.etcd)?;
    let mut client = Access::open(&args.access)?.connect_any(&servers)?;
    let status = client.status()?;
    let target = check(args, &status)?;
    eprintln!("{}", describe(args, &status, target));
    if !args.yes {
        return refuse("nothing was done; give --yes to set the run back");
    }
    let reached = client.restore(args.step)?;
    let generation = loop {
        let status = client.status()?;
        if status.generation > reached.generation && status.is_open {
            break status.generation;
        }
        if Instant::now() >= until {
            bail!(
                "generation {} of the run `{}` has ended, but its trainers have not begun the next \
                 one within {} s; look at the log of trainer 0",
                reached.generation,
                reached.run,
                args.wait
            );
        }
        thread::sleep(LOOK);
    };
    let answer = json!({
        "run": reached.run,
        "reached_step": reached.step,
        "checkpoint": target,
        "generation": generation,
    });
    print_result(args.json, &answer, show)
}

/// Returns the step of the checkpoint to which the run goes back, or `None` if it begins anew.
fn check(args: &PsRestoreArgs, status: &StatusResponse) -> Result<Option<u64>> {
    if !status.is_open {
        bail!("no run is open on the server; start the trainers of a run");
    }
    let Some(step) = args.step else { return Ok(status.checkpoints.last().copied()) };
    if status.checkpoints.contains(&step) {
        return Ok(Some(step));
    }
    let kept: Vec<String> = status.checkpoints.iter().map(u64::to_string).collect();
    let kept = if kept.is_empty() { "none".to_owned() } else { kept.join(", ") };
    bail!(
        "the run `{}` has no checkpoint of step {step} (it has: {kept}); name one of them with \
         --step",
        status.run
    )
}

/// Describes what will be repeated and removed.
fn describe(args: &PsRestoreArgs, status: &StatusResponse, target: Option<u64>) -> String {
    let (run, step) = (&status.run, status.step);
    let Some(target) = target else {
        return format!(
            "the run {run} is at step {step} and has no checkpoint: it begins anew, and repeats \
             all steps"
        );
    };
    let repeated = step.saturating_sub(target);
    let mut text = format!(
        "the run {run} is at step {step}: it goes back to the checkpoint of step {target}, and \
         repeats {repeated} steps"
    );
    let later: Vec<String> =
        status.checkpoints.iter().filter(|&&at| at > target).map(u64::to_string).collect();
    if args.step.is_some() && !later.is_empty() {
        text += &format!("; the checkpoints of later steps are removed: {}", later.join(", "));
    }
    text
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn show(answer: &serde_json::Value) {
    let run = answer["run"].as_str().unwrap_or_default();
    println!("the run {run} goes on in generation {}", answer["generation"]);
}
