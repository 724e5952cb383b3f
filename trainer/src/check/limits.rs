//! The check of the limits of tables: their effect on sizes, and limits that contradict each other.
//!
//! Rows are estimated by the forecasts of `zillion_embedding`, which the tables use themselves, so
//! a run agrees with its check. A setting that a run would refuse is an error, a setting that makes
//! the result worse than expected is a warning, and a setting without effect is a note.

use zillion_embedding::{SpillForecast, forecast_spill, rows_within_shared_limit};
use zillion_rows::TableSpec;

use super::report::{Findings, TableCheck};
use super::sample::Sampled;
use crate::job::Job;

/// The key of the limit that all tables share.
const SHARED: &str = "train.max_table_bytes";

/// Describes what a table does with rows beyond its limit.
pub(super) fn beyond_limit(spec: &TableSpec) -> &'static str {
    match spec.eviction.is_never() {
        true => "further rows are refused",
        false => "the least important rows are evicted",
    }
}

/// Reduces the estimated rows of tables to the limit that all tables share.
pub(super) fn apply_shared_limit(job: &Job, tables: &mut [TableCheck], findings: &mut Findings) {
    let Some(limit) = job.train.max_table_bytes else { return };
    // A table that is empty now will soon have a row.
    let of = |rows: fn(&TableCheck) -> u64| {
        let wanted: Vec<u64> = tables.iter().map(|t| rows(t).max(1)).collect();
        rows_within_shared_limit(&job.tables, limit, &wanted)
    };
    let (Ok(low), Ok(rows), Ok(high)) = (of(|t| t.rows_low), of(|t| t.rows), of(|t| t.rows_high))
    else {
        // A limit that is too small for empty tables has been refused with the job.
        return;
    };
    for (i, (table, spec)) in tables.iter_mut().zip(&job.tables).enumerate() {
        if rows[i] < table.rows {
            let beyond = beyond_limit(spec);
            findings.note(
                &format!("tables.{}", spec.name),
                format!("holds {} of about {} rows within {SHARED}: {beyond}", rows[i], table.rows),
            );
        }
        table.rows_low = table.rows_low.min(low[i]);
        table.rows = table.rows.min(rows[i]);
        table.rows_high = table.rows_high.min(high[i]);
    }
}

/// Returns the memory of a table of `rows` rows, and the forecast of its spilling. Rows on disk
/// take memory for their keys only.
pub(super) fn forecast_memory(
    job: &Job,
    spec: &TableSpec,
    rows: u64,
    waiting: u64,
) -> (u64, Option<SpillForecast>) {
    let shards = job.run.shards.get();
    let spill = job.run.spill.get(&spec.name);
    if let Some(Ok(spill)) = spill.map(|memory| forecast_spill(spec, rows, memory.bytes(), shards))
    {
        return (spill.memory + waiting, Some(spill));
    }
    let bytes = spec.memory(rows, shards) + waiting;
    (spec.max_bytes.map_or(bytes, |limit| bytes.min(limit.0)), None)
}

/// Returns the sum of a size in bytes over all tables. The result is capped by the limit that all
/// tables share, but never below the sum of the dense tables.
pub(super) fn sum_capped(job: &Job, tables: &[TableCheck], of: impl Fn(&TableCheck) -> u64) -> u64 {
    let sum = |dense_only: bool| {
        let counted = tables.iter().zip(&job.tables).filter(|(_, spec)| spec.dense || !dense_only);
        counted.map(|(table, _)| of(table)).sum::<u64>()
    };
    match job.train.max_table_bytes {
        // Vocabularies stay in memory at every limit.
        Some(limit) => sum(false).min(limit.0.max(sum(true))),
        None => sum(false),
    }
}

/// Reports limits that contradict each other or the memory of the machine, which is `total`.
pub(super) fn find_contradictions(
    job: &Job,
    sampled: &Sampled,
    tables: &[TableCheck],
    total: Option<u64>,
    findings: &mut Findings,
) {
    let steps: Vec<u64> = (0..tables.len())
        .map(|table| sampled.keys_of_step(table, job.train.batch_size.get()))
        .collect();
    for ((spec, table), &step) in job.tables.iter().zip(tables).zip(&steps) {
        check_own_limits(job, spec, step, findings);
        check_spilling(job, spec, table, step, findings);
    }
    check_shared_limit(job, &steps, tables, findings);
    let Some(total) = total else { return };
    let mut beyond = |about: &str, bytes: u64| {
        if bytes > total {
            let text = format!(
                "{} MiB are more than the machine's {} MiB, so the limit has no effect; lower it",
                bytes >> 20,
                total >> 20
            );
            findings.warning(about, text);
        }
    };
    if let Some(limit) = job.train.max_table_bytes {
        beyond(SHARED, limit.0);
    }
    for spec in &job.tables {
        if let Some(limit) = spec.max_bytes {
            beyond(&format!("tables.{}.max_bytes", spec.name), limit.0);
        }
    }
    if !job.run.spill.is_empty() {
        beyond("run.spill", job.run.spill.values().map(|memory| memory.bytes()).sum());
    }
}

/// Compares the limits of one table with its settings and its steps.
fn check_own_limits(job: &Job, spec: &TableSpec, step: u64, findings: &mut Findings) {
    let Some(most) = spec.most_rows() else { return };
    let by_rows = spec.max_rows == Some(most);
    let key = if by_rows { "max_rows" } else { "max_bytes" };
    let about = format!("tables.{}.{key}", spec.name);
    if step > most {
        findings.warning(
            &about,
            format!(
                "the table holds {most} rows, and one step needs about {step} ({} rows of data): the rest of every step \
                 reads as new and its gradients are dropped; raise the limit, or lower `train.batch_size`",
                job.train.batch_size
            ),
        );
    }
    if spec.pinned.len() as u64 > most {
        findings.warning(
            &about,
            format!(
                "the table holds {most} rows, and {} ids are pinned: the first rows stay, pinned or not; raise the limit, \
                 or pin fewer ids",
                spec.pinned.len()
            ),
        );
    }
    if let (Some(rows), Some(bytes), false) = (spec.max_rows, spec.max_bytes, by_rows) {
        findings.note(
            &format!("tables.{}.max_rows", spec.name),
            format!(
                "{rows} rows are never reached, because max_bytes = {bytes} holds {most}; lower \
                 or remove this limit"
            ),
        );
    }
    if let (Some(own), Some(all)) = (spec.max_bytes, job.train.max_table_bytes)
        && own >= all
    {
        findings.warning(
            &format!("tables.{}.max_bytes", spec.name),
            format!("{own} are never reached, because {SHARED} allows {all} for all tables together; lower or remove this limit"),
        );
    }
}

/// Compares the memory of a spilling table with its rows, its limits and its steps.
fn check_spilling(
    job: &Job,
    spec: &TableSpec,
    table: &TableCheck,
    step: u64,
    findings: &mut Findings,
) {
    let Some(memory) = job.run.spill.get(&spec.name) else { return };
    let about = format!("run.spill.{}", spec.name);
    let forecast = forecast_spill(spec, table.rows_high, memory.bytes(), job.run.shards.get());
    let forecast = match forecast {
        Ok(forecast) => forecast,
        Err(error) => return findings.error(&about, error.to_string()),
    };
    let budget = forecast.budget_rows;
    if step > budget {
        findings.warning(
            &about,
            format!(
                "{memory} hold {budget} rows, and one step needs about {step} at once ({} rows of data): every step exceeds the \
                 memory and reads and writes every row again; raise the memory, or lower `train.batch_size`",
                job.train.batch_size
            ),
        );
    }
    match spec.most_rows() {
        Some(most) if most <= budget => findings.warning(
            &about,
            format!(
                "{memory} hold {budget} rows, and the table's own limit is {most}: new ids are refused before the first row \
                 goes to disk; raise the limit, or remove one of the two"
            ),
        ),
        _ if table.rows_high <= budget => findings.note(
            &about,
            format!(
                "{memory} hold {budget} rows and the table has {} at most, so nothing goes to \
                 disk; remove the table from `run.spill`", table.rows_high),
        ),
        _ => findings.note(
            &about,
            format!(
                "{budget} of about {} rows are in memory, the others in files of up to {} MiB: {}",
                table.rows,
                forecast.file_bytes >> 20,
                job.spill_folder().display()
            ),
        ),
    }
    if let Some(limit) = job.train.max_table_bytes {
        findings.warning(
            &about,
            format!(
                "{SHARED} = {limit} counts rows on disk as if they were in memory, and refuses ids beyond it; raise it by \
                 the rows that are to be on disk, or remove one of the two"
            ),
        );
    }
}

/// Compares the shared limit with the rows that are always needed: vocabularies, and the keys of a
/// step.
fn check_shared_limit(job: &Job, steps: &[u64], tables: &[TableCheck], findings: &mut Findings) {
    let Some(limit) = job.train.max_table_bytes else { return };
    let dense = job.tables.iter().zip(tables).filter(|(spec, _)| spec.dense);
    let vocabularies: u64 = dense.map(|(_, table)| table.bytes).sum();
    if vocabularies >= limit.0 {
        let text = format!(
            "tables with a vocabulary take {} MiB of {limit}, so no other table gets a row; raise the limit, or make them dynamic \
             (`dense = false`)",
            vocabularies >> 20
        );
        return findings.stop(SHARED, text);
    }
    // Vocabularies count as they are, and other tables with the rows of one step.
    let wanted: Vec<u64> = job
        .tables
        .iter()
        .zip(steps)
        .zip(tables)
        .map(|((spec, &step), table)| if spec.dense { table.rows.max(1) } else { step.max(1) })
        .collect();
    let Ok(room) = rows_within_shared_limit(&job.tables, limit, &wanted) else { return };
    for ((spec, &room), &wanted) in job.tables.iter().zip(&room).zip(&wanted) {
        // The effect of the table's own limit is reported with that limit.
        if room < wanted.min(spec.most_rows().unwrap_or(u64::MAX)) {
            findings.warning(
                SHARED,
                format!(
                    "{limit} hold {room} rows of table `{}`, and one step needs about {wanted}: the rest of every \
                     step reads as new and its gradients are dropped; raise the limit, or lower `train.batch_size`",
                    spec.name
                ),
            );
        }
    }
}
