//! Data files that no job describes: their format and columns, guessed from their first rows.

use std::path::{Path, PathBuf};

use anyhow::Result;
use zillion_datatools::{
    Guess, Profile, ProfileSpec, Sniffed, guess, null_markers, profile, sniff,
};
use zillion_device::Workers;
use zillion_reader::{DataConfig, estimated_rows_of};

/// The format, the profile and the guessed columns of a file, from its first rows.
pub(crate) struct Looked {
    pub(crate) sniffed: Sniffed,
    pub(crate) profile: Profile,
    pub(crate) guess: Guess,
}

/// Reads the first `rows` rows of a file and guesses its format and columns.
pub(crate) fn look_at(
    path: &Path,
    rows: u64,
    label: Option<&str>,
    workers: &Workers,
) -> Result<Looked> {
    let sniffed = sniff(path)?;
    let markers = null_markers();
    let look = ProfileSpec { rows: Some(rows), markers, ..ProfileSpec::default() };
    let files: [PathBuf; 1] = [path.to_owned()];
    let profile = profile(&sniffed.config, &files, &look, workers)?;
    let guess = guess(&sniffed.config, &profile, label);
    Ok(Looked { sniffed, profile, guess })
}

/// Returns the guessed settings that read a file.
pub(crate) fn guess_config(path: &Path, workers: &Workers) -> Result<DataConfig> {
    Ok(look_at(path, 50_000, None, workers)?.guess.config)
}

/// Estimates the number of rows of some files, or returns `None` if no estimate is possible.
pub(crate) fn estimate_rows(config: &DataConfig, files: &[PathBuf]) -> Option<u64> {
    estimated_rows_of(config, files).ok().flatten()
}
