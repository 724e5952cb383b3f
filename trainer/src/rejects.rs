//! The file of rejected rows. Each line has one JSON object for one rejected row. Each row is
//! listed once, and the lines are sorted by file and row.
//!
//! # Crash consistency
//! The whole file is written before each checkpoint that counts its rows, at the end of the run,
//! and when a pass fails. A resumed run begins with the existing file. If a row is rejected again,
//! the file does not change. So the final file is the same as after a run that was never
//! interrupted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use zillion_device::Files;
use zillion_reader::{Dataset, Reject};

use crate::error::{Error, Result};

/// The rows that a run has rejected, and the path of their file.
#[derive(Clone, Debug)]
pub struct RejectFile {
    path: PathBuf,
    rows: BTreeMap<(String, u64), Reject>,
    /// The number of rows in the file; `None` if the file is not written yet.
    written: Option<usize>,
}

impl RejectFile {
    /// Makes a file without rows. [`RejectFile::save`] replaces an existing file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), rows: BTreeMap::new(), written: None }
    }

    /// Reads the existing file, if there is one.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is not a file of rejected rows.
    pub(crate) fn resume(path: &Path) -> Result<Self> {
        let unreadable =
            Error::io("the file of rejected rows cannot be continued; move it away", path);
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Self::new(path)),
            Err(error) => return Err(unreadable(error)),
        };
        let mut file = Self::new(path);
        for line in text.lines() {
            let row = serde_json::from_str(line).map_err(|e| unreadable(e.into()))?;
            file.push(row);
        }
        file.written = Some(file.rows.len());
        Ok(file)
    }

    /// Adds the rows that passes over a data set have rejected.
    pub fn add(&mut self, dataset: &Dataset) {
        dataset.rejects().into_iter().for_each(|row| self.push(row));
    }

    fn push(&mut self, row: Reject) {
        self.rows.entry((row.file.clone(), row.row)).or_insert(row);
    }

    /// Writes the file if it has new rows.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn save(&mut self, files: &Files) -> Result<()> {
        if self.written == Some(self.rows.len()) {
            return Ok(());
        }
        if let Some(folder) = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            files.create_dir(folder)?;
        }
        files.write_file(&self.path, |file| {
            self.rows.values().try_for_each(|row| {
                serde_json::to_writer(&mut *file, row)?;
                file.write_all(b"\n")
            })
        })?;
        self.written = Some(self.rows.len());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reject(file: &str, row: u64) -> Reject {
        Reject {
            file: file.to_owned(),
            row,
            byte: Some(7),
            row_group: None,
            column: None,
            reason: "is \"bad\"".to_owned(),
            line: Some("a,\"b\nc\"".to_owned()),
        }
    }

    #[test]
    fn an_interrupted_file_ends_like_one_that_was_not() {
        let folder = tempfile::tempdir().unwrap();
        let files = Files::new();
        let rows = [reject("b", 2), reject("a", 9), reject("b", 1), reject("a", 9)];
        let mut whole = RejectFile::new(folder.path().join("new/whole"));
        rows.iter().for_each(|row| whole.push(row.clone()));
        whole.save(&files).unwrap();
        let text = std::fs::read_to_string(folder.path().join("new/whole")).unwrap();
        assert_eq!(text.lines().count(), 3);

        let path = folder.path().join("parts");
        let mut part = RejectFile::new(&path);
        rows[..2].iter().for_each(|row| part.push(row.clone()));
        part.save(&files).unwrap();
        let mut rest = RejectFile::resume(&path).unwrap();
        rows[1..].iter().for_each(|row| rest.push(row.clone()));
        rest.save(&files).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);

        // The file is not written if there are no new rows.
        std::fs::write(&path, "").unwrap();
        rest.save(&files).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
        std::fs::write(&path, "something else\n").unwrap();
        let error = RejectFile::resume(&path).unwrap_err().to_string();
        assert!(error.contains("move it away") && error.contains("parts"), "{error}");
        // A fresh run removes the rows of an older file.
        RejectFile::new(&path).save(&files).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
    }
}
