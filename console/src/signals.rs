//! The first Ctrl-C or SIGTERM asks a run to finish its batch and checkpoint; the second one kills.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Returns a flag that is set by the first signal.
pub fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // Registered first, so that it runs first: it acts only if the flag was set before.
        flag::register_conditional_default(signal, stop.clone())
            .context("cannot install a signal handler")?;
        flag::register(signal, stop.clone()).context("cannot install a signal handler")?;
    }
    Ok(stop)
}
