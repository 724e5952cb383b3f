//! Arguments of the commands that can say where their time goes.

use std::num::NonZeroU64;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(crate) struct ProfileArgs {
    /// Record what every thread does: a Chrome trace for Perfetto in this file, and what it comes to at the end
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    /// Record the first batch and one in N; doubled as often as the file would become too large
    #[arg(long, value_name = "N", default_value = "20", requires = "profile")]
    pub(crate) profile_every: NonZeroU64,
}
