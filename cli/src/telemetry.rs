//! Logs: warnings and errors to stderr, more by `ZILLION_LOG` (for example `ZILLION_LOG=debug`).

use tracing_subscriber::EnvFilter;

pub(crate) fn start() {
    let filter = std::env::var("ZILLION_LOG").unwrap_or_else(|_| "warn".to_owned());
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(std::io::stderr)
        .with_target(false)
        .init();
}
