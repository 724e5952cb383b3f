//! The narrow rows of a checkpoint, which are stored in parts of their own.
//!
//! A table whose rows grow is written whole in every checkpoint. A row may become full between two
//! checkpoints, and a checkpoint of changes would then have to remove its narrow row and add its
//! full row. So the parts of narrow rows are never merged with those of a checkpoint below.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use zillion_device::Workers;

use super::chain::RowPart;
use super::open::Opening;
use super::read::{Need, listed_files, open_files};
use super::{NARROW, TableParts};
use crate::error::{Error, Result};
use crate::shape::RowShape;

/// Opens and verifies the narrow rows of the tables that have files of them. `tables[i]` is the
/// entry of the table with the shape `shapes[i]`, and only its files with slots of `owned[i]` are
/// opened. This function does not check whether a key has
/// both a full row and a narrow row; restoring the table finds that.
pub fn open_narrow(
    workers: &Workers,
    folder: &Path,
    shapes: &[&RowShape],
    tables: &[&TableParts],
    owned: &[Range<usize>],
    need: Need,
) -> Result<Vec<Vec<RowPart>>> {
    let listed = |table: usize| tables[table].narrow.as_ref();
    let files = listed_files(folder, shapes, owned, NARROW, listed)?;
    for (shape, table) in shapes.iter().zip(tables) {
        if shape.narrow_row.is_some() != table.narrow.is_some() {
            let reason = match table.narrow {
                Some(_) => {
                    "the checkpoint has narrow rows, but the job's table does not have `grow`"
                }
                None => "the job's table has `grow`, but the checkpoint has only full rows",
            };
            let reason = format!("{reason}; use the job that wrote the checkpoint");
            return Err(Error::mismatch(shape.name(), reason));
        }
    }
    open_files(workers, files, |table, info, slots| {
        let shape = shapes[table].narrow_row.as_deref().unwrap_or(shapes[table]);
        let mut part = Opening { path: folder.join(&info.file), shape, need }.open(info, slots)?;
        part.is_narrow = true;
        Ok(RowPart::of_file(Arc::new(part)))
    })
}
