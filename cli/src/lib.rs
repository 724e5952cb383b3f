//! The command line of `zillion`. [`run`] reads the arguments and the environment, starts the
//! telemetry, and runs one command. The other crates do the actual work. The program `zillion` and
//! the command of the Python package both call it.
//!
//! Results are written to stdout, and all messages for people to stderr. The exit codes are 0 for
//! success, 1 for a failure, 2 for wrong usage (the command line or the job file), and 3 if a guard
//! refused the request.

mod args;
mod bar;
mod commands;
mod curves;
mod device;
mod ids;
mod metrics;
mod moment;
mod operator;
mod raw_files;
mod registry;
mod report;
mod runs;
mod telemetry;
mod text;
mod watch;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use zillion_console::exit;

use args::{Args, Command, LogFormat};

pub use curves::{draw_plots, write_curves};

/// Runs the command that the arguments name, and returns its exit code. The first argument is the
/// name of the program. If the arguments are wrong or ask for help, the process ends.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = Args::parse_from(arguments);
    zillion_device::machine::keep_freed_memory();
    if only_prints(&args.command) {
        zillion_device::machine::exit_on_closed_pipe();
    }
    // A server logs at level `info` by default, because its operator reads the log.
    let usual = if matches!(args.command, Command::Serve(_) | Command::Ps(_) | Command::Online(_)) {
        "info"
    } else {
        "warn"
    };
    let telemetry = match telemetry::start(&args.telemetry, usual) {
        Ok(telemetry) => telemetry,
        Err(error) => {
            eprintln!("error: {}", exit::format_error(&error));
            return exit::exit_code(&error);
        }
    };
    let outcome = match args.command {
        Command::Quickstart(args) => done(commands::quickstart::run(&args)),
        Command::Init(args) => done(commands::init::run(&args)),
        Command::Check(args) => commands::check::run(&args),
        Command::Train(args) => done(commands::train::run(&args)),
        Command::Tune(args) => done(commands::tune::run(&args)),
        Command::Online(args) => done(commands::online::run(&args)),
        Command::Stream(args) => done(commands::stream::run(&args)),
        Command::Eval(args) => done(commands::eval::run(&args)),
        Command::Importance(args) => done(commands::importance::run(&args)),
        Command::Predict(args) => done(commands::predict::run(&args)),
        Command::Board(args) => done(commands::board::run(&args)),
        Command::Compare(args) => done(commands::compare::run(&args)),
        Command::Table(args) => done(commands::table::run(&args)),
        Command::Publish(args) => done(commands::publish::run(&args)),
        Command::Serve(args) => done(commands::serve::run(&args)),
        Command::Ps(args) => done(commands::ps::run(&args)),
        Command::Cluster(args) => commands::cluster::run(&args),
        Command::Loadgen(args) => zillion_bench::loadgen::run(&args),
        Command::Model(args) => done(commands::model::run(&args)),
        Command::Key(args) => done(commands::key::run(&args)),
        Command::Access(args) => done(commands::access::run(&args)),
        Command::Audit(args) => done(commands::audit::run(&args)),
        Command::Explain(args) => done(commands::explain::run(&args)),
        Command::Data(args) => done(commands::data::run(&args)),
        Command::Bench(args) => done(zillion_bench::run(&args, commands::init::draft_job)),
        Command::Doctor(args) => done(commands::doctor::run(&args)),
        Command::Gpu(args) => commands::gpu::run(&args),
        Command::Completions(args) => done(commands::manual::print_completions(&args)),
        Command::Man(args) => done(commands::manual::print_pages(&args)),
    };
    let code = match outcome {
        Ok(code) => code,
        Err(error) => {
            match args.telemetry.log_format {
                LogFormat::Text => eprintln!("error: {}", exit::format_error(&error)),
                LogFormat::Json => tracing::error!("{}", exit::format_error(&error)),
            }
            exit::exit_code(&error)
        }
    };
    telemetry.finish();
    code
}

/// Returns whether a command has no effect except for its output. Such a command ends without an
/// error when the pipe is closed, as in `zillion … | head`.
fn only_prints(command: &Command) -> bool {
    matches!(
        command,
        Command::Check(_)
            | Command::Compare(_)
            | Command::Eval(_)
            | Command::Table(_)
            | Command::Model(_)
            | Command::Audit(_)
            | Command::Explain(_)
            | Command::Importance(_)
            | Command::Data(_)
            | Command::Doctor(_)
            | Command::Gpu(_)
            | Command::Stream(_)
            | Command::Completions(_)
            | Command::Man(_)
    )
}

/// Returns the exit code of a command that has only one exit code for success.
fn done(outcome: anyhow::Result<()>) -> anyhow::Result<ExitCode> {
    outcome.map(|()| ExitCode::SUCCESS)
}
