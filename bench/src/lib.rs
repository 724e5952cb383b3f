//! The benchmarks behind `zillion bench`, and the load generator `zillion loadgen`.
//!
//! Each benchmark has its own file. A benchmark prints its figures as text or as one line of JSON.
//! The figures include the number of processors that other programs kept busy during the benchmark.
//! Several benchmarks share these modules:
//!
//! * [`server`]: a server in a separate process;
//! * [`load`]: requests at a constant rate, and the check of their answers;
//! * `criteo`: a model with the shape of Criteo's data, its untrained versions, and requests for
//!   it.
//!
//! This crate only measures. The product does not need it.

mod args;
mod capacity;
mod cold_start;
mod criteo;
mod delta;
mod embedding;
pub mod example;
mod frappe;
mod gpu;
mod grpc;
mod hot_load;
pub mod load;
pub mod loadgen;
mod lookup;
mod online;
mod overload;
mod ps;
mod reader;
mod registry;
mod retrieve;
mod serve;
pub mod server;
mod spill;
mod stalls;
mod tls;
mod train;
mod turns;
mod wire;

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use tempfile::TempDir;
use zillion_console::print_json;
use zillion_trainer::Job;

use args::Bench;
pub use args::{BenchArgs, LoadgenArgs, Protocol};

/// Runs a benchmark. `draft` returns the job that `zillion init` would write for a data file.
pub fn run(args: &BenchArgs, draft: impl FnOnce(&Path) -> Result<Job>) -> Result<()> {
    let is_json = args.json;
    match &args.benchmark {
        Bench::Embedding(args) => embedding::run(args, is_json),
        Bench::Spill(args) => spill::run(args, is_json),
        Bench::Stalls(args) => stalls::run(args, is_json),
        Bench::Capacity(args) => capacity::run(args, is_json),
        Bench::Delta(args) => delta::run(args, is_json),
        Bench::Lookup(args) => lookup::run(args, is_json),
        Bench::Reader(args) => reader::run(args, is_json, draft),
        Bench::Serve(args) => serve::run(args, is_json),
        Bench::Train(args) => train::run(args, is_json),
        Bench::HotLoad(args) => hot_load::run(args, is_json),
        Bench::ColdStart(args) => cold_start::run(args, is_json),
        Bench::Wire(args) => wire::run(args, is_json),
        Bench::Grpc(args) => grpc::run(args, is_json),
        Bench::Overload(args) => overload::run(args, is_json),
        Bench::Tls(args) => tls::run(args, is_json),
        Bench::Registry(args) => registry::run(args, is_json),
        Bench::Retrieve(args) => retrieve::run(args, is_json),
        Bench::Ps(args) => ps::run(args, is_json),
        Bench::Online(args) => online::run(args, is_json),
        Bench::Gpu(args) => gpu::run(args, is_json),
        Bench::Frappe(args) => frappe::run(args, is_json),
    }
}

/// Prints the figures of a benchmark: as one line of JSON on stdout if `is_json` is true, and
/// otherwise as text on stderr.
fn print_outcome(outcome: &impl Serialize, is_json: bool) -> Result<()> {
    if is_json {
        return print_json(outcome);
    }
    eprintln!("{}", serde_json::to_string_pretty(outcome)?);
    Ok(())
}

/// Makes a folder for a benchmark, in `parent` or in the folder for temporary files. The folder is
/// removed when the returned value is dropped.
fn scratch_folder(parent: Option<&Path>) -> Result<TempDir> {
    match parent {
        Some(parent) => tempfile::tempdir_in(parent),
        None => tempfile::tempdir(),
    }
    .context("the folder of the benchmark cannot be created; name another place with --folder")
}
