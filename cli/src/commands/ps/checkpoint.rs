//! `zillion ps checkpoint`: asks a run for a checkpoint, and waits for it.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::json;
use zillion_console::print_result;

use super::access::{Access, find_servers, seconds};
use crate::args::PsCheckpointArgs;

/// The time between two looks whether the checkpoint is complete.
const LOOK: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &PsCheckpointArgs) -> Result<()> {
    let until = Instant::now() + seconds("--wait", args.wait)?;
    let servers = find_servers(&args.servers, &args.etcd)?;
    let mut client = Access::open(&args.access)?.connect_any(&servers)?;
    let requested = client.checkpoint()?;
    let run = &requested.run;
    let step = loop {
        let status = client.status()?;
        if status.boot != requested.boot {
            bail!("server {} was started again; ask for the checkpoint again", client.server());
        }
        if status.checkpoint_served >= requested.request
            && status.run == *run
            && let Some(step) = status.checkpoints.last()
        {
            break *step;
        }
        if status.run != *run {
            bail!("the server now serves the run `{}`, and not `{run}`", status.run);
        }
        if !status.is_open && status.checkpoint_served < requested.request {
            bail!(
                "the run `{run}` has ended before it wrote the checkpoint, because {}; start what \
                 is missing, which `zillion ps status` shows, and ask again",
                status.ended
            );
        }
        if Instant::now() >= until {
            bail!(
                "the run `{run}` has not written a checkpoint within {} s; it still will at the \
                 end of its present step, so give more time (--wait)",
                args.wait
            );
        }
        thread::sleep(LOOK);
    };
    print_result(args.json, &json!({ "run": run, "step": step }), show)
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn show(answer: &serde_json::Value) {
    let run = answer["run"].as_str().unwrap_or_default();
    println!("checkpoint of step {} of the run {run}", answer["step"]);
}
