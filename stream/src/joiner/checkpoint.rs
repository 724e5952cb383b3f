//! Checkpoints of a joiner: a folder with its segments, its feedback and a manifest.
//!
//! Segments never change, so a checkpoint links them instead of copying them. `feedback` holds the
//! feedback in memory. `MANIFEST` names both with sizes and hashes, and has everything else: one
//! line with the format and the hash of the rest, then JSON. `docs/design/joiner.md` describes the
//! formats.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use zillion_device::durable::Stage;
use zillion_device::{DeviceError, Files};

use super::counters::Counters;
use super::engine::Joiner;
use super::error::{JoinError, JoinResult};
use super::feedback::{Early, FeedbackStore, Joined};
use super::key::Key;
use super::pending::prepare_folder;
use super::segment::{self, SegmentFile};
use super::settings::Settings;
use crate::watermark::{WatermarkState, Watermarks};

/// The name of the manifest.
const MANIFEST: &str = "MANIFEST";
/// The name of the file with the feedback in memory.
const FEEDBACK: &str = "feedback";
/// The first word of a manifest.
const MAGIC: &str = "zillion-joiner";
/// The version of the format.
const FORMAT: u32 = 1;
/// The first bytes of the file with the feedback.
const FEEDBACK_MAGIC: &[u8; 8] = b"ZLNJFDB1";
/// The size of a feedback value in its file: key, kind, value, and time or first weight.
const JOINED_RECORD: usize = 26;
const EARLY_RECORD: usize = 30;

/// The contents of a checkpoint, as its manifest lists them.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    /// The settings that decide what pending rows mean. They must be the same after a restore.
    emit: String,
    keep_negatives: String,
    correction: String,
    watermarks: WatermarkState,
    counters: Counters,
    /// The sequence number of the next impression.
    sequence: u64,
    /// The number of the next segment.
    next_segment: u64,
    is_ending: bool,
    is_drained: bool,
    segments: Vec<SegmentEntry>,
    feedback: FeedbackEntry,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SegmentEntry {
    number: u64,
    bytes: u64,
    blake3: String,
    /// The position of the oldest pending row.
    cursor: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FeedbackEntry {
    joined: u64,
    early: u64,
    blake3: String,
}

impl Joiner {
    /// Writes a checkpoint to the folder `target`, which must not exist or be empty. The folder
    /// appears whole. The pending rows of the memtable become a segment first.
    ///
    /// A checkpoint may be written between any two rows of [`Joiner::next_row`], but not between an
    /// input and its first row.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written, or if an input emits a row at once that was
    /// not taken yet. After an error of the disk, the joiner can only be restored.
    pub fn checkpoint(&mut self, target: impl AsRef<Path>) -> JoinResult<()> {
        if self.has_failed {
            return Err(JoinError::Stopped);
        }
        if self.immediate.is_some() {
            return Err(JoinError::Undrained("a checkpoint"));
        }
        let written = self.write_checkpoint(target.as_ref());
        self.watch(written)
    }

    fn write_checkpoint(&mut self, target: &Path) -> JoinResult<()> {
        self.pending.seal()?;
        let stage = self.files.stage(target)?;
        let mut segments = Vec::new();
        for segment in self.pending.segments() {
            link(&self.files, &stage, &segment.path, &segment::file_name(segment.file.number))?;
            segments.push(SegmentEntry {
                number: segment.file.number,
                bytes: segment.file.bytes,
                blake3: segment.file.hash.clone(),
                cursor: segment.cursor,
            });
        }
        let bytes = encode_feedback(&self.feedback);
        stage.write_bytes(FEEDBACK, &bytes)?;
        let (joined, early) = self.feedback.counts();
        let [emit, keep_negatives, correction] =
            describe_meaning(&self.settings).map(|(_, value)| value);
        let manifest = Manifest {
            emit,
            keep_negatives,
            correction,
            watermarks: self.watermarks.state().clone(),
            counters: self.counters,
            sequence: self.sequence,
            next_segment: self.pending.next_number(),
            is_ending: self.is_ending,
            is_drained: self.is_drained,
            segments,
            feedback: FeedbackEntry { joined, early, blake3: hash(&bytes) },
        };
        let json = serde_json::to_string_pretty(&manifest).map_err(|error| {
            DeviceError::file("write", &target.join(MANIFEST), io::Error::from(error))
        })?;
        let text = format!("{MAGIC} {FORMAT} {}\n{json}\n", hash(json.as_bytes()));
        stage.write_bytes(MANIFEST, text.as_bytes())?;
        stage.commit()?;
        Ok(())
    }

    /// Creates a joiner that goes on from the checkpoint `source`. Its further rows are those of
    /// the joiner that wrote the checkpoint. The segments are linked into `folder`, which belongs
    /// to the joiner alone. Whatever an earlier joiner left there is removed.
    ///
    /// The bounds, `wait` and the rules of times may differ from those of the checkpoint. A smaller
    /// disorder raises the watermark. The rows that become due by it are to be taken before the
    /// first input, like the rows that the joiner before had left.
    ///
    /// # Errors
    /// Returns an error if a setting is unusable or gives the pending rows another meaning, if a
    /// file of the checkpoint is missing, cut off or altered, or if the folder cannot be written.
    pub fn restore(
        source: impl AsRef<Path>,
        folder: impl AsRef<Path>,
        files: Files,
        settings: Settings,
    ) -> JoinResult<Self> {
        settings.validate()?;
        let (source, folder) = (source.as_ref(), folder.as_ref());
        let manifest = read_manifest(source)?;
        let saved = [&manifest.emit, &manifest.keep_negatives, &manifest.correction];
        for ((setting, given), saved) in describe_meaning(&settings).into_iter().zip(saved) {
            if given != *saved {
                let (path, saved) = (source.to_path_buf(), saved.clone());
                return Err(JoinError::Different { path, setting, given, saved });
            }
        }
        let path = source.join(FEEDBACK);
        let bytes = fs::read(&path).map_err(|e| DeviceError::file("read", &path, e))?;
        let feedback = decode_feedback(&bytes, &manifest.feedback)
            .ok_or_else(|| JoinError::damaged(&path, "is not the file that its manifest names"))?;

        prepare_folder(folder, &files)?;
        let saved_watermark = manifest.watermarks.watermark();
        let watermarks = Watermarks::restore(settings.times, manifest.watermarks);
        let has_risen = watermarks.watermark() != saved_watermark;
        let mut joiner =
            Self::empty(folder, files.clone(), settings, watermarks, manifest.next_segment);
        for SegmentEntry { number, bytes, blake3, cursor } in manifest.segments {
            let name = segment::file_name(number);
            link_into(&files, &source.join(&name), &folder.join(&name))?;
            let file = SegmentFile { number, bytes, hash: blake3 };
            joiner.pending.adopt(file, cursor)?;
        }
        files.sync_dir(folder)?;
        for (key, _, _) in feedback.all_joined() {
            if joiner.pending.get(key).is_none() {
                return Err(JoinError::damaged(&path, "has feedback of a row that is not pending"));
            }
            joiner.pending.mark_feedback(key);
        }
        joiner.feedback = feedback;
        joiner.counters = manifest.counters;
        joiner.sequence = manifest.sequence;
        joiner.is_ending = manifest.is_ending;
        joiner.is_drained = manifest.is_drained && !has_risen;
        if has_risen {
            joiner.expire_early();
        }
        Ok(joiner)
    }
}

/// Returns the settings that decide what pending rows mean, with their values as text.
fn describe_meaning(settings: &Settings) -> [(&'static str, String); 3] {
    [
        ("emit", format!("{:?}", settings.emit)),
        ("keep_negatives", settings.negatives.keep.to_string()),
        ("correction", format!("{:?}", settings.negatives.correction)),
    ]
}

/// Links or copies a segment into a checkpoint that is being written.
fn link(files: &Files, stage: &Stage, from: &Path, name: &str) -> JoinResult<()> {
    if !files.link_file(from, stage.path().join(name))? {
        let mut source = File::open(from).map_err(|e| DeviceError::file("open", from, e))?;
        stage.write_file(name, |out| io::copy(&mut source, out).map(drop))?;
    }
    Ok(())
}

/// Links or copies a segment of a checkpoint into the folder of a joiner.
fn link_into(files: &Files, from: &Path, to: &Path) -> JoinResult<()> {
    // A missing file is reported by its own name, not by that of the link.
    let mut source = File::open(from).map_err(|e| DeviceError::file("open", from, e))?;
    if !files.link_file(from, to)? {
        files.write_file(to, |out| io::copy(&mut source, out).map(drop))?;
    }
    Ok(())
}

fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

fn read_manifest(folder: &Path) -> JoinResult<Manifest> {
    let path: PathBuf = folder.join(MANIFEST);
    let text = fs::read_to_string(&path).map_err(|e| DeviceError::file("read", &path, e))?;
    let damaged = |problem: &str| JoinError::damaged(&path, problem);
    let (first, json) = text.split_once('\n').ok_or_else(|| damaged("is cut off"))?;
    let json = json.strip_suffix('\n').ok_or_else(|| damaged("is cut off"))?;
    let words: Vec<&str> = first.split(' ').collect();
    let [MAGIC, format, expected] = words[..] else {
        return Err(damaged("is no manifest of a joiner"));
    };
    if format != FORMAT.to_string() {
        let problem = format!("has the format {format}, but this program reads {FORMAT}");
        return Err(damaged(&problem));
    }
    if hash(json.as_bytes()) != expected {
        return Err(damaged("has another hash than its first line says"));
    }
    serde_json::from_str(json).map_err(|error| damaged(&format!("cannot be read: {error}")))
}

/// Encodes the feedback in memory, little-endian: the format, then the joined feedback in the order
/// of keys and kinds, then the early feedback by time and arrival.
fn encode_feedback(feedback: &FeedbackStore) -> Vec<u8> {
    let mut bytes = FEEDBACK_MAGIC.to_vec();
    for (key, kind, joined) in feedback.all_joined() {
        bytes.extend_from_slice(&key.to_bytes());
        bytes.extend_from_slice(&kind.to_le_bytes());
        bytes.extend_from_slice(&joined.value.to_le_bytes());
        bytes.extend_from_slice(&joined.first_weight.to_le_bytes());
    }
    for (key, kind, early) in feedback.all_early() {
        bytes.extend_from_slice(&key.to_bytes());
        bytes.extend_from_slice(&kind.to_le_bytes());
        bytes.extend_from_slice(&early.value.to_le_bytes());
        bytes.extend_from_slice(&early.time.to_le_bytes());
    }
    bytes
}

/// Decodes feedback; `None` if the bytes are not those that the manifest describes.
fn decode_feedback(bytes: &[u8], entry: &FeedbackEntry) -> Option<FeedbackStore> {
    if hash(bytes) != entry.blake3 {
        return None;
    }
    let records = bytes.strip_prefix(FEEDBACK_MAGIC)?;
    let joined_bytes = usize::try_from(entry.joined).ok()?.checked_mul(JOINED_RECORD)?;
    let early_bytes = usize::try_from(entry.early).ok()?.checked_mul(EARLY_RECORD)?;
    if records.len() != joined_bytes.checked_add(early_bytes)? {
        return None;
    }
    let (joined, early) = records.split_at(joined_bytes);
    let mut feedback = FeedbackStore::default();
    for record in joined.chunks_exact(JOINED_RECORD) {
        let (key, kind, value) = decode_common(record)?;
        let first_weight = f32::from_le_bytes(*record[22..].first_chunk()?);
        feedback.join(key, kind, Joined { value, first_weight });
    }
    for record in early.chunks_exact(EARLY_RECORD) {
        let (key, kind, value) = decode_common(record)?;
        let time = i64::from_le_bytes(*record[22..].first_chunk()?);
        feedback.keep_early(key, kind, Early { value, time });
    }
    Some(feedback)
}

/// Decodes key, kind and value at the beginning of a record.
fn decode_common(record: &[u8]) -> Option<(Key, u16, f32)> {
    let key = Key::from_bytes(*record.first_chunk()?);
    let kind = u16::from_le_bytes(*record[16..].first_chunk()?);
    let value = f32::from_le_bytes(*record[18..].first_chunk()?);
    Some((key, kind, value))
}
