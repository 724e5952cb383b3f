//! A copy of a checkpoint in which one table has fewer rows.
//!
//! # Crash consistency
//! The new folder is staged under a hidden name, read back and verified, and renamed: it exists
//! whole or not at all. The old folder is only read.

use std::path::{Path, PathBuf};

use zillion_device::{Files, Workers, mmap};
use zillion_embedding::{Keep, TableSize, TableView};
use zillion_rows::{PartInfo, TableParts, TableSpec};

use super::{Checkpoint, DENSE, FileDigest, MANIFEST, Manifest};
use crate::error::{Error, Result};
use crate::frequencies;

/// The sizes of a table before and after rows were removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shrunk {
    /// The size of the table in this checkpoint.
    pub before: TableSize,
    /// The size of the table in the new checkpoint. If no checkpoint is written, this is the size
    /// that the table would have.
    pub after: TableSize,
}

impl Checkpoint {
    /// Copies this checkpoint to the folder `out` without some rows of one table. `out` must be
    /// empty or not exist. If `out` is `None`, only the sizes are computed.
    ///
    /// The new checkpoint has the same position in the same training. It can be evaluated,
    /// published and resumed like any other checkpoint.
    ///
    /// # Errors
    /// Returns an error if the table is dense, if a file does not have the hash in the manifest, or
    /// if the disk cannot be written. After an error, the new folder is removed.
    pub fn shrink(
        &self,
        spec: &TableSpec,
        keep: Keep,
        out: Option<(&Path, &Files)>,
        workers: &Workers,
    ) -> Result<Shrunk> {
        let view = self.table(spec.clone(), workers)?;
        let shrink = view.plan_shrink(workers, keep, self.manifest.step)?;
        let shrunk = Shrunk { before: shrink.before, after: shrink.after };
        let Some((out, files)) = out else { return Ok(shrunk) };
        let stage = files.stage(out)?;
        let mut tables = Vec::with_capacity(self.manifest.tables.len());
        for listed in &self.manifest.tables {
            let copied: Vec<&PartInfo> = if listed.table != spec.name && listed.changes.is_none() {
                files.create_dir(stage.path().join("tables").join(&listed.table))?;
                tables.push(listed.clone());
                listed.files().collect()
            } else {
                tables.push(match listed.table == spec.name {
                    true => view.write_shrunk(workers, stage.path(), files, &shrink, listed)?,
                    false => self.write_whole(listed, stage.path(), files, workers)?,
                });
                // The files of the Bloom filter that counts the keys of the table do not change.
                listed.filter.iter().flat_map(|filter| &filter.parts).collect()
            };
            self.copy_files(&copied, stage.path(), files, workers)?;
        }
        stage.write_bytes(DENSE, &self.dense()?)?;
        if let Some(digest) = &self.manifest.frequencies {
            let action = "cannot read the items' frequencies";
            stage.write_bytes(frequencies::FILE, &self.read(frequencies::FILE, action, digest)?)?;
        }
        let manifest = Manifest { tables, parent: None, ..self.manifest.clone() };
        stage.write_bytes(MANIFEST, &manifest.to_bytes().0)?;
        // The written checkpoint is read back, to verify the hashes, the order of keys, and the
        // number of rows.
        let written = Self::open(stage.path())?;
        let rows = TableView::open(workers, stage.path(), spec.clone(), &written.manifest.tables)?;
        if rows.rows() != shrink.after.rows {
            let problem = format!(
                "table `{}` has {} rows instead of {}",
                spec.name,
                rows.rows(),
                shrink.after.rows
            );
            return Err(Error::Checkpoint { path: out.to_owned(), problem });
        }
        drop(rows);
        stage.commit()?;
        Ok(shrunk)
    }

    /// Writes all rows of a table into the files of a whole checkpoint. The rows come from this
    /// checkpoint, which holds only the changes of the table, and from the checkpoints below it.
    fn write_whole(
        &self,
        listed: &TableParts,
        folder: &Path,
        files: &Files,
        workers: &Workers,
    ) -> Result<TableParts> {
        let specs = self.job()?.tables;
        let spec = specs.into_iter().find(|spec| spec.name == listed.table).ok_or_else(|| {
            let problem = format!("its job has no table `{}`", listed.table);
            Error::Checkpoint { path: self.path.join(MANIFEST), problem }
        })?;
        let view = self.table(spec, workers)?;
        let everything = view.plan_whole(workers);
        Ok(view.write_shrunk(workers, folder, files, &everything, listed)?)
    }

    /// Verifies and copies files of tables.
    fn copy_files(
        &self,
        parts: &[&PartInfo],
        folder: &Path,
        files: &Files,
        workers: &Workers,
    ) -> Result<()> {
        let copied = workers.map(parts.len(), |at| {
            let part = parts[at];
            let path: PathBuf = self.path.join(&part.file);
            let bytes = mmap::map(&path)?;
            let digest = FileDigest { bytes: part.bytes, blake3: part.blake3.clone() };
            if FileDigest::of(&bytes) != digest {
                let problem = "its bytes differ from the bytes that were written".to_owned();
                return Err(Error::Checkpoint { path, problem });
            }
            files.create_file(folder.join(&part.file), |file| file.write_all(&bytes))?;
            Ok(())
        });
        copied.into_iter().collect()
    }
}
