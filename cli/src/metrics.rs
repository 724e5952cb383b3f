//! The Prometheus series of this process: the series of the trainer or of the parameter server, and
//! the series that every process has.
//!
//! The crate `zillion-serving` defines the series of a server of models; this module adds the
//! series of the process to them.

mod listener;
mod maker;
mod parameter_server;
mod process;
mod publishing;
mod streams;
mod tables;
mod trainer;

use prometheus::{IntGaugeVec, Opts, Registry};

pub(crate) use listener::Listener;
pub(crate) use parameter_server::ParameterServerMetrics;
pub(crate) use process::Process;
pub(crate) use streams::{StreamMetrics, StreamParts};
pub(crate) use trainer::TrainerMetrics;

/// Returns a registry with the series that every process has. `role` is `trainer`, `server` or
/// `ps`.
///
/// # Errors
/// Returns an error if the name of a series is already taken, which would be a defect.
pub(crate) fn registry(role: &str) -> prometheus::Result<Registry> {
    let registry = Registry::new();
    let opts = Opts::new("zillion_build_info", "1, with what this program is as labels.");
    let info = IntGaugeVec::new(opts, &["version", "arch", "role"])?;
    info.with_label_values(&[env!("CARGO_PKG_VERSION"), std::env::consts::ARCH, role]).set(1);
    registry.register(Box::new(info))?;
    registry.register(Box::new(Process::new()?))?;
    Ok(registry)
}
