//! The checkpoints of a run over servers that keep them in a bucket.
//!
//! ```text
//! BUCKET/PREFIX/<run>/RUN                 the id of the run
//! BUCKET/PREFIX/<run>/checkpoints/step-000000001234-cut-<generation>-<number>/
//!     MANIFEST                            created last
//!     dense.safetensors, frequencies      written by trainer 0
//!     tables/<table>/...                  written by the servers
//! ```
//!
//! The folder of the run on this machine has copies of the small files, so that everything but the
//! rows is read as usual. The bucket decides: a run is resumed from the bucket alone.
//!
//! # Crash consistency
//! * A cut is named once, so no process writes a file of a checkpoint that another one has written.
//!   A checkpoint exists if its manifest exists. The manifest is created after all other files, and
//!   removed before them.
//! * A checkpoint of an earlier cut that is not needed, and the files of an earlier cut without a
//!   manifest, are removed after the next checkpoint. A process of an earlier generation that wakes
//!   up removes nothing of a later one.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use zillion_device::Files;
use zillion_store::Store;

use super::chain::read_parent;
use super::run_dir::{CheckpointFolder, needed};
use super::{Best, DENSE, MANIFEST, Manifest, RunDir};
use crate::error::{Error, Result};
use crate::frequencies;

/// The name of the object with the id of the run.
const ID: &str = "RUN";

/// The largest number of bytes of a manifest.
const MOST_MANIFEST: u64 = 1 << 30;

/// The checkpoints of a run in a bucket, and the copies of their small files in a folder.
#[derive(Clone, Debug)]
pub(crate) struct RunBucket {
    store: Store,
    /// The name of the run below the prefix of the bucket.
    run: String,
    dir: RunDir,
    files: Files,
}

impl RunBucket {
    /// Opens the bucket of a run. `dir` is the folder of the copies.
    ///
    /// # Errors
    /// Returns an error if the bucket cannot be used, or does not support create-if-absent.
    pub(crate) fn open(url: &str, run: String, dir: RunDir, files: &Files) -> Result<Self> {
        let store = Store::create_at(url, files.clone())?;
        Ok(Self { store, run, dir, files: files.clone() })
    }

    /// Returns the name in the bucket of a folder in the folder of the run. A folder elsewhere has
    /// no name in the bucket, and its path is returned.
    pub(crate) fn name_of(&self, path: &Path) -> PathBuf {
        match path.strip_prefix(self.dir.path()) {
            Ok(below) => Path::new(&self.run).join(below),
            Err(_) => path.to_owned(),
        }
    }

    /// Brings the small files of the newest checkpoint, of the checkpoints below it and of the best
    /// one into the folder of the run, and removes copies of checkpoints that are gone.
    ///
    /// # Errors
    /// Returns an error if the bucket fails, or if the folder has a checkpoint that was never in a
    /// bucket.
    pub(crate) fn fetch(&self) -> Result<()> {
        self.dir.prepare(&self.files)?;
        let folders = self.committed()?;
        for local in self.dir.folders()? {
            if folders.contains(&local) {
                continue;
            }
            if local.cut().is_none() {
                return Err(Error::Unsupported(format!(
                    "{} has the checkpoint `{}`, which is not in the bucket {}; set `run.output` to \
                     another folder",
                    self.dir.path().display(),
                    local.name,
                    self.store.url()
                )));
            }
            self.files.remove_dir(self.local(&local))?;
        }
        let Some(newest) = folders.last() else { return Ok(()) };
        let mut next = Some(newest.clone());
        let mut best = None;
        while let Some(folder) = next {
            let manifest = self.fetch_one(&folder)?;
            best = best.or(manifest.progress.best);
            next = manifest.parent.and_then(|parent| CheckpointFolder::parse(&parent.folder));
        }
        let of_best =
            |folder: &&CheckpointFolder| best.is_some_and(|b: Best| b.step == folder.step);
        match folders.iter().rev().find(of_best) {
            Some(folder) => self.fetch_one(folder).map(drop),
            None => Ok(()),
        }
    }

    /// Brings the small files of one checkpoint into the folder of the run. Returns its manifest.
    fn fetch_one(&self, folder: &CheckpointFolder) -> Result<Manifest> {
        let target = self.local(folder);
        let path = target.join(MANIFEST);
        let bytes = self.get(folder, MANIFEST, MOST_MANIFEST)?;
        let (manifest, _) = Manifest::parse(&path, &bytes)?;
        if std::fs::read(&path).is_ok_and(|here| here == bytes) {
            return Ok(manifest);
        }
        let stage = self.files.stage(&target)?;
        let files =
            [(DENSE, Some(&manifest.dense)), (frequencies::FILE, manifest.frequencies.as_ref())];
        for (name, digest) in files.into_iter().filter_map(|(name, d)| Some((name, d?))) {
            stage.write_bytes(name, &self.get(folder, name, digest.bytes)?)?;
        }
        stage.write_bytes(MANIFEST, &bytes)?;
        if target.exists() {
            self.files.remove_dir(&target)?;
        }
        stage.commit()?;
        Ok(manifest)
    }

    /// Writes the files of `stage` into the checkpoint of `folder`, whose rows are in the bucket.
    /// The manifest is created last.
    ///
    /// # Errors
    /// Returns an error if the bucket fails.
    pub(crate) fn commit(&self, stage: &Path, folder: &Path) -> Result<()> {
        let name = self.name_of(folder);
        let object = |file: &str| format!("{}/{file}", name.display());
        for file in [DENSE, frequencies::FILE] {
            let path = stage.join(file);
            if path.exists() {
                self.store.put(&object(file), read(&path)?)?;
            }
        }
        match self.store.create(&object(MANIFEST), read(&stage.join(MANIFEST))?)? {
            true => Ok(()),
            false => Err(Error::Checkpoint {
                path: folder.to_owned(),
                problem: "another process has written a checkpoint with its name into the bucket"
                    .to_owned(),
            }),
        }
    }

    /// Removes the checkpoints that are not needed any more after the checkpoint in `newest`, and
    /// what earlier cuts have left without a manifest.
    ///
    /// # Errors
    /// Returns an error if the bucket fails.
    pub(crate) fn retain(&self, keep: usize, pinned: &[u64], newest: &Path) -> Result<()> {
        let name = newest.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(newest) = CheckpointFolder::parse(name) else { return Ok(()) };
        // A process of an earlier generation may have written a checkpoint of a later step.
        let is_current =
            |folder: &CheckpointFolder| *folder <= newest || folder.cut() > newest.cut();
        let mut current = self.committed()?;
        current.retain(is_current);
        let needed = needed(&current, keep, pinned, |folder| self.parent_of(folder))?;
        for folder in self.folders()?.iter().rev() {
            if folder.cut() < newest.cut() && !needed.contains(folder) {
                self.remove(folder)?;
            }
        }
        Ok(())
    }

    /// Returns the steps of the checkpoints in the bucket, in ascending order.
    ///
    /// # Errors
    /// Returns an error if the bucket fails.
    pub(crate) fn steps(&self) -> Result<Vec<u64>> {
        let mut steps: Vec<u64> = self.committed()?.iter().map(|folder| folder.step).collect();
        steps.dedup();
        Ok(steps)
    }

    /// Removes the checkpoints of the steps after `step`, which must have a checkpoint.
    ///
    /// # Errors
    /// Returns an error if the step has no checkpoint, or if the bucket fails.
    pub(crate) fn remove_after(&self, step: u64) -> Result<()> {
        if !self.steps()?.contains(&step) {
            return Err(Error::NoCheckpoint { path: self.dir.new_path(step, None) });
        }
        // The newest checkpoint is removed first, because it may stand on earlier ones.
        for later in self.folders()?.iter().rev().filter(|folder| folder.step > step) {
            self.remove(later)?;
        }
        Ok(())
    }

    /// Brings the id of the run into the folder of the run, if the bucket has one.
    pub(crate) fn fetch_id(&self) -> Result<()> {
        if let Some(id) = self.store.get_at_most(&format!("{}/{ID}", self.run), 1 << 10)? {
            self.files.create_dir(self.dir.path())?;
            self.files.write_bytes(self.dir.path().join(ID), &id)?;
        }
        Ok(())
    }

    /// Writes the id of the run into the bucket, unless it has one.
    pub(crate) fn keep_id(&self, id: &str) -> Result<()> {
        let id = Bytes::copy_from_slice(id.as_bytes());
        match self.store.create(&format!("{}/{ID}", self.run), id.clone())? {
            true => Ok(()),
            // The id may be there already, from this run.
            false if self.store.get(&format!("{}/{ID}", self.run))? == Some(id) => Ok(()),
            false => Err(Error::Unsupported(format!(
                "another process has begun the run `{}` in {}; only one process may be trainer 0",
                self.run,
                self.store.url()
            ))),
        }
    }

    /// Returns the folders of the bucket that have a manifest, in ascending order.
    fn committed(&self) -> Result<Vec<CheckpointFolder>> {
        let folders = self.folders()?;
        let names: Vec<String> =
            folders.iter().map(|folder| self.object(folder, MANIFEST)).collect();
        let heads = self.store.heads(&names)?;
        Ok(folders.into_iter().zip(heads).filter_map(|(f, head)| head.map(|_| f)).collect())
    }

    /// Returns the folders of checkpoints in the bucket in ascending order.
    fn folders(&self) -> Result<Vec<CheckpointFolder>> {
        let listed = self.store.list(&format!("{}/checkpoints", self.run))?;
        let mut folders: Vec<_> =
            listed.folders.iter().filter_map(|name| CheckpointFolder::parse(name)).collect();
        folders.sort_unstable();
        Ok(folders)
    }

    fn parent_of(&self, folder: &CheckpointFolder) -> Result<Option<CheckpointFolder>> {
        let here = self.local(folder);
        let parent = match here.join(MANIFEST).exists() {
            true => read_parent(&here)?,
            false => {
                let bytes = self.get(folder, MANIFEST, MOST_MANIFEST)?;
                Manifest::parse(&here.join(MANIFEST), &bytes)?.0.parent
            }
        };
        Ok(parent.and_then(|parent| CheckpointFolder::parse(&parent.folder)))
    }

    /// Removes a checkpoint from the bucket, its manifest first.
    fn remove(&self, folder: &CheckpointFolder) -> Result<()> {
        self.store.delete(&self.object(folder, MANIFEST))?;
        let mut open = vec![format!("{}/checkpoints/{}", self.run, folder.name)];
        while let Some(name) = open.pop() {
            let listing = self.store.list(&name)?;
            for object in &listing.objects {
                self.store.delete(&format!("{name}/{}", object.name))?;
            }
            open.extend(listing.folders.iter().map(|below| format!("{name}/{below}")));
        }
        Ok(())
    }

    fn get(&self, folder: &CheckpointFolder, file: &str, most: u64) -> Result<Bytes> {
        let object = self.object(folder, file);
        self.store.get_at_most(&object, most)?.ok_or_else(|| Error::Checkpoint {
            path: PathBuf::from(&object),
            problem: "the object is missing in the bucket".to_owned(),
        })
    }

    fn object(&self, folder: &CheckpointFolder, file: &str) -> String {
        format!("{}/checkpoints/{}/{file}", self.run, folder.name)
    }

    fn local(&self, folder: &CheckpointFolder) -> PathBuf {
        self.dir.path().join("checkpoints").join(&folder.name)
    }
}

fn read(path: &Path) -> Result<Bytes> {
    std::fs::read(path).map(Bytes::from).map_err(Error::io("cannot read the file", path))
}
