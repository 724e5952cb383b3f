//! The implementation of [`Publishing`] for local tables.

use std::path::Path;

use zillion_device::Files;
use zillion_rows::RowSource;
#[cfg(feature = "server")]
use zillion_rows::layer::LayerCut;
use zillion_rows::layer::{LayerManifest, Unthrottled};

use super::LocalClient;
use crate::client::{Publishing, Since};
use crate::error::Result;
use crate::pulled::PulledRows;

#[cfg(feature = "server")]
impl LocalClient {
    /// Writes the own parts of a base of several servers.
    pub(crate) fn write_owned_base(
        &self,
        cuts: &[LayerCut],
        folder: &Path,
        files: &Files,
    ) -> Result<LayerManifest> {
        self.check_settled("write_base")?;
        let pace = &mut Unthrottled;
        Ok(self.tables.write_owned_base(&self.workers, cuts, files, folder, pace)?)
    }
}

impl Publishing for LocalClient {
    fn track_changes(&mut self, epochs: usize) -> Result<()> {
        self.check_settled("track_changes")?;
        Ok(self.tables.track_changes(&self.workers, epochs)?)
    }

    fn write_layer(
        &mut self,
        since: Since,
        folder: &Path,
        files: &Files,
    ) -> Result<Option<LayerManifest>> {
        self.check_settled("write_layer")?;
        self.settle()?;
        let (tables, workers, pace) = (&self.tables, &self.workers, &mut Unthrottled);
        Ok(match since {
            Since::Base => Some(tables.write_base(workers, files, folder, pace)?),
            Since::Epoch(epoch) => tables.write_delta(workers, epoch, files, folder, pace)?,
        })
    }

    fn end_dirty_epoch(&mut self) -> Result<u32> {
        self.check_settled("end_dirty_epoch")?;
        Ok(self.tables.advance_dirty_epoch())
    }

    fn row_source(&mut self) -> Result<Box<dyn RowSource + '_>> {
        Ok(Box::new(PulledRows::new(self)))
    }
}
