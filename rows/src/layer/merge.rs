//! The merge of several layers of a version into one layer, in one pass in key order. If several
//! layers have a key, the entry of the newest layer is taken.

use std::path::Path;

use zillion_device::Files;
use zillion_feature::FeatureKey;

use super::last_uses::LastUses;
use super::part::Found;
use super::write::PIECE_ROWS;
use super::{Layer, LayerManifest, LayerWriter, Throttle};
use crate::error::{Error, Result};
use crate::layout::TableLayout;

/// Merges `layers` (oldest first) and writes the files of the result into `folder`. If the oldest
/// layer is a base (`is_base`), the result has no tombstones, because there is no older layer with
/// rows that they would remove.
///
/// In memory are one part of the result ([`PART_BYTES`](super::PART_BYTES)), and the pages of the
/// layers that the merge is reading.
///
/// # Errors
/// Returns [`Error::Stopped`] if `throttle` has ended the work, or an error if a file cannot be
/// written.
pub fn merge_layers(
    files: &Files,
    folder: &Path,
    layouts: &[TableLayout],
    layers: &[&Layer],
    is_base: bool,
    throttle: &mut dyn Throttle,
) -> Result<LayerManifest> {
    let mut writer = LayerWriter::new(files, folder, throttle);
    for (table, layout) in layouts.iter().enumerate() {
        // The number is an upper bound of the rows. An exact count would need another merge.
        let rows: u64 = layers.iter().map(|layer| layer.rows(table)).sum();
        let narrow = layers.iter().map(|layer| layer.narrow_rows(table)).sum();
        writer.table_of_rows(layout, rows - narrow, narrow)?;
        let uses = LastUses::of_rule(layout.hot, layers.iter().copied(), table);
        for (number, (key, found)) in merged(layers.iter().copied(), table).enumerate() {
            if number.is_multiple_of(PIECE_ROWS) && writer.is_stopped() {
                return Err(Error::Stopped);
            }
            match found {
                Found::Row(row) => match uses.of(key) {
                    Some(last) => writer.push_used(key, &row.weights, row.count, last)?,
                    None => writer.push(key, Some(&row.weights), row.count)?,
                },
                Found::Tombstone if !is_base => writer.push(key, None, 0)?,
                Found::Tombstone => {}
            }
        }
    }
    writer.finish()
}

/// Yields the entries of a table in several layers (oldest first), in key order. If several layers
/// have a key, only the entry of the newest one is yielded.
pub(super) fn merged<'a>(
    layers: impl IntoIterator<Item = &'a Layer>,
    table: usize,
) -> impl Iterator<Item = (FeatureKey, Found<'a>)> {
    let mut heads: Vec<_> = layers.into_iter().map(|layer| layer.iter(table).peekable()).collect();
    std::iter::from_fn(move || {
        let keys = heads.iter_mut().filter_map(|head| head.peek().map(|&(key, _)| key));
        let key = keys.min()?;
        // The last of equal keys is the newest.
        let mut newest = None;
        for head in &mut heads {
            newest = head.next_if(|&(k, _)| k == key).or(newest);
        }
        newest
    })
}
