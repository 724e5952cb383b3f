//! The memory that rows take on a device: what they leave for batches, and how tables grow.

use std::num::NonZeroUsize;
use std::sync::Arc;

use zillion_device::Workers;
use zillion_device::gpu::Gpu;
use zillion_device::gpu::emulated::{Emulated, EmulatedOptions, Pace};
use zillion_embedding::{Rates, ResidentOptions, ResidentTables, Result, TableSet, Update};
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, Step};
use zillion_rows::conformance::plan_of;
use zillion_rows::{InitializerSpec, OptimizerSpec, SegmentSpec, TableSpec};

use crate::device::{notes, workers};

/// The bytes of a row: eight weights and twice as much state, with padding.
const MOST_ROW_BYTES: u64 = 128;

/// Returns a set with one table, whose rows are created by steps.
fn set(shards: usize) -> TableSet {
    let normal = InitializerSpec::Normal { mean: 0.0, std: 0.1 };
    let segment = SegmentSpec::new("v", 8, normal, OptimizerSpec::adam(0.1));
    let spec = TableSpec { seed: 3, ..TableSpec::new("plain", vec![segment]) };
    TableSet::new(vec![spec], NonZeroUsize::new(shards).unwrap()).unwrap()
}

fn plan(keys: std::ops::Range<u64>) -> LookupPlan {
    plan_of(&[keys.map(FeatureKey::from_u64).collect::<Vec<_>>()])
}

fn update(step: u64) -> Update {
    Update { step: Step(step), rates: Rates::default(), scale: 1.0 }
}

/// Does a step on the host.
fn step_on_the_host(set: &mut TableSet, workers: &Workers, plan: &LookupPlan, step: u64) {
    let mut rows = RowBuffer::default();
    set.pull(workers, plan, false, &mut rows).unwrap();
    set.push(workers, plan, &rows, update(step)).unwrap();
}

fn gpu(memory_bytes: u64) -> Arc<dyn Gpu> {
    let options = EmulatedOptions { memory_bytes, pace: Pace::Eager, ..EmulatedOptions::seeded(1) };
    Arc::new(Emulated::new(options))
}

fn move_rows(set: &TableSet, gpu: &Arc<dyn Gpu>) -> Result<ResidentTables> {
    let stream = gpu.create_stream().unwrap();
    ResidentTables::new(set, ResidentOptions::new(Arc::clone(gpu), stream))
}

/// Does the bookkeeping of a step on a device. Returns the reason if there is no room.
fn begin_and_end(
    tables: &mut ResidentTables,
    set: &mut TableSet,
    workers: &Workers,
    (plan, step): (&LookupPlan, u64),
) -> Option<String> {
    let refused = tables.begin(set, workers, plan, &mut notes(plan), update(step)).unwrap();
    if refused.is_none() {
        tables.end(set).unwrap();
    }
    refused
}

#[test]
fn rows_leave_memory_for_the_batches() {
    let workers = workers(1);
    let mut set = set(2);
    step_on_the_host(&mut set, &workers, &plan(0..60_000), 1);
    let mut bytes = Vec::new();
    let mut refused = 0;
    for memory in (16..32).map(|halves| halves * 500_000) {
        let gpu = gpu(memory);
        let tables = move_rows(&set, &gpu).unwrap();
        let free = gpu.free_bytes().unwrap();
        assert!(free >= memory / 10, "{free} of {memory} bytes are left");
        match tables.cache_reason() {
            None => bytes.push(tables.device_bytes()),
            Some(reason) => {
                refused += 1;
                assert!(reason.contains("table `plain`: its rows need "), "{reason}");
                assert!(reason.contains(" must stay free for the batches; use a"), "{reason}");
                assert_eq!(tables.device_bytes(), 0);
            }
        }
    }
    bytes.dedup();
    // The more memory there is, the more room the table gets.
    assert!(refused >= 2 && bytes.len() == 4 && bytes.is_sorted(), "{refused} {bytes:?}");
}

#[test]
fn a_slab_that_cannot_double_is_not_copied_in_every_step() {
    let workers = workers(1);
    let mut set = set(2);
    let memory = 40_000_000;
    let gpu = gpu(memory);
    let mut tables = move_rows(&set, &gpu).unwrap();
    let (mut moves, mut most) = (0, 0);
    let refused = (1..10_000).find_map(|step| {
        let generation = tables.generation();
        let plan = plan(step * 2_000..(step + 1) * 2_000);
        assert_eq!(begin_and_end(&mut tables, &mut set, &workers, (&plan, step)), None);
        let refused = tables.cache_reason().map(str::to_owned);
        if refused.is_none() {
            let free = gpu.free_bytes().unwrap();
            assert!(free >= memory / 32, "{free} bytes are left in step {step}");
            most = most.max(tables.device_bytes());
            // From a third of the memory on, the old and twice the memory do not fit together.
            moves += u64::from(tables.generation() > generation && most > memory / 3);
        }
        refused
    });
    let refused = refused.unwrap();
    assert!(refused.contains(" must stay free for the batches"), "{refused}");
    assert!(most > memory * 7 / 10, "the rows had only {most} bytes");
    assert!(moves <= 16, "the rows have moved {moves} times");
}

#[test]
fn rows_that_are_loaded_again_have_places_for_the_keys_of_their_shard_alone() {
    let workers = workers(1);
    let mut set = set(16);
    let mut tables = move_rows(&set, &gpu(64 << 20)).unwrap();
    tables.forget(&mut set).unwrap();
    let plan = plan(0..4_000);
    assert_eq!(begin_and_end(&mut tables, &mut set, &workers, (&plan, 1)), None);
    // One chunk of each shard, and a quarter more.
    let most = 20 * 1024 * MOST_ROW_BYTES;
    assert!(tables.device_bytes() <= most, "{} bytes", tables.device_bytes());
}

#[test]
fn a_step_without_room_has_not_begun() {
    let workers = workers(1);
    let mut set = set(2);
    let gpu = gpu(9_000_000);
    let mut tables = move_rows(&set, &gpu).unwrap();
    let few = plan(0..100);
    assert_eq!(begin_and_end(&mut tables, &mut set, &workers, (&few, 1)), None);
    let before = set.statistics();
    let many = plan(100..80_000);
    let refused = begin_and_end(&mut tables, &mut set, &workers, (&many, 2)).unwrap();
    assert!(refused.contains("the memory of the GPU"), "{refused}");
    tables.count(&mut set).unwrap();
    assert_eq!(set.statistics()[0].counters.pushed, 100);
    assert_eq!(set.rows(zillion_feature::TableId(0)), 100);
    assert_eq!(before[0].rows, set.statistics()[0].rows);
    // A smaller step is done on the device again, with all rows.
    let some = plan(50..150);
    assert_eq!(begin_and_end(&mut tables, &mut set, &workers, (&some, 2)), None);
    assert_eq!(tables.cache_reason(), None);
}
