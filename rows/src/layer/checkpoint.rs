//! Making a base out of a checkpoint's parts, which are sorted by key already: no table is loaded.

use std::path::Path;

use zillion_device::{Files, Workers};
use zillion_feature::FeatureKey;

use super::{LayerManifest, LayerWriter, Throttle};
use crate::error::Result;
use crate::part::{Need, RowPart, TableParts, listed_parts, open_narrow, open_rows};
use crate::shape::RowShape;
use crate::spec::TableSpec;

/// Writes every row of the checkpoint in `checkpoint`, whose manifest lists `parts`, as a layer
/// into `folder`: the bytes that the live tables would have written as a base when the checkpoint
/// was taken. Optimizers do not matter: specs need to agree in names and dimensions.
///
/// All parts are hashed and checked first, shared out to the workers and without pauses. Memory:
/// one part of the layer, and the pages of the checkpoint that are read.
///
/// # Errors
/// [`Error::Part`](crate::Error::Part) names the file and what is wrong with it, or the disk
/// refuses.
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
    let borrowed: Vec<&RowShape> = shapes.iter().collect();
    let listed = listed_parts(&borrowed, parts)?;
    let opened = open_rows(workers, checkpoint, &borrowed, &listed, Need::Weights)?;
    let narrow = open_narrow(workers, checkpoint, &borrowed, &listed, Need::Weights)?;
    let mut writer = LayerWriter::new(files, folder, throttle);
    for ((shape, parts), narrow) in shapes.iter().zip(&opened).zip(&narrow) {
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
            writer.push(key, Some(&weights), part.stored(row).meta.count)?;
        }
    }
    writer.finish()
}

/// Yields the rows of parts in key order.
fn rows_of(parts: &[RowPart]) -> impl Iterator<Item = (FeatureKey, &RowPart, usize)> {
    parts.iter().flat_map(|part| (0..part.len()).map(move |row| (part.key(row), part, row)))
}
