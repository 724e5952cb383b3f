//! The part of the contract that gives the rows of a training run to the publisher of a version.

use std::path::Path;

use zillion_device::Files;
use zillion_rows::RowSource;
use zillion_rows::layer::LayerManifest;

use crate::error::Result;

/// A source of rows for the publisher of a version. The rows are those of the tables of a training
/// run in progress, or those of a checkpoint.
pub trait Publishing: Send {
    /// Starts to list the keys of changed rows for each dirty epoch, so that
    /// [`Publishing::write_layer`] can write the changes since the end of the current epoch. The
    /// lists of the last `epochs` ended epochs are kept. Fewer lists are kept if together they
    /// would hold more keys than the table has rows.
    ///
    /// # Errors
    /// Returns an error if staged gradients are not applied yet.
    fn track_changes(&mut self, epochs: usize) -> Result<()>;

    /// Writes the files of one layer of a version into `folder`, which must exist. The layer has
    /// all rows, or the rows that changed since an epoch. The call does not end the current dirty
    /// epoch. The publisher must end the epoch before the next step, and use the number of this
    /// epoch for the next delta. Returns `None` if the changes since the epoch are not known. The
    /// publisher then writes a base or compares all rows (`zillion_rows::layer::difference`).
    ///
    /// # Errors
    /// Returns an error if staged gradients are not applied yet, if the epoch in `since` has not
    /// ended, or if a file cannot be written.
    fn write_layer(
        &mut self,
        since: Since,
        folder: &Path,
        files: &Files,
    ) -> Result<Option<LayerManifest>>;

    /// Writes the files of a layer with all rows straight to a registry, if the rows are elsewhere
    /// and their holders can reach the registry. Returns the manifest of the layer, whose files the
    /// registry then has. Returns `None` if the caller must use [`Publishing::write_layer`].
    ///
    /// # Errors
    /// Returns an error if staged gradients are not applied yet, or if the registry refuses a file.
    fn write_base(&mut self, _target: &LayerTarget) -> Result<Option<LayerManifest>> {
        Ok(None)
    }

    /// Ends the current dirty epoch and returns its number. The numbers of epochs increase. Rows
    /// that change later belong to the delta since this epoch.
    ///
    /// # Errors
    /// Returns an error if staged gradients are not applied yet.
    fn end_dirty_epoch(&mut self) -> Result<u32>;

    /// Returns a source of the rows as evaluation reads them, for the parity scores of a version.
    ///
    /// # Errors
    /// Returns an error if the rows cannot be opened.
    fn row_source(&mut self) -> Result<Box<dyn RowSource + '_>>;
}

/// The place of the files of a layer in a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerTarget {
    /// The URL of the registry's store.
    pub registry: String,
    /// The folder of the files in the store. A file is named by its hash (see
    /// `zillion_store::fan_out`).
    pub folder: String,
}

/// The rows that a layer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// The layer holds all rows of the tables.
    Base,
    /// The layer holds the rows that changed after the end of the epoch with this number, which
    /// [`Publishing::end_dirty_epoch`] has returned.
    Epoch(u32),
}
