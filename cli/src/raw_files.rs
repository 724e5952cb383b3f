//! Data files without a job. Their format and columns are guessed from their first rows.

use std::path::{Path, PathBuf};

use anyhow::Result;
use zillion_datatools::{
    Guess, Profile, ProfileSpec, Sniffed, guess, null_markers, profile, sniff,
};
use zillion_device::Workers;
use zillion_reader::{DataConfig, estimated_rows_of};

/// The format, the profile and the guessed columns of a file, made from its first rows.
pub(crate) struct Preview {
    pub(crate) sniffed: Sniffed,
    pub(crate) profile: Profile,
    pub(crate) guess: Guess,
}

/// The number of cells whose values are kept to measure how columns predict the label. They take
/// 128 MiB.
const KEPT_CELLS: usize = 1 << 23;

/// Returns the options for profiling the first `rows` rows of files. The profile counts every
/// marker that may stand for a missing value.
pub(crate) fn first_rows(rows: u64) -> ProfileSpec {
    ProfileSpec { rows: Some(rows), markers: null_markers(), ..ProfileSpec::default() }
}

/// Reads the first `rows` rows of a file and guesses its format and columns.
pub(crate) fn preview(
    path: &Path,
    rows: u64,
    label: Option<&str>,
    workers: &Workers,
) -> Result<Preview> {
    let sniffed = sniff(path)?;
    let spec = ProfileSpec { kept_cells: KEPT_CELLS, ..first_rows(rows) };
    let profile = profile(&sniffed.config, &[path.to_owned()], &spec, workers)?;
    let guess = guess(&sniffed.config, &profile, label);
    Ok(Preview { sniffed, profile, guess })
}

/// Guesses the settings for reading a file.
pub(crate) fn guess_config(path: &Path, workers: &Workers) -> Result<DataConfig> {
    Ok(preview(path, 50_000, None, workers)?.guess.config)
}

/// Estimates the number of rows of some files. Returns `None` if no estimate is possible.
pub(crate) fn estimate_rows(config: &DataConfig, files: &[PathBuf]) -> Option<u64> {
    estimated_rows_of(config, files).ok().flatten()
}
