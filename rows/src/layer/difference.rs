//! The delta between two states of the tables, found by comparing every row. It is used if the
//! tables have not recorded their changes.

use std::path::Path;

use zillion_device::Files;
use zillion_feature::FeatureKey;

use super::last_uses::LastUses;
use super::merge::merged;
use super::part::{Found, LayerRow};
use super::write::PIECE_ROWS;
use super::{Layer, LayerManifest, LayerWriter, Throttle};
use crate::error::Result;
use crate::layout::TableLayout;

/// Writes the delta that leads from the state `old` to the state `new`. `old` is a base and its
/// deltas, oldest first, and `new` is a layer with every row. The delta has the rows that are new
/// or that differ in their count or in any bit of their weights, and tombstones for the removed
/// keys.
///
/// The function reads all layers twice. The first pass counts the rows of the delta, because
/// without the exact count a small delta would be divided into many small files. In memory is one
/// part of the result.
///
/// # Errors
/// Returns an error if a file cannot be written.
pub fn difference(
    files: &Files,
    folder: &Path,
    layouts: &[TableLayout],
    old: &[&Layer],
    new: &Layer,
    throttle: &mut dyn Throttle,
) -> Result<LayerManifest> {
    // The counts of full rows and tombstones, and of narrow rows.
    let mut rows = vec![(0, 0); layouts.len()];
    for (table, (full, narrow)) in rows.iter_mut().enumerate() {
        let width = layouts[table].width();
        for (compared, change) in compare(old, new, table).enumerate() {
            match change {
                Some((_, Found::Row(row))) if row.weights.len() < width => *narrow += 1,
                Some(_) => *full += 1,
                None => {}
            }
            if compared.is_multiple_of(PIECE_ROWS) {
                throttle.piece();
            }
        }
    }
    let mut writer = LayerWriter::new(files, folder, throttle);
    for (table, layout) in layouts.iter().enumerate() {
        writer.table_of_rows(layout, rows[table].0, rows[table].1)?;
        let uses = LastUses::of_rule(layout.hot, [new], table);
        for (compared, change) in compare(old, new, table).enumerate() {
            match change {
                Some((key, Found::Row(row))) => match uses.of(key) {
                    Some(last) => writer.push_used(key, &row.weights, row.count, last)?,
                    None => writer.push(key, Some(&row.weights), row.count)?,
                },
                Some((key, Found::Tombstone)) => writer.push(key, None, 0)?,
                None if compared.is_multiple_of(PIECE_ROWS) => writer.pause(),
                None => {}
            }
        }
    }
    writer.finish()
}

/// Compares both states in key order. Yields one item for each key that is in at least one state:
/// the change of the key, or `None` if the key has the same row in both states.
fn compare<'a>(
    old: &[&'a Layer],
    new: &'a Layer,
    table: usize,
) -> impl Iterator<Item = Option<(FeatureKey, Found<'a>)>> {
    let rows = |(key, found)| match found {
        Found::Row(row) => Some((key, row)),
        Found::Tombstone => None,
    };
    let mut before = merged(old.iter().copied(), table).filter_map(rows).peekable();
    let mut now = new.iter(table).filter_map(rows).peekable();
    std::iter::from_fn(move || {
        let keys = before.peek().map(|&(key, _)| key).into_iter();
        let key = keys.chain(now.peek().map(|&(key, _)| key)).min()?;
        let (before, now) = (before.next_if(|r| r.0 == key), now.next_if(|r| r.0 == key));
        Some(match (before, now) {
            (Some((_, before)), Some((_, now))) if is_same(&before, &now) => None,
            (_, Some((key, now))) => Some((key, Found::Row(now))),
            (_, None) => Some((key, Found::Tombstone)),
        })
    })
}

/// Returns whether two rows have the same count and the same bits in all weights. So 0.0 and -0.0
/// differ.
fn is_same(a: &LayerRow<'_>, b: &LayerRow<'_>) -> bool {
    let bits = bytemuck::cast_slice::<f32, u32>;
    a.count == b.count && bits(&a.weights) == bits(&b.weights)
}
