//! `zillion stream`: shows and controls the streams of a resident run.

mod dead;
mod replay;
mod reset;
mod status;
mod tail;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use zillion_console::{durable_files, print_result};
use zillion_trainer::{PAUSED, stream_folder};

use crate::args::{StreamCommand, StreamRunArgs};

pub(crate) fn run(command: &StreamCommand) -> Result<()> {
    match command {
        StreamCommand::Status(args) => status::run(args),
        StreamCommand::Tail(args) => tail::run(args),
        StreamCommand::Dead(args) => dead::run(args),
        StreamCommand::Replay(args) => replay::run(args),
        StreamCommand::Reset(args) => reset::run(args),
        StreamCommand::Pause(args) => set_paused(args, true),
        StreamCommand::Resume(args) => set_paused(args, false),
    }
}

/// Returns the folder of the streams of a run.
fn find_streams(run: &Path) -> Result<PathBuf> {
    let folder = stream_folder(run);
    if !folder.is_dir() {
        bail!(
            "`{}` is not the folder of a run with streams; name the folder `run.output` of a job \
             that `zillion online` follows",
            run.display()
        );
    }
    Ok(folder)
}

/// Pauses a run or lets it go on. A run looks for the file several times a second.
fn set_paused(args: &StreamRunArgs, is_paused: bool) -> Result<()> {
    let path = find_streams(&args.run)?.join(PAUSED);
    let was_paused = path.exists();
    let files = durable_files()?;
    if is_paused && !was_paused {
        files.write_bytes(&path, b"")?;
    } else if !is_paused && was_paused {
        files.remove_file(&path)?;
    }
    let outcome = serde_json::json!({ "is_paused": is_paused, "was_paused": was_paused });
    print_result(args.json, &outcome, |_| {
        let now = if is_paused { "paused" } else { "not paused" };
        let before = if is_paused == was_paused { " (as before)" } else { "" };
        eprintln!("the run is {now}{before}");
    })
}
