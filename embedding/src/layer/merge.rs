//! Several layers as one: a linear merge in key order, the newer row first.

use std::path::Path;

use zillion_device::Files;
use zillion_feature::FeatureKey;

use super::part::Found;
use super::{Layer, LayerManifest, LayerWriter, Pace, part_count};
use crate::error::Result;
use crate::spec::TableLayout;

/// Merges `layers` (oldest first) and writes the result's files into `folder`. Where the oldest is a base,
/// `is_base`, tombstones have nothing left to hide and are dropped.
///
/// Memory: one part of the result, [`PART_BYTES`](super::PART_BYTES), and the pages of the inputs that the
/// merge is reading.
///
/// # Errors
/// Where the disk refuses.
pub fn merge_layers(
    files: &Files,
    folder: &Path,
    layouts: &[TableLayout],
    layers: &[&Layer],
    is_base: bool,
    pace: &mut dyn Pace,
) -> Result<LayerManifest> {
    let mut writer = LayerWriter::new(files, folder, pace);
    for (table, layout) in layouts.iter().enumerate() {
        // An upper bound of the rows: counting them would be another merge.
        let rows = layers.iter().map(|layer| layer.rows(table)).sum();
        writer.table(layout, part_count(rows, layout.width()))?;
        merge_table(&mut writer, table, layers, is_base)?;
    }
    writer.finish()
}

fn merge_table(
    writer: &mut LayerWriter<'_>,
    table: usize,
    layers: &[&Layer],
    is_base: bool,
) -> Result<()> {
    let mut heads: Vec<_> = layers.iter().map(|layer| layer.iter(table).peekable()).collect();
    loop {
        let keys = heads.iter_mut().filter_map(|head| head.peek().map(|&(key, _)| key));
        let Some(key) = keys.min() else { return Ok(()) };
        // The last of equal keys is the newest.
        let mut newest: Option<(FeatureKey, Found<'_>)> = None;
        for head in &mut heads {
            if let Some(row) = head.next_if(|&(k, _)| k == key) {
                newest = Some(row);
            }
        }
        match newest {
            Some((key, Found::Row(row))) => writer.push(key, Some(row.weights), row.count)?,
            Some((key, Found::Tombstone)) if !is_base => writer.push(key, None, 0)?,
            _ => {}
        }
    }
}
