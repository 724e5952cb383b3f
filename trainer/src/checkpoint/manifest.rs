//! The manifest of a checkpoint: one line with magic, format and hash, then JSON.
//!
//! Manifests of the format 1 that an earlier version wrote have no slots of files, no digests of
//! tables and no digests of training files. They can be read, because all are optional. A binary of
//! an earlier version refuses a manifest that has them, because it refuses unknown fields.

use std::path::Path;

use serde::{Deserialize, Serialize};
use zillion_feature::{Cursor, HASH_ID, Statistics};
use zillion_nn::optim::Plateau;
use zillion_rows::TableParts;

use super::products::ProductChoice;
use crate::error::{Error, Result};
use crate::job::is_zero;
use crate::online::SnapshotLink;

const MAGIC: &str = "zillion-checkpoint";
const FORMAT: u32 = 1;

/// The contents of a checkpoint, as its manifest lists them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The name of the rules by which keys are hashed.
    pub hash: String,
    /// The number of training steps before this checkpoint.
    pub step: u64,
    /// The parent checkpoint; absent in a whole checkpoint. With a parent, this checkpoint holds
    /// only the changes since the parent.
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
    /// The digest of the file with the frequencies of items; absent if the model does not use them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frequencies: Option<FileDigest>,
    /// The parts of every table.
    pub tables: Vec<TableParts>,
    /// The training files. The position in the order of rows refers to this list in this order.
    pub files: Vec<TrainingFile>,
    /// The state of the streams in the folder of the run; absent if the run reads files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<SnapshotLink>,
    /// The machine and the algorithms of the products; absent if all products are exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub products: Option<ProductChoice>,
    /// The job with every default, without `[run]` and `[ps]`.
    pub job: toml::Value,
}

/// A reference to the parent of a checkpoint, whose folder lies beside the checkpoint's folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parent {
    /// The name of the parent's folder.
    pub folder: String,
    /// The BLAKE3 in the first line of the parent's manifest.
    pub blake3: String,
}

/// The name, the size and a digest of a training file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingFile {
    /// The name below `data.root` (the path, if it lies elsewhere).
    pub name: String,
    /// The size of the file in bytes.
    pub bytes: u64,
    /// The BLAKE3 of the file, of which only blocks are read if it is large, in hexadecimal. Absent
    /// for objects of a store, and in checkpoints of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<String>,
}

impl TrainingFile {
    /// Returns whether two entries may be of the same file. An entry without a digest has the
    /// contents of any file of its name and size.
    fn may_be(&self, other: &Self) -> bool {
        let is_same = self.sample.as_ref().zip(other.sample.as_ref()).is_none_or(|(a, b)| a == b);
        self.name == other.name && self.bytes == other.bytes && is_same
    }

    /// Finds the first difference between two lists of files. Returns its index and a description
    /// of the entry in each list.
    pub(crate) fn difference(saved: &[Self], given: &[Self]) -> Option<(usize, String, String)> {
        let differs = (0..saved.len().max(given.len())).find(|&i| {
            !saved.get(i).zip(given.get(i)).is_some_and(|(saved, given)| saved.may_be(given))
        })?;
        let describe = |list: &[Self]| match list.get(differs) {
            Some(Self { name, bytes, sample: Some(sample) }) => {
                let digest: String = sample.chars().take(12).collect();
                format!("{name} of {bytes} bytes (digest {digest})")
            }
            Some(Self { name, bytes, sample: None }) => format!("{name} of {bytes} bytes"),
            None => "absent".to_owned(),
        };
        Some((differs, describe(saved), describe(given)))
    }
}

/// The state of the schedule and the best epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// The state of the learning-rate schedule and the early stop.
    pub plateau: Plateau,
    /// The best epoch so far; absent before the first validation.
    pub best: Option<Best>,
    /// The sum of the losses of the rows in the epoch so far.
    pub loss_sum: f64,
    /// The number of rows in the epoch before the position that were not used for training, because
    /// they were bad or not drawn.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
    /// The number of bad rows in the epoch before the position. After the last step of an epoch,
    /// this number includes all bad rows of the epoch.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rejected: u64,
    /// The time of the newest event that was trained on, in milliseconds since 1970; absent if the
    /// job does not give the unit of its event times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest_event_ms: Option<u64>,
    /// The event time of the tables; absent if all tables go by steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_clock: Option<TableTime>,
    /// The step of the other run's checkpoint from which this run began; 0 if the run began without
    /// a checkpoint. The schedule and the averages count from this step.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub begun_at: u64,
    /// The number of pushes that the run has lost with servers of its tables. A push of one trainer
    /// to two servers counts twice.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost_pushes: u64,
}

/// The event time of the tables of a run, in seconds since 1970. It never goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableTime {
    /// The event time of the first step. Rows store seconds since this time.
    pub first: i64,
    /// The event time of the last step.
    pub now: i64,
}

impl TableTime {
    /// Returns the seconds between the first and the last step. A span above 136 years counts as
    /// 136 years.
    pub fn elapsed(self) -> u32 {
        let seconds = self.now.saturating_sub(self.first);
        u32::try_from(seconds.max(0)).unwrap_or(u32::MAX)
    }
}

/// The best epoch so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// The step after which the epoch was validated. The epoch's checkpoint has the same step.
    pub step: u64,
    /// The validation AUC; absent if it could not be computed.
    pub valid_auc: Option<f64>,
}

/// The size and hash of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Returns the bytes of the manifest's file, and the BLAKE3 in its first line.
    pub(crate) fn to_bytes(&self) -> (Vec<u8>, String) {
        let body = serde_json::to_string_pretty(self)
            .expect("a manifest is plain data with text keys, which JSON can always hold");
        let hash = blake3::hash(body.as_bytes()).to_hex();
        (format!("{MAGIC} {FORMAT} {hash}\n{body}\n").into_bytes(), hash.to_string())
    }

    /// Reads and verifies a manifest. Also returns the BLAKE3 in its first line.
    pub(super) fn read(path: &Path) -> Result<(Self, String)> {
        let bytes = std::fs::read(path)
            .map_err(Error::io("cannot read the checkpoint's manifest", path))?;
        Self::parse(path, &bytes)
    }

    /// Verifies the bytes of a manifest. Also returns the BLAKE3 in its first line.
    pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<(Self, String)> {
        let refused = |problem: String| Error::Checkpoint { path: path.to_owned(), problem };
        let text = std::str::from_utf8(bytes)
            .map_err(|_| refused("the manifest is not UTF-8 text".into()))?;
        let (head, body) =
            text.split_once('\n').ok_or_else(|| refused("the manifest is truncated".into()))?;
        let mut words = head.split(' ');
        if words.next() != Some(MAGIC) {
            return Err(refused(format!("the manifest does not begin with `{MAGIC}`")));
        }
        let format = words.next().unwrap_or_default();
        if format != FORMAT.to_string() {
            let problem =
                format!("the manifest has format {format}, but this binary reads format {FORMAT}");
            return Err(refused(problem));
        }
        let body =
            body.strip_suffix('\n').ok_or_else(|| refused("the manifest is truncated".into()))?;
        let hash = blake3::hash(body.as_bytes()).to_hex();
        if words.next() != Some(hash.as_str()) || words.next().is_some() {
            return Err(refused("the hash in the manifest does not match its bytes".into()));
        }
        let manifest: Self = serde_json::from_str(body)
            .map_err(|e| refused(format!("the manifest does not parse: {e}")))?;
        if manifest.hash != HASH_ID {
            return Err(refused(format!(
                "its keys are hashed by {}, but this binary hashes them by {HASH_ID}",
                manifest.hash
            )));
        }
        manifest.tables.iter().try_for_each(check_names).map_err(refused)?;
        Ok((manifest, hash.to_string()))
    }
}

/// Checks that the files of a table lie in the folder of the table. Other names could lead out of
/// the checkpoint.
fn check_names(table: &TableParts) -> Result<(), String> {
    let is_plain = |name: &str, extra: &[char]| {
        let legal = |c: char| c.is_ascii_alphanumeric() || extra.contains(&c);
        !name.is_empty() && name.chars().all(legal)
    };
    let shorten = |name: &str| name.chars().take(100).collect::<String>();
    let name = &table.table;
    if !is_plain(name, &['_', '-', '.']) || name.starts_with('.') {
        return Err(format!(
            "`{}` is not the name of a table; use another checkpoint",
            shorten(name)
        ));
    }
    let folder = format!("tables/{name}/");
    let lies_outside = |file: &str| {
        let name = file.strip_prefix(&folder).and_then(|name| name.strip_suffix(".arrow"));
        name.is_none_or(|name| !is_plain(name, &['-']))
    };
    match table.files().find(|part| lies_outside(&part.file)) {
        None => Ok(()),
        Some(part) => Err(format!(
            "table `{name}` lists `{}`, which is not the name of a file of this table; use another checkpoint",
            shorten(&part.file)
        )),
    }
}

#[cfg(test)]
mod tests {
    use zillion_rows::{ListedParts, PartInfo};

    use super::*;

    fn table(name: &str, file: &str) -> TableParts {
        let info = |file: &str| PartInfo {
            file: file.to_owned(),
            rows: 0,
            bytes: 0,
            blake3: String::new(),
            slots: None,
        };
        TableParts {
            table: name.to_owned(),
            rows: 0,
            dirty_epoch: 0,
            parts: vec![info(&format!("tables/{name}/part-00000.arrow"))],
            narrow: Some(ListedParts::of(vec![info(file)])),
            candidates: None,
            filter: None,
            changes: None,
            digest: None,
        }
    }

    /// A manifest of the first release: its files have no slots, and its tables have no digest.
    const OLD: &str = include_str!(
        "../../../tests/fixtures/formats-1/chain/checkpoints/step-000000000008/MANIFEST"
    );

    #[test]
    fn a_manifest_without_slots_and_digests_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("MANIFEST");
        std::fs::write(&path, OLD).unwrap();
        let (mut manifest, blake3) = Manifest::read(&path).unwrap();
        assert!(manifest.tables.iter().all(|table| table.digest.is_none()));
        let files: Vec<_> = manifest.tables.iter().flat_map(TableParts::files).collect();
        assert!(files.len() == 3 && files.iter().all(|file| file.slots.is_none()));
        assert_eq!(manifest.to_bytes(), (OLD.as_bytes().to_vec(), blake3));
        // The same manifest with slots and digests has the same format, and is read back.
        let table = &mut manifest.tables[0];
        table.digest = Some("00112233445566778899aabbccddeeff".parse().unwrap());
        table.parts[0].slots = Some((0, 4096));
        let (bytes, _) = manifest.to_bytes();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.starts_with("zillion-checkpoint 1 "), "{text}");
        assert!(text.contains(r#""digest": "00112233445566778899aabbccddeeff""#), "{text}");
        let slots: String = text.split_whitespace().collect();
        assert!(slots.contains(r#""slots":[0,4096]"#), "{text}");
        std::fs::write(&path, &text).unwrap();
        assert_eq!(Manifest::read(&path).unwrap().0, manifest);
        // A digest that is no digest is refused by name.
        let (wrong, _) = text.split_once('\n').unwrap();
        let body = text[wrong.len() + 1..].trim_end().replace("00112233", "0011223z");
        let hash = blake3::hash(body.as_bytes()).to_hex();
        std::fs::write(&path, format!("{MAGIC} {FORMAT} {hash}\n{body}\n")).unwrap();
        let error = Manifest::read(&path).unwrap_err().to_string();
        assert!(error.contains("the digest of a table is not a number"), "{error}");
    }

    #[test]
    fn files_of_a_checkpoint_lie_in_its_folder() {
        assert_eq!(check_names(&table("user.id", "tables/user.id/narrow-00000.arrow")), Ok(()));
        assert_eq!(check_names(&table("u", "tables/u/narrow-s0000-1344.arrow")), Ok(()));
        let files = [
            "../../pwned",
            "/etc/passwd",
            "tables/u/../../pwned.arrow",
            "tables/u/",
            "tables/u/.arrow",
            "tables/v/narrow-00000.arrow",
            "tables/u/narrow-00000",
        ];
        for file in files {
            let said = check_names(&table("u", file)).unwrap_err();
            assert!(said.contains(file), "{said}");
        }
        for name in ["..", ".", "", "a/b", "../x"] {
            let said = check_names(&table(name, &format!("tables/{name}/narrow-00000.arrow")));
            assert!(said.unwrap_err().contains("is not the name of a table"), "{name}");
        }
    }
}
