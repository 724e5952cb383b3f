//! The state of a feed in a checkpoint.
//!
//! ```text
//! <run>/stream/feed-<batches>-<decision>/
//!     STATE      the position, the counts and the rows between two batches, as JSON
//!     JUDGING    the windows of validation, the gate and its anchor rows, as JSON
//!     PUBLISHED  the dense parameters of the newest version, as little-endian f32
//!     joiner/    the pending rows, if the job joins
//! ```
//!
//! The folder is complete before the checkpoint that names it. It is removed when no kept
//! checkpoint names it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use zillion_device::{DeviceError, Files};
use zillion_registry::Link as VersionLink;
use zillion_stream::{DeadLetterPosition, Position, RowRules};

use super::assembler::AssemblerState;
use super::judging::JudgingState;
use super::leftovers::Leftovers;
use super::newest::NewestRows;
use crate::error::{Error, Result};

const STATE: &str = "STATE";
const JUDGING: &str = "JUDGING";
/// The name of the file with the dense parameters of the newest version.
const PUBLISHED: &str = "PUBLISHED";
const JOINER: &str = "joiner";
const PREFIX: &str = "feed-";

/// A reference to the state of a feed, which a checkpoint stores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotLink {
    /// The name of the folder, which lies in the folder `stream` of the run.
    pub folder: String,
    /// The BLAKE3 of the file `STATE` in the folder.
    pub blake3: String,
    /// The BLAKE3 of the file `JUDGING` in the folder; absent if the run validates nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judging: Option<String>,
    /// The number of batches before the checkpoint.
    pub batches: u64,
    /// The number of the first decision after the checkpoint.
    pub next_decision: u64,
    /// The number of batches that are known to be good, behind which a rewind of the gate goes;
    /// absent without a gate, and before its first verdicts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known_good: Option<u64>,
    /// Whether the last publication before the checkpoint failed, so that the state waits for the
    /// next one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_unpublished: bool,
    /// The version that the run had published or found last before the checkpoint. A repetition
    /// finds its versions behind this one. It is absent before the first version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<VersionLink>,
}

/// The state of a feed, apart from its joiner.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FeedState {
    pub(super) position: Position,
    pub(super) letters: DeadLetterPosition,
    pub(super) counts: FeedCounts,
    pub(super) assembler: AssemblerState,
    pub(super) leftovers: Option<Leftovers>,
    pub(super) newest: NewestRows,
    /// The settings by which messages became rows; absent in a state of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) rules: Option<RowRules>,
}

/// The counts of a feed over the life of its log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FeedCounts {
    pub(super) batches: u64,
    pub(super) rows: u64,
    pub(super) messages: u64,
    pub(super) refused_times: u64,
    pub(super) full: u64,
    pub(super) lingered: u64,
}

/// Returns the name of the folder of the state after a number of batches. Several checkpoints
/// without a batch between them have different decisions.
pub(super) fn folder_name(batches: u64, decision: u64) -> String {
    format!("{PREFIX}{batches:012}-{decision:012}")
}

/// Prepares the folder of a new state, and returns the place for the joiner in it.
pub(super) fn begin(files: &Files, folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        files.remove_dir(folder)?;
    }
    files.create_dir(folder)?;
    Ok(folder.join(JOINER))
}

/// Returns the place of the joiner in the folder of a state.
pub(super) fn joiner_of(folder: &Path) -> PathBuf {
    folder.join(JOINER)
}

/// Writes the state into its folder, which completes the folder.
pub(super) fn finish(files: &Files, folder: &Path, state: &FeedState) -> Result<SnapshotLink> {
    let path = folder.join(STATE);
    let bytes = serde_json::to_vec(state)
        .map_err(|error| DeviceError::file("write", &path, std::io::Error::from(error)))?;
    files.write_bytes(&path, &bytes)?;
    files.sync_dir(folder)?;
    if let Some(parent) = folder.parent() {
        files.sync_dir(parent)?;
    }
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(SnapshotLink {
        folder: name,
        blake3: blake3::hash(&bytes).to_hex().to_string(),
        judging: None,
        batches: state.counts.batches,
        next_decision: state.position.next_decision(),
        known_good: None,
        is_unpublished: false,
        published: None,
    })
}

/// Reads the state that a checkpoint names, from the folder of the streams of the run.
pub(super) fn read(streams: &Path, link: &SnapshotLink) -> Result<(PathBuf, FeedState)> {
    let folder = streams.join(&link.folder);
    let path = folder.join(STATE);
    let refused =
        |problem: &str| Error::Checkpoint { path: path.clone(), problem: problem.to_owned() };
    let is_plain = link.folder.starts_with(PREFIX) && !link.folder.contains(['/', '\\']);
    if !is_plain {
        return Err(refused("the name of the folder is not that of a state of streams"));
    }
    let bytes = std::fs::read(&path)
        .map_err(Error::io("cannot read the state of the streams in the checkpoint", &path))?;
    if blake3::hash(&bytes).to_hex().as_str() != link.blake3 {
        return Err(refused("the file is not the one that the checkpoint names"));
    }
    let state: FeedState = serde_json::from_slice(&bytes)
        .map_err(|error| refused(&format!("the file does not parse: {error}")))?;
    Ok((folder, state))
}

/// Writes the state of validation and the dense parameters of the newest version into the folder of
/// the state, and names them in the link.
pub(crate) fn write_judging(
    files: &Files,
    streams: &Path,
    link: &mut SnapshotLink,
    (mut state, published): (JudgingState, &[f32]),
) -> Result<()> {
    if !published.is_empty() {
        let bytes: Vec<u8> = published.iter().flat_map(|value| value.to_le_bytes()).collect();
        files.write_bytes(streams.join(&link.folder).join(PUBLISHED), &bytes)?;
        state.published = Some(blake3::hash(&bytes).to_hex().to_string());
    }
    let path = streams.join(&link.folder).join(JUDGING);
    let bytes = serde_json::to_vec(&state)
        .map_err(|error| DeviceError::file("write", &path, std::io::Error::from(error)))?;
    files.write_bytes(&path, &bytes)?;
    link.judging = Some(blake3::hash(&bytes).to_hex().to_string());
    Ok(())
}

/// Reads the state of validation that a checkpoint names, if it names one.
pub(crate) fn read_judging(streams: &Path, link: &SnapshotLink) -> Result<Option<JudgingState>> {
    let Some(hash) = &link.judging else { return Ok(None) };
    let path = streams.join(&link.folder).join(JUDGING);
    let refused = |problem: String| Error::Checkpoint { path: path.clone(), problem };
    let bytes = std::fs::read(&path)
        .map_err(Error::io("cannot read the state of the validation in the checkpoint", &path))?;
    if blake3::hash(&bytes).to_hex().as_str() != hash {
        return Err(refused("the file is not the one that the checkpoint names".to_owned()));
    }
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|error| refused(format!("the file does not parse: {error}")))
}

/// Reads the dense parameters of the version that was the newest one at a checkpoint. The list is
/// empty if there was none.
pub(crate) fn read_published(
    streams: &Path,
    link: &SnapshotLink,
    state: &JudgingState,
) -> Result<Vec<f32>> {
    let Some(hash) = &state.published else { return Ok(Vec::new()) };
    let path = streams.join(&link.folder).join(PUBLISHED);
    let bytes = std::fs::read(&path)
        .map_err(Error::io("cannot read the parameters of the newest version", &path))?;
    let (words, rest) = bytes.as_chunks::<4>();
    if blake3::hash(&bytes).to_hex().as_str() != hash || !rest.is_empty() {
        let problem = "the file is not the one that the checkpoint names".to_owned();
        return Err(Error::Checkpoint { path, problem });
    }
    Ok(words.iter().map(|word| f32::from_le_bytes(*word)).collect())
}

/// Removes the states that no kept checkpoint names.
pub(crate) fn retain(files: &Files, streams: &Path, kept: &[SnapshotLink]) -> Result<()> {
    let failed = Error::io("cannot list the states of the streams", streams);
    for entry in std::fs::read_dir(streams).map_err(&failed)? {
        let name = entry.map_err(&failed)?.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        // A state after the newest kept one belongs to a checkpoint that is being written.
        let newest = kept.iter().map(|link| link.folder.as_str()).max().unwrap_or_default();
        if name < newest && !kept.iter().any(|link| link.folder == name) {
            files.remove_dir(streams.join(name))?;
        }
    }
    Ok(())
}
