//! Data files without a job. Their format and columns are guessed from their first rows.

use std::path::{Path, PathBuf};

use anyhow::Result;
use zillion_datatools::{
    Guess, Profile, ProfileSpec, Sniffed, guess, null_markers, profile, sniff,
};
use zillion_device::Workers;
use zillion_reader::{DataConfig, estimated_rows_of};

/// The guesses about a file from its first rows: the format, the profile of the columns, and the
/// meaning of the columns.
pub(crate) struct Preview {
    pub(crate) sniffed: Sniffed,
    pub(crate) profile: Profile,
    pub(crate) guess: Guess,
}

/// Returns the options for a profile of the first `rows` rows. The profile counts every text that
/// may be a null marker.
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
    let profile = profile(&sniffed.config, &[path.to_owned()], &first_rows(rows), workers)?;
    let guess = guess(&sniffed.config, &profile, label);
    Ok(Preview { sniffed, profile, guess })
}

/// Returns the settings with which a file can be read, guessed from its first rows.
pub(crate) fn guess_config(path: &Path, workers: &Workers) -> Result<DataConfig> {
    Ok(preview(path, 50_000, None, workers)?.guess.config)
}

/// Estimates the number of rows of some files. Returns `None` if no estimate is possible.
pub(crate) fn estimate_rows(config: &DataConfig, files: &[PathBuf]) -> Option<u64> {
    estimated_rows_of(config, files).ok().flatten()
}
