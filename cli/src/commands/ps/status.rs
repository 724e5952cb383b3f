//! `zillion ps status`: the state of servers.

use anyhow::{Result, bail};
use zillion_ps::{ServerState, server_state};

use super::access::{Access, find_servers};
use crate::args::PsStatusArgs;

#[expect(clippy::print_stdout, reason = "the result of a command")]
pub(crate) fn run(args: &PsStatusArgs) -> Result<()> {
    let Access { token, tls, deadline } = Access::open(&args.access)?;
    let state = |server: &String| server_state(server, token.as_ref(), tls.as_ref(), deadline);
    let servers = find_servers(&args.servers, &args.etcd)?;
    let answers: Vec<_> = servers.iter().map(state).collect();
    // The state of servers that answer is wanted most if another one does not.
    match args.json {
        true => {
            let states: Vec<&ServerState> = answers.iter().flatten().collect();
            println!("{}", serde_json::to_string_pretty(&states)?);
        }
        false => {
            for (address, answer) in servers.iter().zip(&answers) {
                answer.iter().for_each(|state| print_state(address, state));
            }
        }
    }
    let problems: Vec<String> =
        answers.iter().filter_map(|answer| Some(answer.as_ref().err()?.to_string())).collect();
    match problems.is_empty() {
        true => Ok(()),
        false => bail!("{}", problems.join("; ")),
    }
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn print_state(address: &str, state: &ServerState) {
    let ServerState { id, generation, slots: [first, end], step, .. } = state;
    let run = state.run.as_deref().unwrap_or("none");
    let ended = state.ended.as_ref().map(|cause| format!(" (ended: {cause})"));
    println!(
        "server {id} at {address}: run {run}, generation {generation}{}, slots {first}..{end}, step {step}",
        ended.unwrap_or_default()
    );
    for (trainer, is_connected, silent, frames) in &state.trainers {
        let connected = if *is_connected { "connected" } else { "not connected" };
        println!("  trainer {trainer}: {connected}, heard {silent:.1} s ago, {frames} frames");
    }
    if let Some(newest) = state.checkpoints.last() {
        println!("  newest checkpoint: step {newest}");
    }
    for (trainer, steps) in state.applied_steps.iter().flatten().enumerate() {
        println!("  trainer {trainer}: {steps} steps are applied");
    }
    for (staleness, pulls) in state.stale_pulls.iter().flatten().enumerate() {
        println!("  pulls that lacked {staleness} steps of a trainer: {pulls}");
    }
    for table in &state.tables {
        println!(
            "  table {}: {} rows, {} bytes in memory",
            table.table,
            table.rows,
            table.total_bytes()
        );
    }
    println!(
        "  {} connections, {} bytes in flight, {} frames, {} repeated, {} refused",
        state.connections,
        state.bytes_in_flight,
        state.frames,
        state.repeated_frames,
        state.refused_frames
    );
}
