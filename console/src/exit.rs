//! Exit codes, and errors as text.

use std::process::ExitCode;

use zillion_config::ConfigError;
use zillion_feature::SchemaError;
use zillion_reader::ReaderError;
use zillion_trainer::Error;

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const REFUSED: u8 = 3;

/// An error that a person must resolve on the command line before the command can act.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// The command line does not say enough.
    #[error("{0}")]
    Usage(String),
    /// Going on would destroy something or end badly.
    #[error("{0}")]
    Refused(String),
}

/// Marks what is wrong with a job file or an override.
pub fn as_usage(error: anyhow::Error) -> anyhow::Error {
    Stop::Usage(format!("{error:#}")).into()
}

/// Returns an error in words: what was tried, then each cause that says something new. What can be
/// left out of the data instead is said too.
pub fn format_error(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        // Many of our messages quote their cause.
        if !text.contains(&cause) {
            let colon = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{colon}{cause}");
        }
    }
    if error.chain().any(is_of_one_row) {
        text.push_str(" (`data.max_bad_rows = 100` leaves up to 100 such rows out, `data.rejects` lists them)");
    }
    text.extend(error.chain().filter_map(name_flags));
    text
}

/// Names the flags of `zillion train` that an error of the trainer leaves to its caller. A library
/// knows settings and no flags.
fn name_flags(cause: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    match cause.downcast_ref()? {
        Error::WouldOverwrite { .. } => {
            Some(" (`--resume` resumes, `--set run.output=..` chooses another folder)")
        }
        Error::OtherModel { .. } => Some(" (`--from` names the checkpoint to begin from)"),
        _ => None,
    }
}

/// Returns whether leaving a row out of the data would help.
fn is_of_one_row(cause: &(dyn std::error::Error + 'static)) -> bool {
    let reader = cause.downcast_ref::<ReaderError>().or_else(|| match cause.downcast_ref() {
        Some(Error::Reader(error)) => Some(error),
        _ => None,
    });
    reader.is_some_and(ReaderError::is_about_one_row)
}

/// Returns the exit code of an error: 1 failed, 2 the job file or the command line is wrong, 3 a
/// guard refused.
pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    let mut code = FAILED;
    for cause in error.chain() {
        if cause.is::<ConfigError>() || cause.is::<SchemaError>() {
            code = USAGE;
        }
        match cause.downcast_ref::<Error>() {
            Some(
                Error::Config(_)
                | Error::Schema(_)
                | Error::Unsupported(_)
                | Error::UnknownNode { .. }
                | Error::NotByRow { .. }
                | Error::Embedding(zillion_embedding::Error::Spec { .. })
                | Error::Model(
                    zillion_nn::Error::Setting { .. }
                    | zillion_nn::Error::Input { .. }
                    | zillion_nn::Error::Config(_),
                )
                | Error::Reader(
                    ReaderError::Setting { .. }
                    | ReaderError::BadPattern { .. }
                    | ReaderError::UnknownFormat { .. },
                ),
            ) => code = USAGE,
            Some(
                Error::OtherJob { .. }
                | Error::OtherModel { .. }
                | Error::OtherFiles { .. }
                | Error::WouldOverwrite { .. },
            ) => code = REFUSED,
            _ => {}
        }
        match cause.downcast_ref::<Stop>() {
            Some(Stop::Usage(_)) => code = USAGE,
            Some(Stop::Refused(_)) => code = REFUSED,
            None => {}
        }
    }
    ExitCode::from(code)
}

/// Returns the code of a command that has said what it found.
pub fn failed() -> ExitCode {
    ExitCode::from(FAILED)
}

/// Returns the same where a guard would stop.
pub fn refused() -> ExitCode {
    ExitCode::from(REFUSED)
}
