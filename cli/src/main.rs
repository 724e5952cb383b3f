//! The `zillion` binary: arguments, environment, signals, telemetry. It composes the crates and holds
//! no mechanism of its own.
//!
//! Results go to stdout, everything for people to stderr. Exit codes: 0 done, 1 failed, 2 usage (the
//! command line or the job file), 3 refused by a guard.

mod args;
mod commands;
mod exit;
mod job_file;
mod progress;
mod signals;
mod telemetry;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};

fn main() -> ExitCode {
    let args = Args::parse();
    telemetry::start();
    let outcome = match args.command {
        Command::Train(args) => commands::train::run(&args),
        Command::Eval(args) => commands::eval::run(&args),
        Command::Predict(args) => commands::predict::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            exit::code(&error)
        }
    }
}
