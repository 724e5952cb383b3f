//! A guard for calls into decoders that may panic on damaged bytes.

use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls a decoder of Parquet or Arrow and converts a panic into an error. The decoders check most
/// bytes that they read, but some of their code panics on damaged bytes. A damaged file must cause
/// an error and not a panic.
pub(crate) fn without_panic<T, E: Display>(
    call: impl FnOnce() -> Result<T, E>,
) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(panic) => Err(panic_text(panic.as_ref())),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("damaged data").to_owned()
}
