//! The handling of Ctrl-C and SIGTERM. After the first signal, a run finishes its batch and writes
//! a checkpoint. The second signal kills the process.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Installs the signal handlers and returns the flag that the first signal sets.
pub fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // This handler kills the process if the flag is already set. Handlers run in the order of
        // their registration, so this one must come before the one that sets the flag.
        flag::register_conditional_default(signal, stop.clone())
            .context("cannot install a signal handler")?;
        flag::register(signal, stop.clone()).context("cannot install a signal handler")?;
    }
    Ok(stop)
}
