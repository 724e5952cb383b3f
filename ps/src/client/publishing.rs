//! Rows on their way into a version of the model.

use std::path::Path;

use zillion_device::Files;
use zillion_rows::RowSource;
use zillion_rows::layer::LayerManifest;

use crate::error::Result;

/// The rows of one moment of a training, as the publisher of a version reads them: live tables, or
/// the tables of a checkpoint.
pub trait Publishing: Send {
    /// Starts to list the keys whose rows change, by dirty epoch, so that
    /// [`Publishing::write_layer`] can write what changed since the end of the current epoch. The
    /// lists of `epochs` past epochs are kept, or fewer where they would hold more keys than the
    /// table has rows.
    ///
    /// # Errors
    /// While gradients wait to be applied.
    fn track_changes(&mut self, epochs: usize) -> Result<()>;

    /// Writes the files of one layer of a version into `folder`, which exists: all rows as they
    /// are, or those that changed. The dirty epoch goes on: the publisher ends it before the next
    /// step, and keeps its number for the next delta. Returns `None` where the changes since then
    /// are not known, and the publisher then writes a base or compares all rows
    /// (`zillion_rows::layer::difference`).
    ///
    /// # Errors
    /// While gradients wait to be applied; for an epoch that has not ended; where the disk refuses.
    fn write_layer(
        &mut self,
        since: Since,
        folder: &Path,
        files: &Files,
    ) -> Result<Option<LayerManifest>>;

    /// Ends the dirty epoch and returns its number, which is above those before: rows that change
    /// from now on belong to the delta since then.
    ///
    /// # Errors
    /// While gradients wait to be applied.
    fn end_dirty_epoch(&mut self) -> Result<u32>;

    /// Returns the rows as evaluation reads them, for the scores that a version carries.
    ///
    /// # Errors
    /// Where the rows cannot be opened.
    fn row_source(&mut self) -> Result<Box<dyn RowSource + '_>>;
}

/// The rows that a layer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// All rows of the tables.
    Base,
    /// The rows that changed after an epoch, which [`Publishing::end_dirty_epoch`] has ended.
    Epoch(u32),
}
