//! The arguments of `zillion bench gpu`.

use std::path::PathBuf;

use clap::ValueEnum;

#[derive(Debug, clap::Args)]
pub(crate) struct BenchGpuArgs {
    /// GPU to measure: cuda:0 is the first one
    #[arg(long, default_value = "cuda:0")]
    pub(crate) device: String,
    /// Number of rows in the table of the lookups and updates
    #[arg(long, default_value = "10000000", value_parser = clap::value_parser!(u64).range(1000..=u32::MAX.into()))]
    pub(crate) rows: u64,
    /// Number of places of the index of served layers
    #[arg(long, default_value = "66060288", value_parser = clap::value_parser!(u64).range(1000..=1 << 31))]
    pub(crate) index_places: u64,
    /// Measure only this part besides the floors (repeatable)
    #[arg(long, value_enum)]
    pub(crate) part: Vec<GpuPart>,
    /// Folder of compiled kernels; absent: $ZILLION_GPU_KERNELS, or the user's cache
    #[arg(long, value_name = "FOLDER")]
    pub(crate) kernels: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GpuPart {
    /// Lookups of rows and row updates
    Rows,
    /// The index of served layers
    Index,
    /// Our products, which have the processor's bits
    Exact,
    /// The library's products in f32, tf32 and bf16
    Library,
    /// A whole training step as one graph
    Step,
    /// The step without each of its parts
    StepParts,
}
