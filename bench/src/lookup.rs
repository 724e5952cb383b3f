//! The benchmark `zillion bench lookup`: the time of a lookup in a published table, from mapped
//! files and from records in memory, for each number type of published rows.
//!
//! Every kind of lookup has the same keys, in turns of one batch each, so that a change of the
//! machine's speed meets all of them. The files are mapped and in the page cache. A batch has so
//! few keys that one thread looks them up, and its keys differ, as in a request. The time is that
//! of [`RowSource::lookup`], without the plan.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use serde::Serialize;
use zillion_console::{compute_pool, durable_files};

use zillion_feature::random::mix64;
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer};
use zillion_rows::conformance::plan_of;
use zillion_rows::layer::{Layer, LayerSource, LayerWriter, Unthrottled, part_count};
use zillion_rows::{
    InitializerSpec, OptimizerSpec, RowSource as _, RowType, SegmentSpec, TableSpec,
};

use crate::args::BenchLookupArgs;
use crate::embedding::Zipf;
use crate::turns::median;
use crate::{print_outcome, scratch_folder};

/// The number of keys that are drawn for a batch, below the number from which a lookup uses several
/// threads.
const BATCH: usize = 4000;

/// The dimension of the vector of a row. A row has one more weight, the linear one.
const DIM: usize = 16;

#[derive(Serialize)]
struct Outcome {
    rows: u64,
    batches: usize,
    kinds: Vec<Kind>,
}

/// The figures of one kind of lookup.
#[derive(Serialize)]
struct Kind {
    rows: RowType,
    is_record: bool,
    /// The median time of a key in nanoseconds, with uniform keys.
    uniform_ns: f64,
    /// The median time of a key in nanoseconds, with keys by Zipf's law.
    zipf_ns: f64,
}

/// A source with the times of its batches, in nanoseconds a key.
struct Timed {
    row_type: RowType,
    is_record: bool,
    source: LayerSource,
    times: [Vec<f64>; 2],
}

pub(crate) fn run(args: &BenchLookupArgs, is_json: bool) -> Result<()> {
    let workers = compute_pool(Some(std::num::NonZeroUsize::MIN))?;
    let folder = scratch_folder(args.folder.as_deref())?;
    let mut keys: Vec<u64> = (0..args.rows).map(|id| FeatureKey::from_u64(id).0).collect();
    keys.sort_unstable();
    let mut sources = Vec::new();
    for row_type in RowType::ALL {
        let mapped = write(&keys, row_type, folder.path())?;
        let records = mapped.with_records(&mut Unthrottled)?;
        for (is_record, layer) in [(false, mapped), (true, records)] {
            let source = LayerSource::new(&[spec(row_type)], vec![layer], workers.clone())?;
            sources.push(Timed { row_type, is_record, source, times: Default::default() });
        }
    }
    drop(keys);
    measure(&mut sources, args)?;
    let kinds = sources.into_iter().map(|timed| {
        let Timed { row_type, is_record, mut times, .. } = timed;
        let [uniform_ns, zipf_ns] = [0, 1].map(|law| median(&mut times[law]));
        Kind { rows: row_type, is_record, uniform_ns, zipf_ns }
    });
    let outcome = Outcome { rows: args.rows, batches: args.batches.get(), kinds: kinds.collect() };
    print_outcome(&outcome, is_json)
}

/// Looks up the same batches in all sources, in turns.
fn measure(sources: &mut [Timed], args: &BenchLookupArgs) -> Result<()> {
    let zipf = Zipf::new(args.rows);
    let mut buffer = RowBuffer::default();
    let mut draws = 0;
    for batch in 0..args.batches.get() {
        for law in [0, 1] {
            let keys = (0..BATCH).map(|_| {
                draws += 1;
                let id = match law {
                    0 => mix64(draws) % args.rows,
                    _ => zipf.draw(mix64(draws)),
                };
                FeatureKey::from_u64(id)
            });
            let plan: LookupPlan = plan_of(&[keys.collect()]);
            let count = plan.unique() as f64;
            for turn in 0..sources.len() {
                // No source is always the first one, which would fill the caches for the others.
                let at = (turn + batch) % sources.len();
                let timed = &mut sources[at];
                let began = Instant::now();
                timed.source.lookup(&plan, &mut buffer)?;
                timed.times[law].push(began.elapsed().as_nanos() as f64 / count);
            }
        }
    }
    Ok(())
}

fn spec(row_type: RowType) -> TableSpec {
    let segment = |name: &str, dim| {
        let initializer = InitializerSpec::Constant { value: 0.0 };
        SegmentSpec::new(name, dim, initializer, OptimizerSpec::Sgd { lr: 0.1 })
    };
    let segments = vec![segment("vector", DIM), segment("linear", 1)];
    TableSpec { published: row_type, ..TableSpec::new("ids", segments) }
}

/// Writes a layer with a row for each of the ascending keys, and maps it.
fn write(keys: &[u64], row_type: RowType, folder: &Path) -> Result<Layer> {
    let files = durable_files()?.scratch();
    let layout = spec(row_type).layout();
    let mut pace = Unthrottled;
    let mut writer = LayerWriter::new(&files, folder, &mut pace);
    writer.table(&layout, part_count(keys.len() as u64, DIM + 1))?;
    let mut row = [0.0; DIM + 1];
    for &key in keys {
        for (at, weight) in (0..).zip(&mut row) {
            *weight = (mix64(key ^ at) >> 40) as f32 / (1 << 24) as f32 - 0.5;
        }
        writer.push(FeatureKey(key), Some(&row), 1)?;
    }
    let manifest = writer.finish()?;
    Ok(Layer::open(folder, &manifest, &[layout])?)
}
