//! The manifest: one line of magic and hash, then JSON.

use std::path::Path;

use serde::{Deserialize, Serialize};
use zillion_feature::{Cursor, HASH_ID, Statistics};
use zillion_nn::optim::Plateau;
use zillion_rows::TableParts;

use crate::error::{Error, Result};

const MAGIC: &str = "zillion-checkpoint";
const FORMAT: u32 = 1;

/// The contents of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The hashing rules of its keys.
    pub hash: String,
    /// The number of steps done.
    pub step: u64,
    /// The checkpoint that this one stands on; absent in one that is whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// The position in the order of rows.
    pub cursor: Cursor,
    /// The state of the schedule and the best epoch.
    pub progress: Progress,
    /// The statistics of the training data's numeric features.
    pub statistics: Statistics,
    /// The digest of the dense file.
    pub dense: FileDigest,
    /// The digest of the file of item frequencies, where the model uses them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frequencies: Option<FileDigest>,
    /// The parts of every table.
    pub tables: Vec<TableParts>,
    /// The training files, in the order that the position counts in.
    pub files: Vec<TrainingFile>,
    /// The job with every default, without `[run]`.
    pub job: toml::Value,
}

/// The parent of a checkpoint, which lies beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parent {
    /// The name of the parent's folder.
    pub folder: String,
    /// The BLAKE3 that the parent's manifest begins with.
    pub blake3: String,
}

/// A training file and its size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingFile {
    /// The name below `data.root` (the path, if it lies elsewhere).
    pub name: String,
    /// The size of the file in bytes.
    pub bytes: u64,
}

/// The state of the schedule and the best epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// The learning-rate schedule and early stop.
    pub plateau: Plateau,
    /// The best epoch so far.
    pub best: Option<Best>,
    /// The sum of the losses of the epoch's rows so far.
    pub loss_sum: f64,
    /// The rows of the epoch before the position that were not trained: bad, or not drawn.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
    /// The bad rows among them; after the last step of an epoch, all of the epoch's.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rejected: u64,
    /// The time of the newest event that was trained on, in milliseconds since 1970, where the job
    /// gives the unit of its event times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest_event_ms: Option<u64>,
    /// The step after which the run began, where it began from another's checkpoint: its schedule
    /// and its averages count from there.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub begun_at: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde calls it with")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// The best epoch so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// The step after which it was validated, which names its checkpoint.
    pub step: u64,
    /// The validation AUC, where there was one.
    pub valid_auc: Option<f64>,
}

/// The size and hash of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileDigest {
    /// The size in bytes.
    pub bytes: u64,
    /// The BLAKE3 of the contents, in hexadecimal.
    pub blake3: String,
}

impl FileDigest {
    /// Computes the digest of a file's contents.
    pub fn of(contents: &[u8]) -> Self {
        Self { bytes: contents.len() as u64, blake3: blake3::hash(contents).to_hex().to_string() }
    }
}

impl Manifest {
    /// Returns the file's bytes, and the BLAKE3 that they begin with.
    pub(super) fn to_bytes(&self) -> (Vec<u8>, String) {
        let body = serde_json::to_string_pretty(self)
            .expect("a manifest is plain data with text keys, which JSON can always hold");
        let hash = blake3::hash(body.as_bytes()).to_hex();
        (format!("{MAGIC} {FORMAT} {hash}\n{body}\n").into_bytes(), hash.to_string())
    }

    /// Reads and verifies a manifest. Also returns the BLAKE3 that it begins with.
    pub(super) fn read(path: &Path) -> Result<(Self, String)> {
        let refused = |problem: String| Error::Checkpoint { path: path.to_owned(), problem };
        let bytes = std::fs::read(path).map_err(|source| Error::Io {
            action: "cannot read the checkpoint's manifest",
            path: path.to_owned(),
            source,
        })?;
        let text = std::str::from_utf8(&bytes)
            .map_err(|_| refused("the manifest is not text any more".into()))?;
        let (head, body) =
            text.split_once('\n').ok_or_else(|| refused("the manifest is cut short".into()))?;
        let mut words = head.split(' ');
        if words.next() != Some(MAGIC) {
            return Err(refused(format!("the manifest does not begin with `{MAGIC}`")));
        }
        let format = words.next().unwrap_or_default();
        if format != FORMAT.to_string() {
            let problem =
                format!("format {format} is not the format {FORMAT} that this binary reads");
            return Err(refused(problem));
        }
        let body =
            body.strip_suffix('\n').ok_or_else(|| refused("the manifest is cut short".into()))?;
        let hash = blake3::hash(body.as_bytes()).to_hex();
        if words.next() != Some(hash.as_str()) || words.next().is_some() {
            return Err(refused("the manifest's bytes are not those that were written".into()));
        }
        let manifest: Self = serde_json::from_str(body)
            .map_err(|e| refused(format!("the manifest does not parse: {e}")))?;
        if manifest.hash != HASH_ID {
            let problem = format!("keys are hashed by {}, this binary by {HASH_ID}", manifest.hash);
            return Err(refused(problem));
        }
        Ok((manifest, hash.to_string()))
    }
}
