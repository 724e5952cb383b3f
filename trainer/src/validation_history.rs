//! The history of validation in a file: the closed windows and the verdicts of a resident run.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;
use zillion_stream::gate::Verdict;
use zillion_stream::validation::ClosedWindow;

use crate::error::{Error, Result};

/// The name of the file with the closed windows and the verdicts, in the folder `stream` of a run.
pub const HISTORY_FILE: &str = "validation.jsonl";
/// The size of the history at which its older half is removed, in bytes.
const HISTORY_BYTES: u64 = 64 << 20;

/// The history of validation: one line of JSON for each closed window and each verdict. The file
/// serves people, dashboards and tests. A run that repeats batches first removes their lines.
#[derive(Debug)]
pub(crate) struct ValidationHistory {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// The last batch, and the number of lines about it.
    last: (u64, u64),
}

impl ValidationHistory {
    /// Opens the history in `folder`, and removes the lines of the batches after `batches`. If
    /// `lines` is given, only this number of lines about the batch `batches` is kept, because a
    /// version may be judged once more before the next batch.
    pub(crate) fn open(folder: &Path, batches: u64, lines: Option<u64>) -> Result<Self> {
        let path = folder.join(HISTORY_FILE);
        let failed = Error::io("cannot write the history of the validation", &path);
        let mut last = (0, 0);
        let mut is_kept = |line: &&str| {
            let batch =
                serde_json::from_str(line).ok().and_then(|line: Value| line["batch"].as_u64());
            let Some(batch) = batch.filter(|&batch| batch <= batches) else { return false };
            let before = if last.0 == batch { last.1 } else { 0 };
            let is_surplus = batch == batches && lines.is_some_and(|lines| before >= lines);
            if !is_surplus {
                last = (batch, before + 1);
            }
            !is_surplus
        };
        let mut write = || {
            std::fs::create_dir_all(folder)?;
            let text = match std::fs::read_to_string(&path) {
                Ok(text) => text,
                Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
                Err(error) => return Err(error),
            };
            let mut kept: String =
                text.lines().filter(&mut is_kept).flat_map(|l| [l, "\n"]).collect();
            if kept.len() as u64 > HISTORY_BYTES / 2 {
                let half = kept.floor_char_boundary(kept.len() / 2);
                let cut = kept[half..].find('\n').map_or(kept.len(), |at| half + at + 1);
                kept.drain(..cut);
            }
            let mut file = File::create(&path)?;
            file.write_all(kept.as_bytes())?;
            Ok((file, kept.len() as u64))
        };
        let (file, bytes) = write().map_err(failed)?;
        Ok(Self { path, file, bytes, last })
    }

    /// Adds a closed window.
    pub(crate) fn add_window(&mut self, batch: u64, window: &ClosedWindow) -> Result<()> {
        self.add(batch, &serde_json::json!({ "batch": batch, "window": window }))
    }

    /// Adds a verdict of the gate.
    pub(crate) fn add_verdict(&mut self, batch: u64, verdict: &Verdict) -> Result<()> {
        self.add(batch, &serde_json::json!({ "batch": batch, "verdict": verdict }))
    }

    /// Returns the number of lines about a batch, if it is the last one with a line.
    pub(crate) fn lines_about(&self, batch: u64) -> u64 {
        if self.last.0 == batch { self.last.1 } else { 0 }
    }

    fn add(&mut self, batch: u64, entry: &Value) -> Result<()> {
        let line = format!("{entry}\n");
        let failed = Error::io("cannot write the history of the validation", &self.path);
        self.file.write_all(line.as_bytes()).map_err(failed)?;
        self.bytes += line.len() as u64;
        self.last = (batch, self.lines_about(batch) + 1);
        if self.bytes > HISTORY_BYTES
            && let Some(folder) = self.path.parent()
        {
            *self = Self { last: self.last, ..Self::open(folder, u64::MAX, None)? };
        }
        Ok(())
    }
}
