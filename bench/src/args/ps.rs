//! The arguments of the benchmark of the parameter service.

use std::num::NonZeroUsize;

#[derive(Debug, clap::Args)]
pub(crate) struct BenchPsArgs {
    /// Number of rows in the table
    #[arg(long, default_value = "10000000", value_parser = clap::value_parser!(u64).range(100_000..=u32::MAX.into()))]
    pub(crate) rows: u64,
    /// Number of floats in the vector of a row; each row has one more for the linear weight
    #[arg(long, default_value = "16")]
    pub(crate) dim: NonZeroUsize,
    /// Number of threads of the server that work on the tables
    #[arg(long, default_value = "1")]
    pub(crate) threads: NonZeroUsize,
    /// Number of trainers, each with a connection and a thread of its own
    #[arg(long, default_value = "1")]
    pub(crate) clients: NonZeroUsize,
    /// Number of connections that are opened and left idle, to measure their cost
    #[arg(long, default_value = "0")]
    pub(crate) idle: usize,
    /// Measure steps of 1,000 keys while the server writes a checkpoint, then stop the server by
    /// SIGKILL, start another one, and measure the time until its first step is done
    #[arg(long, conflicts_with = "clients")]
    pub(crate) checkpoint: bool,
    /// Encrypt the connections with TLS, by a certificate that the benchmark makes
    #[arg(long, conflicts_with_all = ["idle", "checkpoint"])]
    pub(crate) tls: bool,
    /// Seconds for which each figure is measured
    #[arg(long, default_value = "5", value_parser = super::load::positive)]
    pub(crate) seconds: f64,
}
