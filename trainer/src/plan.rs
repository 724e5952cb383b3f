//! Estimates of the sizes of a job's tables under different settings, from one pass over a sample
//! of its data.
//!
//! The sample is read with the reader, the features and the lookup plans of training, in the same
//! order and the same steps. So a threshold or a limit has the same meaning as in training. The
//! counting is in `zillion_embedding::capacity`.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use zillion_device::Workers;
use zillion_embedding::capacity::{Grid, Heaps, Numbers, Tracker, Usage, dims, memory};
use zillion_feature::{Buckets, Cursor, FeatureKind, FeatureSpec};
use zillion_reader::{BatchOrder, Dataset, Labels, estimated_rows};
use zillion_rows::TableSpec;

use crate::check::without_statistics;
use crate::error::Result;
use crate::job::Job;
use crate::pipeline::{AheadOptions, Pipeline};

/// The limits of a planning pass.
#[derive(Clone, Copy, Debug)]
pub struct PlanOptions {
    /// The number of rows of the sample to read; absent: all rows.
    pub rows: Option<u64>,
    /// The largest number of counted keys of a table. If the table has more keys, only a share of
    /// them is counted.
    pub keys: usize,
}

/// The report of a planning pass.
#[derive(Clone, Debug, Serialize)]
pub struct PlanReport {
    /// The number of rows of the sample that were read.
    pub rows: u64,
    /// The number of bad rows that were left out.
    pub rejected: u64,
    /// The number of rows in a step, as in training.
    pub batch_size: u64,
    /// The number of rows of the job's training data, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_rows: Option<u64>,
    /// The plans of the tables, in the job's order.
    pub tables: Vec<TablePlan>,
    /// The names of the tables that only have rows for buckets of numbers. Their sizes are known
    /// without reading data.
    pub buckets: Vec<String>,
}

/// The plan of one table.
#[derive(Clone, Debug, Serialize)]
pub struct TablePlan {
    /// The name of the table.
    pub table: String,
    /// The number of rows of the table, and how often they are used.
    #[serde(flatten)]
    pub usage: Usage,
    /// The estimated sizes for more data than the sample, by Heaps' law.
    pub more: Vec<Growth>,
    /// The memory of a table with all keys of the sample, for several widths and types of weights.
    pub sizes: Vec<Size>,
    /// The names of features with quantile buckets that read the table. Their buckets are not
    /// counted, because the boundaries are unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub undivided: Vec<String>,
}

/// The estimated size of a table for a number of rows of data.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Growth {
    /// The number of rows of the data.
    pub rows: u64,
    /// The estimated number of keys in these rows.
    pub keys: u64,
    /// The memory of one table row for each key, in bytes, with the job's settings of the table.
    pub bytes: u64,
}

/// The memory of a table with all keys of the sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Size {
    /// The number of floats in the vector segment; absent if the table has no vectors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dim: Option<usize>,
    /// Whether this is the width that the job sets.
    pub is_own: bool,
    /// The memory in bytes, with weights of four bytes.
    pub f32: u64,
    /// The memory in bytes, with weights of two bytes (f16 or bf16).
    pub half: u64,
}

/// Reads a sample of the data once, and plans the tables. After each batch, `passed` is called with
/// the number of rows read so far.
///
/// # Errors
/// Returns an error if the files cannot be read as the job's data.
pub fn plan_tables(
    job: &Job,
    files: &[PathBuf],
    options: PlanOptions,
    workers: &Arc<Workers>,
    passed: &mut dyn FnMut(u64),
) -> Result<PlanReport> {
    let schema = without_statistics(&job.schema);
    let labels = match job.data.negatives {
        Some(_) => Labels::Required,
        None => Labels::Optional,
    };
    let dataset = Dataset::open_with(&job.data, files, &schema, labels)?;
    let dataset = dataset.thinned(&job.data, job.seed)?;
    let batch_rows = job.train.batch_size.get();
    let order =
        BatchOrder { seed: job.seed, shuffle: job.data.shuffle, batch_rows, drop_last: false };
    let batches = dataset.batches(order, Cursor::default(), workers.clone())?;
    let is_planned: Vec<bool> = (0..job.tables.len()).map(|at| is_planned(job, at)).collect();
    let mut trackers: Vec<Option<Tracker>> = job
        .tables
        .iter()
        .zip(&is_planned)
        .map(|(spec, &planned)| planned.then(|| Tracker::new(Grid::of(spec), options.keys)))
        .collect();
    let limit = options.rows.unwrap_or(u64::MAX);
    let (mut rows, mut rejected) = (0, 0);
    let mut pipeline = Pipeline::new(batches, Arc::new(schema), AheadOptions::of_job(job, workers));
    while rows < limit {
        let Some(planned) = pipeline.next()? else {
            rejected += pipeline.ending.rejected.len() as u64;
            break;
        };
        rejected += planned.rejected.len() as u64;
        let in_step = planned.batch.rows as u64;
        workers.for_each_mut(&mut trackers, |at, tracker| {
            let Some(tracker) = tracker else { return };
            let plan = &planned.plan.tables[at];
            let times = plan.occurrences.offsets.windows(2).map(|ends| ends[1] - ends[0]);
            tracker.step(in_step, plan.keys.iter().copied().zip(times));
        });
        rows += in_step;
        passed(rows);
    }
    let data_rows = data_rows(job);
    let planned = trackers.into_iter().zip(&job.tables).enumerate();
    let tables = planned.filter_map(|(at, (tracker, spec))| {
        Some(table_plan(job, at, spec, tracker?.finish(), data_rows))
    });
    let buckets = job.tables.iter().zip(&is_planned).filter(|(_, planned)| !**planned);
    Ok(PlanReport {
        rows,
        rejected,
        batch_size: batch_rows as u64,
        data_rows,
        tables: tables.collect(),
        buckets: buckets.map(|(spec, _)| spec.name.clone()).collect(),
    })
}

/// Returns whether a table has rows that are not buckets of numbers.
fn is_planned(job: &Job, table: usize) -> bool {
    features_of(job, table).any(|f| !matches!(f.kind, FeatureKind::Bucketized { .. }))
}

/// Returns the features that read a table.
fn features_of(job: &Job, table: usize) -> impl Iterator<Item = &FeatureSpec> {
    let reads = move |f: &&FeatureSpec| f.table().is_some_and(|id| id.index() == table);
    job.schema.features.iter().filter(reads)
}

/// Returns the number of rows of the job's training data, if it is known without reading them.
fn data_rows(job: &Job) -> Option<u64> {
    if job.data.sample.is_some() || job.data.negatives.is_some() {
        return None;
    }
    // A sample is often planned where the data itself is absent.
    let files = job.data.files(&job.data.train).ok()?;
    let dataset = Dataset::open(&job.data, &files, &job.schema).ok()?;
    estimated_rows(&dataset).ok()?.map(|(rows, _)| rows)
}

fn table_plan(
    job: &Job,
    at: usize,
    spec: &TableSpec,
    usage: Usage,
    data_rows: Option<u64>,
) -> TablePlan {
    let shards = job.run.shards.get();
    let size = |dim: Option<usize>, is_own: bool| Size {
        dim,
        is_own,
        f32: memory(spec, dim, Numbers::F32, usage.keys, shards),
        half: memory(spec, dim, Numbers::Half, usage.keys, shards),
    };
    let own = spec.segments.iter().find(|s| s.name == "vector").map(|s| s.dim);
    let sizes: Vec<Size> = match dims(spec) {
        dims if dims.is_empty() => vec![size(None, true)],
        dims => dims.into_iter().map(|dim| size(Some(dim), Some(dim) == own)).collect(),
    };
    let multiples = [2, 10, 100].map(|n| n * usage.rows).into_iter();
    let mut rows: Vec<u64> =
        multiples.chain(data_rows.filter(|&rows| rows > usage.rows + usage.rows / 20)).collect();
    rows.sort_unstable();
    rows.dedup();
    let more = match &usage.heaps {
        Some(law) => rows.into_iter().map(|rows| more(law, &usage, spec, rows, shards)).collect(),
        None => Vec::new(),
    };
    let is_quantile = |f: &&FeatureSpec| {
        matches!(&f.kind, FeatureKind::Bucketized { buckets: Buckets::Quantiles(_), .. })
    };
    let undivided = features_of(job, at).filter(is_quantile).map(|f| f.name.clone()).collect();
    TablePlan { table: spec.name.clone(), usage, more, sizes, undivided }
}

/// Estimates the size of a table for `rows` rows of data by Heaps' law. The law is scaled so that
/// it gives the counted number of keys for the rows of the sample.
fn more(law: &Heaps, usage: &Usage, spec: &TableSpec, rows: u64, shards: usize) -> Growth {
    let times = rows as f64 / usage.rows.max(1) as f64;
    let keys = (usage.keys as f64 * times.powf(law.beta)).round() as u64;
    Growth { rows, keys, bytes: spec.memory(keys, shards) }
}
