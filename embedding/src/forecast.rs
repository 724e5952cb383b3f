//! A forecast of limits and spilling for tables that do not exist yet, for the planning of a job.
//!
//! The arithmetic is that of live tables: a forecast with formulas of its own would drift away from
//! them.

use crate::error::{Error, Result};
use crate::eviction::capacity::{Claim, shares};
use crate::eviction::shared_limit::shared_room;
use crate::shape::TableShape;
use crate::spill::{FILE_PER_ROWS, RecordShape, budget_rows};
use zillion_rows::ByteSize;
use zillion_rows::TableSpec;

/// The sizes of a table that spills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpillForecast {
    /// Rows that its memory holds, if the table comes to so many.
    pub budget_rows: u64,
    /// Rows of the table that are in memory.
    pub hot_rows: u64,
    /// Bytes of memory: its rows' and the index, which has all of them.
    pub memory: u64,
    /// Bytes that its files may take.
    pub file_bytes: u64,
}

/// Forecasts a table of `rows` rows on `shards` shards whose rows may take `memory` bytes.
///
/// # Errors
/// [`Error::Spec`] where the table cannot spill, or the memory holds no row of each shard.
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

/// Rows that each table comes to under a limit of all tables together (see
/// [`TableSet::limit_bytes`](crate::TableSet::limit_bytes)), if without it they came to `wanted`.
///
/// # Errors
/// [`Error::Spec`] where the limit is too little for a row of each; where not every table has a
/// number.
pub fn rows_within_shared_limit(
    specs: &[TableSpec],
    limit: ByteSize,
    wanted: &[u64],
) -> Result<Vec<u64>> {
    if specs.len() != wanted.len() {
        let reason = format!("{} tables and {} numbers of rows", specs.len(), wanted.len());
        return Err(Error::Spec { key: "train.max_table_bytes".to_owned(), reason });
    }
    let total = shared_room(specs, limit)?;
    let reckonings: Vec<_> = specs.iter().map(TableSpec::reckoning).collect();
    let within = |spec: &TableSpec, rows: u64| rows.min(spec.most_rows().unwrap_or(u64::MAX));
    let claims: Vec<Claim> = specs
        .iter()
        .zip(wanted)
        .zip(&reckonings)
        .map(|((spec, &rows), reckoning)| {
            let most = reckoning.memory(within(spec, rows));
            // A dense table has its vocabulary whatever the others need.
            let least = if spec.dense { most } else { reckoning.memory(1) };
            Claim { least, most: most.max(least) }
        })
        .collect();
    let shares = shares(total, &claims);
    let rows = specs.iter().zip(wanted).zip(&reckonings).zip(claims.iter().zip(shares)).map(
        |(((spec, &wanted), reckoning), (claim, share))| {
            let rows = within(spec, wanted);
            if spec.dense || share >= claim.most {
                rows
            } else {
                rows.min(reckoning.rows_within(share))
            }
        },
    );
    Ok(rows.collect())
}
