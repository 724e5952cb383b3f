//! A forecast of the limits and of the spilling of tables that do not exist yet, for the planning
//! of a job.
//!
//! The forecast calls the same functions as live tables, because separate formulas would differ
//! from them sooner or later.

use crate::error::{Error, Result};
use crate::eviction::capacity::{Claim, shares};
use crate::eviction::shared_limit::shared_room;
use crate::shape::TableShape;
use crate::spill::{FILE_PER_ROWS, RecordShape, budget_rows};
use zillion_rows::ByteSize;
use zillion_rows::TableSpec;

/// The forecast sizes of a table that spills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpillForecast {
    /// The number of rows that the memory can hold.
    pub budget_rows: u64,
    /// The number of rows that the table will have in memory.
    pub hot_rows: u64,
    /// The bytes of memory that the rows in memory and the index of all rows take.
    pub memory: u64,
    /// The largest number of bytes that the spill files may take.
    pub file_bytes: u64,
}

/// Forecasts the sizes of a table that spills, with `rows` rows on `shards` shards. The rows may
/// take `memory` bytes of memory.
///
/// # Errors
/// Returns [`Error::Spec`] if the table cannot spill, or if a shard's share of the memory cannot
/// hold a row.
pub fn forecast_spill(
    spec: &TableSpec,
    rows: u64,
    memory: u64,
    shards: usize,
) -> Result<SpillForecast> {
    spec.check_spill()?;
    let shards = shards.max(1) as u64;
    let shape = TableShape::new(spec.clone())?;
    let budget_rows = shards * budget_rows(memory / shards, &shape)?;
    let hot_rows = rows.min(budget_rows);
    let index = spec.index_memory(rows);
    let in_memory = (spec.memory(rows, shards as usize) - index).min(memory);
    let records = (rows - hot_rows) * RecordShape::new(&shape).bytes() as u64;
    let file_bytes = (records as f64 * FILE_PER_ROWS) as u64;
    Ok(SpillForecast { budget_rows, hot_rows, memory: index + in_memory, file_bytes })
}

/// Returns the number of rows that each table gets under a limit of all tables together (see
/// [`TableSet::limit_bytes`](crate::TableSet::limit_bytes)). `wanted` has the number of rows that
/// each table would have without the limit.
///
/// The limit is kept by each group of slots (see [`table_groups`](crate::table_groups)). Keys
/// spread over groups by chance, so a real table at the limit has up to about `√n` rows less for
/// each group of `n` rows.
///
/// # Errors
/// Returns [`Error::Spec`] if the limit is too small for one row of each table, or if `wanted` does
/// not have one number for each table.
pub fn rows_within_shared_limit(
    specs: &[TableSpec],
    limit: ByteSize,
    wanted: &[u64],
) -> Result<Vec<u64>> {
    if specs.len() != wanted.len() {
        let reason = format!(
            "a forecast for {} tables got {} numbers of rows; give one number for each table",
            specs.len(),
            wanted.len()
        );
        return Err(Error::Spec { key: "train.max_table_bytes".to_owned(), reason });
    }
    let total = shared_room(specs, limit)?;
    let table = |(spec, &wanted): (&TableSpec, &u64)| {
        let rows = wanted.min(spec.most_rows().unwrap_or(u64::MAX));
        let reckoning = spec.reckoning();
        let most = reckoning.memory(rows);
        // A dense table keeps its whole vocabulary for every need of the other tables.
        let least = if spec.dense { most } else { reckoning.memory(1) };
        (rows, reckoning, Claim { least, most: most.max(least) })
    };
    let tables: Vec<_> = specs.iter().zip(wanted).map(table).collect();
    let claims: Vec<Claim> = tables.iter().map(|&(_, _, claim)| claim).collect();
    let rows = tables.iter().zip(shares(total, &claims)).zip(specs).map(
        |(((rows, reckoning, claim), share), spec)| match spec.dense || share >= claim.most {
            true => *rows,
            false => (*rows).min(reckoning.rows_within(share)),
        },
    );
    Ok(rows.collect())
}
