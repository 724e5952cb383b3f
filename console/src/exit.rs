//! The exit codes of commands, and the formatting of errors as text.

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
    /// The command line or the job file is incomplete or wrong.
    #[error("{0}")]
    Usage(String),
    /// The command was refused, because it would destroy something or is bound to fail.
    #[error("{0}")]
    Refused(String),
}

/// Returns the error of a wrong or incomplete command line or job file.
///
/// # Errors
/// Always returns an error, so that a command can end with it.
pub fn usage_error<T>(problem: impl Into<String>) -> anyhow::Result<T> {
    Err(Stop::Usage(problem.into()).into())
}

/// Returns the error of a command that a guard refuses.
///
/// # Errors
/// Always returns an error, so that a command can end with it.
pub fn refuse<T>(problem: impl Into<String>) -> anyhow::Result<T> {
    Err(Stop::Refused(problem.into()).into())
}

/// Turns an error in a job file or an override into a usage error.
pub fn as_usage(error: anyhow::Error) -> anyhow::Error {
    Stop::Usage(format!("{error:#}")).into()
}

/// Formats an error as text: what was tried, then each cause that adds information, then a remedy
/// where there is one, such as leaving bad rows out of the data.
pub fn format_error(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        // Many messages of this project already quote their cause.
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

/// Returns a hint with the flags of `zillion train` that resolve an error of the trainer. The
/// trainer cannot name them itself: a library knows settings, but not flags.
fn name_flags(cause: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    match cause.downcast_ref()? {
        Error::WouldOverwrite { .. } => {
            Some(" (`--resume` resumes, `--set run.output=..` chooses another folder)")
        }
        Error::OtherModel { .. } => Some(" (`--from` names the checkpoint to begin from)"),
        _ => None,
    }
}

/// Returns whether an error is about one row, so that leaving that row out of the data would help.
fn is_of_one_row(cause: &(dyn std::error::Error + 'static)) -> bool {
    let reader = cause.downcast_ref::<ReaderError>().or_else(|| match cause.downcast_ref() {
        Some(Error::Reader(error)) => Some(error),
        _ => None,
    });
    reader.is_some_and(ReaderError::is_about_one_row)
}

/// Returns the exit code of an error: 1 if the command failed, 2 if the job file or the command
/// line is wrong, 3 if a guard refused.
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

/// Returns the exit code 1, for a command that has already printed the problem that it found.
pub fn failed() -> ExitCode {
    ExitCode::from(FAILED)
}

/// Returns the exit code 3, for a command that has already printed why a guard refuses.
pub fn refused() -> ExitCode {
    ExitCode::from(REFUSED)
}
