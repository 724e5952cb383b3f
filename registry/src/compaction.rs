//! Bases that are made from the layers of a chain, and not from tables.
//!
//! A chain of many deltas costs readers more and more. Its publisher can merge the layers of a
//! version to one layer with all rows ([`Cache::merge_chain`](crate::Cache::merge_chain)), while
//! it publishes further deltas. The merged layer is then published as a base that *repeats* the
//! version: it has the same rows, parameters, parity rows and origin, and
//! [`Origin::compacts`](crate::Origin::compacts) names the version. The next delta stands on this
//! base, and has all changes since the repeated version.
//!
//! A base that repeats a version is a version like any other, and readers of a chain do not treat
//! it in another way. But it has no state of its own:
//!
//! * a reader that follows the newest version takes the one before it, because the repeated state
//!   is older;
//! * if the repeated version is in quarantine, the base is too.

use std::path::Path;

use bytes::Bytes;
use zillion_rows::layer::{LayerManifest, Throttle};

use crate::error::{Error, Result};
use crate::model::Model;
use crate::origin::Origin;
use crate::reference::{ITEM_DELTA, ITEMS, VersionFile, VersionId};
use crate::version::{VersionLayer, VersionManifest};

/// The number of files that are written between two looks at whether the work must end.
const FILES_AT_ONCE: usize = 16;

impl Model {
    /// Writes the files of a layer in `folder` into the registry, for
    /// [`Model::publish_compaction`]. Until a manifest names the files, a collection removes those
    /// that are older than its grace.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, if the store fails, or if `pace` has ended the
    /// work.
    pub fn upload_layer(
        &self,
        layer: &LayerManifest,
        folder: &Path,
        pace: &mut dyn Throttle,
    ) -> Result<()> {
        let mut objects = self.layer_objects(layer, folder)?.into_iter().peekable();
        while objects.peek().is_some() {
            if pace.is_stopped() {
                return Err(zillion_rows::Error::Stopped.into());
            }
            self.store.put_all(objects.by_ref().take(FILES_AT_ONCE).collect())?;
            pace.waited();
        }
        Ok(())
    }

    /// Publishes a base that repeats the version `repeated`, given that `known` was published.
    /// `layer` has all rows of that version, and the registry has the files of the layer. `items`
    /// are the bytes of the whole items of that version, if it has only a difference of them.
    ///
    /// # Errors
    /// Returns an error if only one of the items and their difference is given,
    /// [`Error::File`](crate::Error::File) for a file that the registry does not have, or
    /// the errors of [`Model::publish`].
    pub fn publish_compaction(
        &self,
        known: VersionId,
        repeated: &VersionManifest,
        layer: LayerManifest,
        items: Option<Vec<u8>>,
    ) -> Result<VersionManifest> {
        let has_delta = repeated.items.as_ref().is_some_and(|items| items.kind == ITEM_DELTA);
        if has_delta != items.is_some() {
            return Err(Error::Refused(format!(
                "a base that repeats version {} needs the whole items if, and only if, the version \
                 has a difference of them",
                repeated.version
            )));
        }
        let files = layer.files().map(|file| (file.name(), file.clone()));
        let files = files.chain(repeated.own_files());
        let files: Vec<_> =
            files.map(|(name, file)| (repeated.version, name, file.bytes)).collect();
        self.check_some_files(repeated.version, &files)?;
        let items = match items {
            None => repeated.items.clone(),
            Some(bytes) => {
                let file = VersionFile::of(ITEMS, &bytes);
                let object = (self.file_object(&file.name()), Bytes::from(bytes));
                self.store.put_all(vec![object])?;
                Some(file)
            }
        };
        let version = VersionId(self.versions.next(self.versions.last_since(known.0)?)?);
        let origin = Origin { compacts: Some(repeated.version), ..repeated.origin.clone() };
        self.create_version(VersionManifest {
            version,
            parent: None,
            published_ms: self.now_ms(),
            layer: VersionLayer::Listed(layer),
            items,
            origin,
            signatures: Vec::new(),
            ..repeated.clone()
        })
    }
}
