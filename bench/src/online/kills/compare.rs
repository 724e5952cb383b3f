//! The comparison of the versions of two registries.

use anyhow::{Context, Result};
use serde::Serialize;
use zillion_registry::{Model, VersionId, VersionManifest};

/// The outcome of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Compared {
    /// The number of versions of each registry.
    pub(super) counts: (u64, u64),
    pub(super) compared: u64,
    pub(super) different: u64,
    /// The number of the first version that differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_different: Option<u64>,
    /// The number of rows that the last version has learned from.
    pub(super) rows: u64,
    /// The number of versions that have learned from no more rows than the one before.
    pub(super) repeated: u64,
}

impl Compared {
    /// Returns whether all versions are equal and none was published twice.
    pub(super) fn are_equal(&self) -> bool {
        self.counts.0 == self.counts.1 && self.different == 0 && self.repeated == 0
    }
}

/// Compares the versions of two registries by their manifests, which have the hashes of all files.
/// The run, the time and the hash of the manifest itself are left out. The files of the last
/// versions are checked against their hashes.
pub(super) fn compare(one: &Model, other: &Model) -> Result<Compared> {
    let count = |model: &Model| -> Result<u64> {
        let latest = model.latest()?.context("a registry has no version")?;
        model.check_files(latest)?;
        Ok(latest.0)
    };
    let counts = (count(one)?, count(other)?);
    let mut compared = Compared { counts, ..Compared::default() };
    let mut rows = 0;
    for number in 1..=counts.0.min(counts.1) {
        let version = VersionId(number);
        let (mine, yours) = (one.version(version)?, other.version(version)?);
        compared.compared += 1;
        // A base that was merged repeats an earlier version.
        if mine.compacts().is_none() {
            compared.repeated += u64::from(number > 1 && mine.origin.cursor.row <= rows);
            rows = mine.origin.cursor.row;
        }
        if blank(mine) != blank(yours) {
            compared.different += 1;
            compared.first_different.get_or_insert(number);
        }
    }
    compared.rows = one.version(VersionId(counts.0))?.origin.cursor.row;
    Ok(compared)
}

/// Removes what names the run and the time.
fn blank(mut manifest: VersionManifest) -> VersionManifest {
    manifest.chain.clear();
    manifest.published_ms = 0;
    manifest.signatures.clear();
    manifest.origin.run.clear();
    if let Some(parent) = &mut manifest.parent {
        parent.chain.clear();
    }
    manifest
}
