//! The parts of a checkpoint as a [`RowSource`]. The parts are mapped, verified, and searched
//! without a copy.

use std::path::Path;

use zillion_device::Workers;
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, TableId, TablePlan, TableRows};

use super::{ALL_SLOTS, Need, RowPart, TableParts, listed_parts, open_narrow, open_rows};
use crate::error::Result;
use crate::layout::TableLayout;
use crate::shape::RowShape;
use crate::source::{LookupReport, RowSource, lookup_tables};
use crate::spec::TableSpec;

/// A source of the rows of a checkpoint, which reads the mapped files. An unknown key reads the row
/// that its table declares.
///
/// The specs must agree with the checkpoint in names and dimensions; their optimizers do not
/// matter.
#[derive(Debug)]
pub struct PartSource {
    layouts: Vec<TableLayout>,
    tables: Vec<StoredTable>,
}

#[derive(Debug)]
struct StoredTable {
    shape: RowShape,
    /// The parts of full rows in slot order.
    parts: Vec<RowPart>,
    /// The parts of narrow rows in slot order; empty if all rows are full.
    narrow: Vec<RowPart>,
}

impl PartSource {
    /// Opens the checkpoint in `folder`, whose manifest lists `parts`. The workers share the work
    /// of hashing and checking the parts.
    ///
    /// # Errors
    /// Returns [`Error::Part`](crate::Error::Part) with the file and the fault if a part is damaged
    /// or does not fit the specs.
    pub fn open(
        workers: &Workers,
        folder: &Path,
        specs: Vec<TableSpec>,
        parts: &[TableParts],
    ) -> Result<Self> {
        let shapes: Vec<RowShape> = specs.into_iter().map(RowShape::new).collect::<Result<_>>()?;
        let opened = open_weights(workers, folder, &shapes, parts)?;
        Ok(Self {
            layouts: shapes.iter().map(|s| s.layout.clone()).collect(),
            tables: shapes
                .into_iter()
                .zip(opened)
                .map(|(shape, (parts, narrow))| StoredTable { shape, parts, narrow })
                .collect(),
        })
    }
}

/// Opens the full rows and the narrow rows of each table, without their optimizer state.
pub(crate) fn open_weights(
    workers: &Workers,
    folder: &Path,
    shapes: &[RowShape],
    parts: &[TableParts],
) -> Result<Vec<(Vec<RowPart>, Vec<RowPart>)>> {
    let shapes: Vec<&RowShape> = shapes.iter().collect();
    let listed = listed_parts(&shapes, parts)?;
    let owned = vec![ALL_SLOTS; shapes.len()];
    let full = open_rows(workers, folder, &shapes, &listed, &owned, Need::Weights)?;
    let narrow = open_narrow(workers, folder, &shapes, &listed, &owned, Need::Weights)?;
    Ok(full.into_iter().zip(narrow).collect())
}

impl StoredTable {
    /// Writes the rows of a table's plan to `rows`, and returns the number of keys without a row.
    fn read(&self, plan: &TablePlan, rows: &mut TableRows) -> u64 {
        let width = self.shape.width;
        let mut missing = 0;
        for (&key, target) in
            plan.keys.iter().zip(rows.values.chunks_exact_mut(self.shape.stride()))
        {
            match RowPart::find_among(&self.parts, key) {
                Some((part, row)) => {
                    part.weights(row).widen(&mut target[..width]);
                    target[width..].fill(0.0);
                }
                None if self.read_narrow(key, target) => {}
                None => {
                    missing += 1;
                    self.shape.fill_unknown(key, target);
                }
            }
        }
        missing
    }

    /// Writes the initial row of a key, and then replaces the floats that its narrow row has.
    /// Returns `false` and writes nothing if the key has no narrow row.
    fn read_narrow(&self, key: FeatureKey, target: &mut [f32]) -> bool {
        let Some((part, row)) = RowPart::find_among(&self.narrow, key) else { return false };
        self.shape.fill_initial(key, target);
        self.shape.layout.spread(&part.weights(row).to_floats(), target);
        true
    }
}

impl RowSource for PartSource {
    fn tables(&self) -> &[TableLayout] {
        &self.layouts
    }

    fn lookup(&mut self, plan: &LookupPlan, rows: &mut RowBuffer) -> Result<LookupReport> {
        lookup_tables(&self.layouts, plan, rows, |index, table, rows| {
            self.tables[index].read(table, rows)
        })
    }

    fn has_row(&self, table: TableId, key: FeatureKey) -> Option<bool> {
        let table = self.tables.get(table.index())?;
        let has_row = |parts| RowPart::find_among(parts, key).is_some();
        Some(has_row(&table.parts) || has_row(&table.narrow))
    }
}
