//! The memory and disk that tables, buffers and parameters will take.

use zillion_device::{Workers, machine};
use zillion_feature::{Buckets, FeatureKind};
use zillion_nn::zoo::LOSS;
use zillion_nn::{Mode, Program, differentiate};
use zillion_reader::Estimate;
use zillion_rows::{Admission, TableSpec};

use super::limits::beyond_limit;
use super::report::{Findings, MemoryCheck, TableCheck};
use super::sample::Sampled;
use crate::error::{Error, Result};
use crate::graph_inputs::find_output;
use crate::job::Job;

/// The share of the machine's memory that the check leaves to the system and its caches.
const RESERVED: f64 = 0.1;

/// Estimates the number of rows and the size in bytes of every table after one epoch.
pub(super) fn estimate_tables(
    job: &Job,
    sampled: &Sampled,
    rows: Option<u64>,
    findings: &mut Findings,
) -> Vec<TableCheck> {
    let mut tables = Vec::with_capacity(job.tables.len());
    for (index, spec) in job.tables.iter().enumerate() {
        let frequencies = sampled.frequencies(index);
        let scale = rows.map_or(1.0, |n| n as f64 / sampled.rows.max(1) as f64);
        let mut estimate = frequencies.extrapolate((frequencies.values as f64 * scale) as u64);
        let ids = estimate.value;
        let threshold = match spec.admission {
            Admission::Count { at_least } | Admission::Bloom { at_least, .. } => Some(at_least),
            // With admission by probability, every id that occurs often enough gets a row in the
            // end, so the number of all ids is the upper bound.
            Admission::All | Admission::Probability { .. } => None,
        };
        if let Some(at_least) = threshold {
            estimate = estimate_admitted(
                sampled,
                index,
                (scale, job.train.epochs as f64),
                at_least,
                estimate,
            );
        }
        let candidates = (ids - estimate.value).round().max(0.0) as u64;
        let buckets = bucket_rows(job, index);
        for bound in [&mut estimate.low, &mut estimate.value, &mut estimate.high] {
            *bound += buckets;
        }
        let all_rows = estimate.value;
        if let Some(most) = spec.most_rows() {
            for bound in [&mut estimate.low, &mut estimate.value, &mut estimate.high] {
                *bound = bound.min(most as f64);
            }
            if all_rows > most as f64 {
                findings.note(
                    &format!("tables.{}", spec.name),
                    format!("holds {most} of about {all_rows:.0} rows: {}", beyond_limit(spec)),
                );
            }
        }
        let mut table = TableCheck {
            name: spec.name.clone(),
            sampled: frequencies.distinct,
            candidates,
            bytes_per_row: spec.bytes_per_row(),
            ..TableCheck::default()
        };
        table.set_rows(estimate);
        if let Some(at_least) = threshold {
            findings.note(
                &format!("tables.{}.admission", spec.name),
                format!(
                    "about {} of {ids:.0} ids will occur {at_least} times by the end of training and get a \
                     row; the others are only counted",
                    table.rows
                ),
            );
        }
        check_vocabulary_limit(job, index, &estimate, findings);
        tables.push(table);
    }
    super::limits::apply_shared_limit(job, &mut tables, findings);
    for (table, spec) in tables.iter_mut().zip(&job.tables) {
        set_bytes(table, spec, job);
    }
    tables
}

/// Computes the memory and the disk space of a table from its number of rows.
fn set_bytes(table: &mut TableCheck, spec: &TableSpec, job: &Job) {
    let waiting = spec.candidate_memory(table.candidates);
    let (bytes, spill) = super::limits::forecast_memory(job, spec, table.rows, waiting);
    let (bytes_high, most) = super::limits::forecast_memory(job, spec, table.rows_high, waiting);
    (table.bytes, table.bytes_high) = (bytes, bytes_high);
    table.hot_rows = spill.map(|spill| spill.hot_rows);
    table.spill_bytes = most.map_or(0, |spill| spill.file_bytes);
    table.checkpoint_bytes = table.rows * spec.checkpoint_bytes_per_row()
        + match spec.admission {
            // A checkpoint holds the blocks of the filter in the same size.
            Admission::Bloom { .. } => waiting,
            _ => table.candidates * spec.checkpoint_bytes_per_candidate(),
        };
}

/// Estimates the number of ids that occur at least `at_least` times in `epochs` passes over the
/// data. The data has `scale` times the rows of the sample. `all` is the estimated number of
/// different ids in the data. The result is exact if the sample is all of the data.
///
/// The number `at_least / (scale * epochs)` is the threshold for the sample. If the threshold is
/// above one occurrence, the count of each id in the sample is compared with it. The bounds of the
/// result allow a sampling error of twice the square root of the threshold.
///
/// If the threshold is at most one occurrence, the sample cannot tell frequent ids from rare ids.
/// The estimate then assumes that the number of ids with at least `n` occurrences in the data is
/// about the number of different ids in an `n`th part of the data.
fn estimate_admitted(
    sampled: &Sampled,
    table: usize,
    (scale, epochs): (f64, f64),
    at_least: u32,
    all: Estimate,
) -> Estimate {
    let frequencies = sampled.frequencies(table);
    let threshold = f64::from(at_least) / (scale * epochs);
    let whole = scale <= 1.0;
    if threshold <= 1.0 && !whole {
        let part = frequencies.extrapolate((frequencies.values as f64 / threshold) as u64);
        // More passes over the same data bring no new ids.
        return Estimate {
            low: part.low.min(all.low),
            value: part.value.min(all.value),
            high: part.high.min(all.high),
        };
    }
    let above = |least: f64| {
        sampled.keys[table].values().filter(|&&count| count as f64 >= least).count() as f64
    };
    let spread = if whole { 0.0 } else { 2.0 * threshold.sqrt() };
    Estimate {
        low: above(threshold + spread),
        value: above(threshold),
        high: above((threshold - spread).max(1.0)),
    }
}

/// Returns the number of rows for the buckets of a table's features, including the bucket of
/// missing values.
fn bucket_rows(job: &Job, table: usize) -> f64 {
    let of_feature = |f: &zillion_feature::FeatureSpec| match &f.kind {
        FeatureKind::Bucketized { buckets, table: own } if own.index() == table => match buckets {
            Buckets::Boundaries(boundaries) => boundaries.len() as f64 + 2.0,
            Buckets::Quantiles(count) => f64::from(*count) + 1.0,
        },
        _ => 0.0,
    };
    // Two features in the same table share their buckets: bucket 3 of the first feature is bucket 3
    // of the second feature.
    job.schema.features.iter().map(of_feature).fold(0.0, f64::max)
}

fn check_vocabulary_limit(job: &Job, index: usize, estimate: &Estimate, findings: &mut Findings) {
    let spec = &job.tables[index];
    let Some(limit) = spec.row_limit() else { return };
    let about = format!("tables.{}.max_rows", spec.name);
    let limit_rows = limit as f64;
    if estimate.low > limit_rows {
        findings.error(
            &about,
            format!(
                "{limit} rows are fewer than the ids of the table, which are at least {:.0}; raise the limit, or make the table dynamic \
                 (`dense = false`)",
                estimate.low
            ),
        );
    } else if estimate.high > limit_rows {
        findings.warning(
            &about,
            format!(
                "{limit} rows may be fewer than the ids of the table, which are about {:.0}; raise the limit",
                estimate.value
            ),
        );
    }
}

/// Estimates the memory of the whole job. Returns `None` if the model cannot be built.
pub(super) fn estimate_memory(
    job: &Job,
    tables: &[TableCheck],
    rows: Option<u64>,
    workers: &Workers,
    findings: &mut Findings,
) -> Option<MemoryCheck> {
    let (arenas, parameters) = match measure_buffers(job, workers.threads()) {
        Ok(figures) => figures,
        Err(error) => {
            findings.error("model", error.to_string());
            return None;
        }
    };
    // Memory holds three windows: the window that is read, the window that is cut, and the batch.
    // Each id takes 8 bytes, and each number takes 4.
    let row: u64 =
        job.schema.features.iter().map(|f| if f.table().is_some() { 8 } else { 4 }).sum();
    let window = (job.data.shuffle_window.get() as u64).min(rows.unwrap_or(u64::MAX));
    let memory = MemoryCheck {
        tables: super::limits::sum_capped(job, tables, |t| t.bytes),
        tables_high: super::limits::sum_capped(job, tables, |t| t.bytes_high),
        arenas,
        windows: 3 * window * (row + 4),
        // Each parameter has a value, a gradient and two moments (partial gradients of lanes are
        // counted with the arenas). If the job asks for them, it also has the sum over a step's
        // batches and the average.
        dense: parameters * 4 * (4 + copies(job)),
        available: machine::available_memory(),
        total: machine::total_memory(),
    };
    let rest = memory.arenas + memory.windows + memory.dense;
    let (needed, needed_high) = (memory.tables + rest, memory.tables_high + rest);
    let mib = |bytes: u64| bytes >> 20;
    if let Some(total) = memory.total {
        let usable = (total as f64 * (1.0 - RESERVED)) as u64;
        if needed > usable {
            findings.stop(
                "tables",
                format!(
                    "about {} MiB will be needed and the machine has {} MiB; lower `dim`, take an \
                     optimizer with less state (rowwise_adagrad), remove the largest features, limit the tables \
                     (train.max_table_bytes), or let rows go to disk (run.spill)",
                    mib(needed),
                    mib(total)
                ),
            );
        } else if needed_high > usable {
            findings.warning(
                "tables",
                format!(
                    "up to {} MiB may be needed and the machine has {} MiB; limit the tables (train.max_table_bytes)",
                    mib(needed_high),
                    mib(total)
                ),
            );
        } else if memory.available.is_some_and(|available| needed > available) {
            findings.warning(
                "tables",
                format!(
                    "about {} MiB will be needed and only {} MiB are free now; end other programs",
                    mib(needed),
                    mib(memory.available.unwrap_or(0))
                ),
            );
        }
    }
    Some(memory)
}

/// Returns the number of additional copies of the dense parameters: one if several batches are
/// summed into a step, and one if the parameters are averaged.
fn copies(job: &Job) -> u64 {
    u64::from(job.train.accumulate.get() > 1) + u64::from(job.train.average.is_some())
}

/// The assumed length of a list whose feature sets no limit.
const USUAL_LIST: usize = 8;

/// Returns the memory in bytes that the buffers of a step and of scoring take, and the number of
/// dense parameters that are trained.
fn measure_buffers(job: &Job, threads: usize) -> Result<(u64, u64)> {
    if job.schema.labels.is_empty() {
        return Err(Error::Unsupported("`labels` is empty; add at least one label".to_owned()));
    }
    let settings = job.train.settings()?;
    let graph = job.graph(Mode::Train)?;
    let loss = find_output(&graph, LOSS)?;
    let program = Program::train(&differentiate(&graph, loss)?, settings)?;
    let rows = job.train.batch_size.get();
    let parameters = graph.params.iter().filter(|p| p.trainable);
    let parameters: usize = parameters.map(|p| p.rows * p.cols).sum();
    // Scoring holds no gradients, and its other buffers are smaller. A quarter is more than it
    // takes.
    let columns: Vec<_> = job.schema.sparse().filter(|f| f.table().is_some()).collect();
    let list_len = |column: usize| columns[column].max_len().unwrap_or(USUAL_LIST);
    let step = program.bytes(rows, threads, list_len) as u64;
    Ok((step + step / 4, parameters as u64))
}
