//! The figures of a checkpoint that the server writes beside steps, and of the recovery from it
//! after the server was stopped by SIGKILL.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::Serialize;
use zillion_device::Files;
use zillion_feature::LookupPlan;
use zillion_ps::{Checkpointing as _, TableAccess as _, TrainerPlace};
use zillion_rows::TableParts;

use super::process::ParameterServer;
use super::trainers::{Times, Trainer, Trainers};
use crate::args::BenchPsArgs;

/// The number of steps that are measured without a checkpoint.
const ALONE: usize = 20_000;

/// The figures of steps without and with a checkpoint beside them.
#[derive(Serialize)]
pub(super) struct Beside {
    checkpoint_seconds: f64,
    checkpoint_gb: f64,
    steps_during: usize,
    /// The rate of steps during the checkpoint, divided by the rate without it.
    rate_share: f64,
    pull_p9999_alone_ms: f64,
    pull_p9999_during_ms: f64,
    pull_longest_during_ms: f64,
}

/// The files of a checkpoint.
pub(super) struct Written {
    folder: PathBuf,
    store: PathBuf,
    parts: Vec<TableParts>,
}

/// The times of a recovery, in seconds from the start of the new server.
#[derive(Serialize)]
pub(super) struct Recovery {
    /// The time until the new server listened.
    listening_s: f64,
    /// The time until the trainer knew that the rows of the old server are lost.
    noticed_s: f64,
    /// The time until the rows of the checkpoint were restored.
    restored_s: f64,
    /// The time until the first step was done.
    first_step_s: f64,
}

/// Measures steps, first alone and then while the server writes a checkpoint of all rows. As in
/// training, the state of the checkpoint is asked for after each step.
pub(super) fn write(
    trainers: &mut Trainers,
    store: &Path,
    plans: &[Arc<LookupPlan>],
) -> Result<(Beside, Written)> {
    let trainer = trainers.only()?;
    let mut plans = plans.iter().cycle();
    let mut alone = Times::default();
    let began = Instant::now();
    for plan in plans.by_ref().take(ALONE) {
        trainer.step(plan, &mut alone)?;
    }
    let step_alone = began.elapsed().as_secs_f64() / ALONE as f64;
    let folder = store.join("checkpoint");
    std::fs::create_dir(&folder)?;
    let mut during = Times::default();
    let began = Instant::now();
    let ticket = trainer.client.begin_checkpoint(&folder, &Files::new())?;
    while !trainer.client.poll_checkpoint(&ticket)? {
        if let Some(plan) = plans.next() {
            trainer.step(plan, &mut during)?;
        }
    }
    let parts = trainer.client.finish_checkpoint(ticket)?;
    let checkpoint_seconds = began.elapsed().as_secs_f64();
    let bytes: u64 = parts.iter().flat_map(|table| &table.parts).map(|part| part.bytes).sum();
    let step_during = checkpoint_seconds / during.pulls.len().max(1) as f64;
    let beside = Beside {
        checkpoint_seconds,
        checkpoint_gb: bytes as f64 / 1e9,
        steps_during: during.pulls.len(),
        rate_share: step_alone / step_during,
        pull_p9999_alone_ms: at(&mut alone.pulls, 0.9999),
        pull_p9999_during_ms: at(&mut during.pulls, 0.9999),
        pull_longest_during_ms: at(&mut during.pulls, 1.0),
    };
    Ok((beside, Written { folder, store: store.to_owned(), parts }))
}

/// Stops the server by SIGKILL, starts another one at its address, and restores the checkpoint.
pub(super) fn recover(
    mut trainers: Trainers,
    mut server: ParameterServer,
    args: &BenchPsArgs,
    written: &Written,
    plan: &Arc<LookupPlan>,
) -> Result<Recovery> {
    let address = server.address().to_owned();
    server.kill()?;
    let began = Instant::now();
    let server = ParameterServer::start_at(&address, &written.store, args.threads, args.idle)?;
    let listening_s = began.elapsed().as_secs_f64();
    let lost = trainers.only()?;
    if lost.step(plan, &mut Times::default()).is_ok() {
        bail!("a step was done by a server that has no rows");
    }
    let generation = lost.client.generation();
    let noticed_s = began.elapsed().as_secs_f64();
    drop(trainers);
    let at = (server.address(), generation);
    let mut trainer =
        Trainer::open(at, server.tls(), &written.store, args.dim, TrainerPlace::ALONE)?;
    trainer.client.restore(&written.folder, &written.parts)?;
    let restored_s = began.elapsed().as_secs_f64();
    trainer.step(plan, &mut Times::default())?;
    let first_step_s = began.elapsed().as_secs_f64();
    let rows = trainer.client.stats()?[0].rows;
    if rows != args.rows {
        bail!("the new server has {rows} rows, but the checkpoint has {}", args.rows);
    }
    Ok(Recovery { listening_s, noticed_s, restored_s, first_step_s })
}

/// Returns a quantile of times in milliseconds, by the nearest rank.
fn at(times: &mut [Duration], share: f64) -> f64 {
    times.sort_unstable();
    let rank = (share * times.len() as f64).ceil() as usize;
    let found = times.get(rank.clamp(1, times.len().max(1)) - 1);
    found.map_or(0.0, |time| (time.as_secs_f64() * 1e6).round() / 1e3)
}
