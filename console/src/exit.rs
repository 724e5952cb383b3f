//! The exit codes of commands, and the formatting of errors as text.

use std::process::ExitCode;

use zillion_config::ConfigError;
use zillion_feature::SchemaError;
use zillion_reader::ReaderError;
use zillion_trainer::Error;

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const REFUSED: u8 = 3;

/// An error that the user must resolve by a change of the command line or of the job file.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// The command line or the job file is incomplete or wrong.
    #[error("{0}")]
    Usage(String),
    /// The command was refused because it would destroy data or would certainly fail.
    #[error("{0}")]
    Refused(String),
}

/// Returns the error for an incomplete or wrong command line or job file.
///
/// # Errors
/// Always returns this error, so that a command can end with a call of this function.
pub fn usage_error<T>(problem: impl Into<String>) -> anyhow::Result<T> {
    Err(Stop::Usage(problem.into()).into())
}

/// Returns the error for a command that was refused.
///
/// # Errors
/// Always returns this error, so that a command can end with a call of this function.
pub fn refuse<T>(problem: impl Into<String>) -> anyhow::Result<T> {
    Err(Stop::Refused(problem.into()).into())
}

/// Converts an error in a job file or an override to a usage error.
pub fn as_usage(error: anyhow::Error) -> anyhow::Error {
    Stop::Usage(format!("{error:#}")).into()
}

/// Formats an error as text. The text contains the action that failed, each cause that adds
/// information, and a remedy (such as leaving out bad rows) if there is one.
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

/// Returns a hint with the flags of `zillion train` that resolve an error of the trainer, or `None`
/// if no flag does. The trainer itself cannot name flags, because a library knows only settings.
fn name_flags(cause: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    match cause.downcast_ref()? {
        Error::WouldOverwrite { .. } => Some(
            " (`--resume` resumes, `--overwrite` replaces, `--set run.output=..` chooses another folder)",
        ),
        Error::OtherModel { .. } => Some(" (`--from` names the checkpoint to begin from)"),
        _ => None,
    }
}

/// Returns whether an error concerns only one row. Such an error is resolved if this row is left
/// out.
fn is_of_one_row(cause: &(dyn std::error::Error + 'static)) -> bool {
    let reader = cause.downcast_ref::<ReaderError>().or_else(|| match cause.downcast_ref() {
        Some(Error::Reader(error)) => Some(error),
        _ => None,
    });
    reader.is_some_and(ReaderError::is_about_one_row)
}

/// Returns the exit code of an error: 1 if the command failed, 2 if the job file or the command
/// line is wrong, and 3 if the command was refused.
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
                | Error::WouldOverwrite { .. }
                | Error::Refused(_),
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

/// Returns the exit code 1, for a command that has already printed the reason for its failure.
pub fn failed() -> ExitCode {
    ExitCode::from(FAILED)
}

/// Returns the exit code 3, for a command that has already printed the reason for its refusal.
pub fn refused() -> ExitCode {
    ExitCode::from(REFUSED)
}
