//! The check whether the answer of a request would come too late.

use crate::error::{Error, Result};

/// A function that returns whether the answer of a request would come too late. After it has
/// returned `true` once, it always returns `true`.
pub type LateCheck<'a> = &'a (dyn Fn() -> bool + Sync);

/// Checks that there is still time to compute the answer.
///
/// # Errors
/// Returns [`Error::Late`] if `is_late` returns `true`.
pub(crate) fn check_time(is_late: Option<LateCheck<'_>>) -> Result<()> {
    match is_late {
        Some(is_late) if is_late() => Err(Error::Late),
        _ => Ok(()),
    }
}
