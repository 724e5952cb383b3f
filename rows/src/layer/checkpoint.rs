//! The conversion of a checkpoint into a base. The parts of a checkpoint are already sorted by key,
//! so no table has to be loaded.

use std::path::Path;

use zillion_device::{Files, Workers};
use zillion_feature::FeatureKey;

use super::{LayerManifest, LayerWriter, Throttle};
use crate::error::Result;
use crate::part::{RowPart, TableParts, open_weights};
use crate::shape::RowShape;
use crate::spec::TableSpec;

/// Writes every row of the checkpoint in the folder `checkpoint` as a base into `folder`. `parts`
/// are the entries of the checkpoint's manifest. The base has the same bytes as a base that the
/// live tables would have written at the time of the checkpoint. The specs must agree with the
/// checkpoint in names and dimensions; their optimizers do not matter.
///
/// The workers first hash and check all parts, without pauses of the throttle. In memory are one
/// part of the layer, and the pages of the checkpoint that are being read.
///
/// # Errors
/// Returns [`Error::Part`](crate::Error::Part) with the file and the fault if a part is damaged or
/// does not fit the specs, and an error if a file cannot be written.
pub fn layer_of_checkpoint(
    workers: &Workers,
    checkpoint: &Path,
    specs: &[TableSpec],
    parts: &[TableParts],
    files: &Files,
    folder: &Path,
    throttle: &mut dyn Throttle,
) -> Result<LayerManifest> {
    let shapes: Vec<RowShape> = specs.iter().cloned().map(RowShape::new).collect::<Result<_>>()?;
    let opened = open_weights(workers, checkpoint, &shapes, parts)?;
    let mut writer = LayerWriter::new(files, folder, throttle);
    for (shape, (parts, narrow)) in shapes.iter().zip(&opened) {
        let rows = |parts: &[RowPart]| parts.iter().map(|part| part.len() as u64).sum();
        writer.table_of_rows(&shape.layout, rows(parts), rows(narrow))?;
        let (mut parts, mut narrow) = (rows_of(parts).peekable(), rows_of(narrow).peekable());
        loop {
            let is_narrow = match (parts.peek(), narrow.peek()) {
                (Some((full, ..)), Some((narrow, ..))) => narrow < full,
                (full, narrow) => full.is_none() && narrow.is_some(),
            };
            let next = if is_narrow { narrow.next() } else { parts.next() };
            let Some((key, part, row)) = next else { break };
            let weights = part.weights(row).to_floats();
            let meta = part.stored(row).meta;
            writer.push_used(key, &weights, meta.count, meta.last_step)?;
        }
    }
    writer.finish()
}

/// Yields the rows of parts in key order: the key, the part, and the row's index in the part.
fn rows_of(parts: &[RowPart]) -> impl Iterator<Item = (FeatureKey, &RowPart, usize)> {
    parts.iter().flat_map(|part| (0..part.len()).map(move |row| (part.key(row), part, row)))
}
