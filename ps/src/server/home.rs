//! The place of a server's files: a folder that servers and trainers share, or a bucket.
//!
//! In a folder, the server writes the files of a checkpoint where they stay. For a bucket, it
//! writes each file into its scratch folder and sends it from there. Before a restore, it fetches
//! the files with its own slots.
//!
//! # Security
//! A client names only objects and folders below the store, and buckets of registries. No client
//! can name another folder of the server's machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use zillion_device::Files;
use zillion_store::{Error as StoreError, Store, is_bucket};

use super::scratch::Scratch;
use super::uploads::{Naming, Uploads};
use crate::error::{Error, Result, start_error};
use crate::folder::{StoreFolder, check_plain};
use crate::wire::BaseTarget;

/// The store of a server.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Folder(StoreFolder),
    Bucket(Store),
}

impl Place {
    /// Opens the store of a server.
    ///
    /// # Errors
    /// Returns an error if there is no such folder, or if the bucket cannot be used.
    pub(super) fn open(store: &Path, files: &Files) -> Result<Self> {
        let url = store.to_string_lossy();
        match is_bucket(&url) {
            false => StoreFolder::open(store).map(Self::Folder),
            true => {
                let opened = Store::open(&url, files.clone());
                opened.map(Self::Bucket).map_err(|e| start_error(e.to_string()))
            }
        }
    }
}

/// The files of a server: its store, and its scratch folder.
#[derive(Clone, Debug)]
pub(super) struct Home {
    pub(super) place: Place,
    pub(super) files: Files,
    pub(super) scratch: Arc<Scratch>,
    /// The registry of the last base, which stays open for the next one.
    registry: Option<(BaseTarget, Store)>,
}

impl Home {
    pub(super) fn new(place: Place, files: Files, scratch: Scratch) -> Self {
        Self { place, files, scratch: Arc::new(scratch), registry: None }
    }

    /// Returns the folder into which the files of a checkpoint are written, and their writer. The
    /// checkpoint belongs into the folder `name` of the store. For a bucket, also returns the
    /// uploads of the files.
    pub(super) fn begin_checkpoint(
        &mut self,
        call: &'static str,
        name: &str,
    ) -> Result<(PathBuf, Files, Option<Uploads>)> {
        match &self.place {
            Place::Folder(folder) => Ok((folder.path(call, name)?, self.files.clone(), None)),
            Place::Bucket(store) => {
                check_plain(call, name)?;
                let folder = self.scratch.begin(CHECKPOINT)?;
                let uploads = Uploads::begin(store, &folder, Naming::Below(name.to_owned()))?;
                let files = self.files.scratch().delivering(uploads.delivery());
                Ok((folder, files, Some(uploads)))
            }
        }
    }

    /// Returns whether the store is a bucket.
    pub(super) fn is_bucket(&self) -> bool {
        matches!(self.place, Place::Bucket(_))
    }

    /// Returns the local folder with the files of a folder of the store.
    pub(super) fn folder_of(&self, call: &'static str, name: &str) -> Result<PathBuf> {
        match &self.place {
            Place::Folder(folder) => folder.path(call, name),
            Place::Bucket(_) => {
                check_plain(call, name)?;
                // The names of folders can be long and deep.
                let hash = blake3::hash(name.as_bytes()).to_hex();
                Ok(self.scratch.path(RESTORE).join(&hash[..32]))
            }
        }
    }

    /// Removes the files that were fetched for a restore.
    pub(super) fn drop_fetched(&self) {
        if self.is_bucket() {
            self.scratch.end(RESTORE);
        }
    }

    /// Returns the folder into which the files of a base are written, their writer, and their
    /// uploads to the registry.
    pub(super) fn begin_base(
        &mut self,
        call: &'static str,
        target: &BaseTarget,
    ) -> Result<(PathBuf, Files, Uploads)> {
        check_plain(call, &target.folder)?;
        let store = self.registry(call, target)?;
        let folder = self.scratch.begin(BASE)?;
        let uploads = Uploads::begin(&store, &folder, Naming::ByHash(target.folder.clone()))?;
        let files = self.files.scratch().delivering(uploads.delivery());
        Ok((folder, files, uploads))
    }

    /// Opens the registry of a base.
    fn registry(&mut self, call: &'static str, target: &BaseTarget) -> Result<Store> {
        if let Some((open, store)) = &self.registry
            && open == target
        {
            return Ok(store.clone());
        }
        let files = self.files.clone();
        let opened = match (&self.place, target.is_bucket) {
            (_, true) if is_bucket(&target.registry) => Store::open(&target.registry, files),
            (Place::Folder(folder), false) => {
                let path = folder.path(call, &target.registry)?;
                Store::create_at(&path.to_string_lossy(), files)
            }
            _ => {
                let shown: String = target.registry.chars().take(200).collect();
                let reason = format!(
                    "`{shown}` is neither a bucket nor a folder below the store of the servers; \
                     publish to another registry"
                );
                return Err(Error::Argument { call, reason });
            }
        };
        let store = opened.map_err(|e| store_error(call, &e))?;
        self.registry = Some((target.clone(), store.clone()));
        Ok(store)
    }
}

/// The folder of a checkpoint on its way to the store, in the scratch folder.
pub(super) const CHECKPOINT: &str = "checkpoint";
/// The folder of a base on its way to the registry.
pub(super) const BASE: &str = "base";
/// The folder of a layer on its way to the publisher.
pub(super) const LAYER: &str = "layer";
/// The folder of the files of a checkpoint that is being restored.
pub(super) const RESTORE: &str = "restore";

/// Converts an error of a store.
pub(super) fn store_error(call: &'static str, error: &StoreError) -> Error {
    Error::Argument { call, reason: error.to_string() }
}
