//! The rows of open layers as records in memory.
//!
//! The layers of a version are shared with other versions, and so are their records. While a layer
//! of merged rows replaces others, the records of both are in memory, until no version has the old
//! ones.

use std::ops::Range;
use std::sync::Arc;

use zillion_rows::layer::{Layer, Throttle};

use super::{Cache, run_name};
use crate::error::Result;
use crate::version::VersionManifest;

impl Cache {
    /// Makes lookups of later versions read records in memory, or the mapped files.
    pub fn set_row_records(&mut self, has_records: bool) {
        self.has_records = has_records;
    }

    /// Returns the open layer of a run of versions with its records, if the cache makes them.
    ///
    /// # Errors
    /// Returns an error if the machine has too little memory for the records.
    pub(super) fn with_records(
        &mut self,
        layer: Layer,
        chain: &[Arc<VersionManifest>],
        run: &Range<usize>,
        pace: &mut dyn Throttle,
    ) -> Result<Layer> {
        if !self.has_records || layer.has_records() {
            return Ok(layer);
        }
        let layer = layer.with_records(pace)?;
        let name = match run.len() {
            1 => chain[run.start].chain.clone(),
            _ => run_name(chain, run),
        };
        self.open.insert(name, layer.clone());
        Ok(layer)
    }
}
