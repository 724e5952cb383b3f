//! The warming of a version: before it answers its first request, the rows of its hot keys are read
//! once, so that their pages and their entries in the directory are in memory.
//!
//! A layer is warmed once. A delta costs as much as its own list, because its parent is loaded.
//! With copies of rows in memory, there is nothing to warm.

use zillion_feature::FeatureKey;
use zillion_rows::RowSource as _;
use zillion_rows::layer::{Layer, LayerSource, Throttle};

use crate::error::Result;

/// The number of rows that are read between two pauses. Each is some page faults.
const PIECE: usize = 64;

/// Reads the rows of the hot keys of all layers that are not in `known`, the hottest ones first in
/// each table. Returns the number of rows.
///
/// # Errors
/// Returns an error if a table of the layers does not exist, which is a defect.
pub(crate) fn warm(rows: &LayerSource, known: &[Layer], pace: &mut dyn Throttle) -> Result<u64> {
    let is_known = |layer: &Layer| known.iter().any(|one| one.is_same(layer));
    let new = rows.layers().iter().filter(|layer| !layer.has_records() && !is_known(layer));
    let (mut count, mut floats) = (0, Vec::new());
    let mut keys: Vec<FeatureKey> = Vec::new();
    for layer in new {
        let own = rows.of_layers(vec![layer.clone()]);
        for (table, layout) in rows.tables().iter().enumerate() {
            let list = layer.hot(table).map_or(&[][..], |list| list.keys());
            for piece in list.chunks(PIECE) {
                keys.clear();
                keys.extend(piece.iter().map(|hot| hot.key));
                floats.resize(layout.stride * keys.len(), 0.0);
                let missing = own.read_rows(table, &keys, &mut floats)?;
                count += keys.len() as u64 - missing;
                pace.piece();
            }
        }
    }
    Ok(count)
}
