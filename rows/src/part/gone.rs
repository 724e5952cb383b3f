//! The files of tombstones: the keys whose rows were evicted since the checkpoint below this one.
//!
//! Each part of changed rows is written with one such file, which has the same slots. A key is in
//! at most one of the two files: a key that was evicted and got a row again is not a tombstone.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow_array::UInt64Array;
use arrow_buffer::ScalarBuffer;
use arrow_schema::{DataType, Field};
use zillion_device::Files;
use zillion_feature::FeatureKey;

use super::cut::Place;
use super::open::Opening;
use super::write::write_file;
use super::{GONE, PartInfo};
use crate::error::Result;
use crate::shape::RowShape;

/// A verified and mapped file of evicted keys in ascending order.
#[derive(Debug)]
pub(super) struct StoredGone {
    pub(super) slots: Range<usize>,
    keys: ScalarBuffer<u64>,
}

impl StoredGone {
    /// Returns the keys whose slots lie in `slots`.
    pub(super) fn in_slots(&self, slots: &Range<usize>) -> &[u64] {
        let before = |slot: usize| self.keys.partition_point(|&key| FeatureKey(key).slot() < slot);
        &self.keys[before(slots.start)..before(slots.end)]
    }
}

fn gone_fields() -> Vec<Field> {
    vec![Field::new("key", DataType::UInt64, false)]
}

/// Writes and syncs one file of evicted keys. The keys must be in ascending order.
pub fn write_gone(
    files: &Files,
    folder: &Path,
    shape: &RowShape,
    place: Place,
    keys: Vec<u64>,
) -> Result<PartInfo> {
    write_file(files, folder, shape, (place, GONE), (gone_fields(), None), || {
        Ok(vec![Arc::new(UInt64Array::from(keys))])
    })
}

impl Opening<'_> {
    pub(super) fn open_gone(&self, info: &PartInfo, slots: &Range<usize>) -> Result<StoredGone> {
        let gone = self.open_plain(info, slots, &gone_fields(), |file| {
            Ok(StoredGone { slots: slots.clone(), keys: file.columns().numbers("key")? })
        })?;
        self.check_keys(&gone.keys, slots, info)?;
        Ok(gone)
    }
}
