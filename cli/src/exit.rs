//! Exit codes.

use std::process::ExitCode;

use zillion_feature::{ConfigError, SchemaError};
use zillion_trainer::Error;

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const REFUSED: u8 = 3;

/// 1 failed, 2 the job file is wrong, 3 a guard refused.
pub(crate) fn code(error: &anyhow::Error) -> ExitCode {
    let mut code = FAILED;
    for cause in error.chain() {
        if cause.is::<ConfigError>() || cause.is::<SchemaError>() {
            code = USAGE;
        }
        match cause.downcast_ref::<Error>() {
            Some(Error::Config(_) | Error::Schema(_) | Error::Unsupported(_)) => code = USAGE,
            Some(Error::OtherJob { .. } | Error::WouldOverwrite { .. }) => code = REFUSED,
            _ => {}
        }
    }
    ExitCode::from(code)
}
