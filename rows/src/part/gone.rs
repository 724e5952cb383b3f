//! Files of tombstones: the keys whose rows were evicted since the checkpoint below this one.
//!
//! These files lie beside the parts of the changed rows, one file for each part, with the same
//! slots. A key is in at most one of the two files: an evicted key that got a row again is not a
//! tombstone.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{RecordBatch, UInt64Array};
use arrow_buffer::ScalarBuffer;
use arrow_schema::{DataType, Field, Schema};
use zillion_device::Files;
use zillion_feature::FeatureKey;

use super::open::Opening;
use super::read::REMEDY;
use super::write::{metadata, write_file};
use super::{GONE, PartInfo, file_name};
use crate::error::Result;
use crate::shape::RowShape;

/// A verified and mapped file of keys in ascending order.
#[derive(Debug)]
pub(super) struct StoredGone {
    keys: ScalarBuffer<u64>,
}

impl StoredGone {
    /// Returns the keys that lie in `slots`.
    pub(super) fn in_slots(&self, slots: &Range<usize>) -> &[u64] {
        let before = |slot: usize| self.keys.partition_point(|&key| FeatureKey(key).slot() < slot);
        &self.keys[before(slots.start)..before(slots.end)]
    }
}

fn gone_fields() -> Vec<Field> {
    vec![Field::new("key", DataType::UInt64, false)]
}

/// Writes and syncs one file of keys, which must be in ascending order.
pub fn write_gone(
    files: &Files,
    folder: &Path,
    shape: &RowShape,
    (part, parts): (usize, usize),
    keys: Vec<u64>,
) -> Result<PartInfo> {
    let schema = Schema::new(gone_fields()).with_metadata(metadata(shape, part, parts));
    let schema = Arc::new(schema);
    let rows = keys.len() as u64;
    write_file(files, folder, file_name(shape.name(), GONE, part), rows, &schema, || {
        RecordBatch::try_new(schema.clone(), vec![Arc::new(UInt64Array::from(keys))])
    })
}

impl Opening<'_> {
    pub(super) fn open_gone(&self, info: &PartInfo, slots: &Range<usize>) -> Result<StoredGone> {
        let buffer = self.verified(info)?;
        let file = self.arrow(&buffer)?;
        let (expected, found) = (gone_fields(), file.schema.fields());
        if found.len() != expected.len() || found.iter().zip(&expected).any(|(a, b)| **a != *b) {
            return self.refuse(format!(
                "the file does not have the one column `key` of evicted keys; {REMEDY}"
            ));
        }
        self.check_metadata(&file.schema, slots)?;
        let gone =
            self.columns(&file, |columns| Ok(StoredGone { keys: columns.numbers("key")? }))?;
        self.check_keys(&gone.keys, slots, info)?;
        Ok(gone)
    }
}
