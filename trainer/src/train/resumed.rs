//! The notes about a resumed run, and the digests by which changed training files are noticed.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use crate::checkpoint::{Checkpoint, TrainingFile};
use crate::error::{Error, Result};
use crate::job::Job;

/// The largest size of a file that is read whole for its digest.
const WHOLE: u64 = 1 << 20;
/// The number of blocks of a larger file that are read, the first and the last among them.
const BLOCKS: u64 = 16;
/// The size of a block in bytes.
const BLOCK: u64 = 1 << 14;

/// Computes the digest of a file of this machine. Of a large file, only blocks at even distances
/// are read, so the cost does not grow with the data. Returns `None` for an object of a store.
pub(super) fn sample_digest(path: &Path) -> Result<Option<String>> {
    let failed = Error::io("cannot read the file", path);
    let Ok(mut file) = File::open(path) else { return Ok(None) };
    let facts = file.metadata().map_err(&failed)?;
    if !facts.is_file() {
        return Ok(None);
    }
    let bytes = facts.len();
    let mut hasher = blake3::Hasher::new();
    if bytes <= WHOLE {
        hasher.update_reader(file).map_err(&failed)?;
        return Ok(Some(hasher.finalize().to_hex().to_string()));
    }
    for block in 0..BLOCKS {
        let start = (bytes - BLOCK) / (BLOCKS - 1) * block;
        let start = if block + 1 == BLOCKS { bytes - BLOCK } else { start };
        file.seek(SeekFrom::Start(start)).map_err(&failed)?;
        hasher.update_reader((&mut file).take(BLOCK)).map_err(&failed)?;
    }
    Ok(Some(hasher.finalize().to_hex().to_string()))
}

/// Returns a note for each change of the job or of its training files that a run from `checkpoint`
/// does not follow, or follows only from here on.
pub(super) fn resume_notes(
    job: &Job,
    checkpoint: &Checkpoint,
    files: &[TrainingFile],
) -> Vec<String> {
    let manifest = &checkpoint.manifest;
    let (done, asked) = (manifest.cursor.epoch, job.train.epochs);
    let is_stopped = manifest.progress.plateau.is_stopped();
    let has_ended = is_stopped || done >= asked;
    let before = manifest.job.get("train").and_then(|train| train.get("epochs"));
    let before = before.and_then(toml::Value::as_integer).and_then(|n| u64::try_from(n).ok());
    let mut notes = Vec::new();
    if is_stopped && before.is_some_and(|before| asked > before) {
        notes.push(format!(
            "the run has ended, because `train.plateau` stopped it after {done} epochs, so \
             `train.epochs = {asked}` trains nothing; begin a new run from it in another folder \
             (`run.output`)"
        ));
    } else if !is_stopped && asked < done {
        notes.push(format!(
            "the run has already trained {done} epochs, so `train.epochs = {asked}` trains nothing, \
             and the result is that of {done} epochs; train into another folder (`run.output`) for \
             fewer"
        ));
    }
    if let Some((_, saved, given)) = TrainingFile::difference(&manifest.files, files) {
        let changed = format!(
            "the training files are not those of the checkpoint ({saved} then, {given} now)"
        );
        notes.push(match (has_ended, is_stopped) {
            (true, true) => format!(
                "{changed}, and the run has ended, so none of their rows are trained on; begin a \
                 new run from it in another folder (`run.output`)"
            ),
            (true, false) => format!(
                "{changed}, and the run has ended, so none of their rows are trained on; set \
                 `train.epochs` to more than {done} to train on, or begin a new run in another \
                 folder (`run.output`)"
            ),
            (false, _) => format!("{changed}, so the next epochs train on other rows"),
        });
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_in_a_block_changes_the_digest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows");
        let digest = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            sample_digest(&path).unwrap().unwrap()
        };
        let small = digest(b"1,0\n2,1\n");
        assert_eq!(small, blake3::hash(b"1,0\n2,1\n").to_hex().to_string());
        assert_ne!(small, digest(b"1,1\n2,0\n"));
        let mut large = vec![b'0'; 3 << 20];
        let before = digest(&large);
        for changed in [0, 3 << 18, (3 << 20) - 1] {
            large[changed] = b'1';
            let is_read = changed != 3 << 18;
            assert_eq!(digest(&large) != before, is_read, "{changed}");
            large[changed] = b'0';
        }
        assert_eq!(digest(&large), before);
        assert_eq!(sample_digest(&folder.path().join("absent")).unwrap(), None);
    }
}
