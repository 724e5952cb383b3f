//! A base from a checkpoint's parts, which are sorted by key already: no table is loaded.

use std::path::Path;

use zillion_device::{Files, Workers};

use super::{LayerManifest, LayerWriter, Pace, part_count};
use crate::error::Result;
use crate::part::{Need, TableParts, open_rows};
use crate::set::listed_parts;
use crate::shape::TableShape;
use crate::spec::TableSpec;

/// Writes every row of the checkpoint in `checkpoint`, whose manifest lists `parts`, as a layer into
/// `folder`: the bytes that [`TableSet::write_base`](crate::TableSet::write_base) would have written when the
/// checkpoint was taken. Optimizers do not matter: specs need to agree in names and dimensions.
///
/// All parts are hashed and checked first, shared out to the workers and without pauses. Memory: one part of the
/// layer, and the pages of the checkpoint that are read.
///
/// # Errors
/// [`Error::Part`](crate::Error::Part) names the file and what is wrong with it, or the disk refuses.
pub fn layer_of_checkpoint(
    workers: &Workers,
    checkpoint: &Path,
    specs: &[TableSpec],
    parts: &[TableParts],
    files: &Files,
    folder: &Path,
    pace: &mut dyn Pace,
) -> Result<LayerManifest> {
    let shapes: Vec<TableShape> =
        specs.iter().cloned().map(TableShape::new).collect::<Result<_>>()?;
    let borrowed: Vec<&TableShape> = shapes.iter().collect();
    let listed = listed_parts(&borrowed, parts)?;
    let opened = open_rows(workers, checkpoint, &borrowed, &listed, Need::Weights)?;
    let mut writer = LayerWriter::new(files, folder, pace);
    for (shape, parts) in shapes.iter().zip(opened) {
        let rows: usize = parts.iter().map(|part| part.len()).sum();
        writer.table(&shape.layout, part_count(rows as u64, shape.width))?;
        for part in &parts {
            for row in 0..part.len() {
                let weights = part.weights(row).to_floats();
                writer.push(part.key(row), Some(&weights), part.stored(row).meta.count)?;
            }
        }
    }
    writer.finish()
}
