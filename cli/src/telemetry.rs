//! Logs: warnings and errors to stderr, more by `ZILLION_LOG` (for example `ZILLION_LOG=debug`).

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// `usual` is what is logged where nobody asks for more or less.
pub(crate) fn start(usual: &str) {
    let filter = std::env::var("ZILLION_LOG").unwrap_or_else(|_| usual.to_owned());
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
}
