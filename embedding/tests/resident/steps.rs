//! The costs and the limits of rows on a device: what a warm step does, what a missing settlement
//! leaves, and what is refused.

use std::num::NonZeroUsize;

use zillion_device::Workers;
use zillion_device::gpu::emulated::{EmulatedOptions, Pace};
use zillion_embedding::{Rates, ResidentTables, TableSet, Update};
use zillion_feature::{FeatureKey, LookupPlan, Step, TableId};
use zillion_rows::conformance::plan_of;
use zillion_rows::{
    Admission, Dtype, Eviction, Growth, InitializerSpec, OptimizerSpec, SegmentSpec, TableSpec,
};

use crate::device::{OnDevice, workers};

fn table(name: &str) -> TableSpec {
    let normal = InitializerSpec::Normal { mean: 0.0, std: 0.1 };
    let segment =
        SegmentSpec { l2: 0.1, ..SegmentSpec::new("v", 8, normal, OptimizerSpec::adam(0.1)) };
    TableSpec { seed: 3, ..TableSpec::new(name, vec![segment]) }
}

/// Returns a set with a dynamic table, a table that admits keys and a swept table.
fn set(workers: &Workers) -> TableSet {
    let admission = Admission::Count { at_least: 2 };
    let specs = vec![
        table("plain"),
        TableSpec { admission, dtype: Dtype::Bf16, ..table("admits") },
        TableSpec { dense: true, ..table("swept") },
    ];
    let mut set = TableSet::new(specs, NonZeroUsize::new(3).unwrap()).unwrap();
    let mut keys: Vec<FeatureKey> = (0..50).map(FeatureKey::from_u64).collect();
    keys.sort_unstable();
    set.prefill(workers, TableId(2), &keys).unwrap();
    set
}

fn plan(first: u64) -> LookupPlan {
    let keys: Vec<FeatureKey> = (first..first + 30).map(FeatureKey::from_u64).collect();
    plan_of(&[keys.clone(), keys.clone(), keys])
}

fn update(step: u64) -> Update {
    Update { step: Step(step), rates: Rates::default(), scale: 1.0 }
}

/// Returns options of a device that runs every operation at once.
fn eager() -> EmulatedOptions {
    EmulatedOptions { pace: Pace::Eager, ..EmulatedOptions::seeded(1) }
}

#[test]
fn warm_steps_wait_for_nothing_and_allocate_nothing() {
    let workers = workers(1);
    let mut set = set(&workers);
    let mut device = OnDevice::new(&set, eager(), Some(1.0));
    device.zero_gradients();
    let plan = plan(0);
    let mut before = None;
    for step in 1..=300 {
        device.step_again(&mut set, &workers, &plan, update(step)).unwrap();
        if step == 3 {
            before = Some((device.gpu.counters(), device.tables.generation()));
        }
    }
    let (before, generation) = before.unwrap();
    let after = device.gpu.counters();
    assert_eq!(after.host_waits, before.host_waits);
    assert_eq!(after.allocations, before.allocations);
    assert_eq!(after.pinned_allocations, before.pinned_allocations);
    assert_eq!(device.tables.generation(), generation);
    assert_eq!(after.replays - before.replays, 297);
    device.tables.settle(&mut set).unwrap();
    assert_eq!(set.find(TableId(1), FeatureKey::from_u64(0)).unwrap().row.unwrap().count, 299);
}

#[test]
fn a_host_that_is_far_ahead_waits_and_loses_no_count() {
    let workers = workers(1);
    let mut set = set(&workers);
    let lazy = EmulatedOptions { pace: Pace::Lazy, ..EmulatedOptions::seeded(2) };
    let mut device = OnDevice::new(&set, lazy, None);
    device.zero_gradients();
    for step in 1..=200 {
        device.step_again(&mut set, &workers, &plan(step % 9), update(step)).unwrap();
    }
    device.tables.settle(&mut set).unwrap();
    let reports: Vec<_> =
        std::iter::from_fn(|| device.tables.collect(&mut set, false).unwrap()).collect();
    assert_eq!(reports.len(), 200);
    let steps: Vec<u64> = reports.iter().map(|report| report.step.0).collect();
    assert_eq!(steps, (1..=200).collect::<Vec<u64>>());
    let counters = set.statistics();
    assert_eq!(counters[0].counters.pushed, 200 * 30);
    assert_eq!(counters[1].counters.waiting, 38, "each key waits once");
}

#[test]
fn rows_that_are_not_settled_are_old() {
    let workers = workers(1);
    let mut set = set(&workers);
    let mut device = OnDevice::new(&set, eager(), None);
    device.zero_gradients();
    let find = |set: &TableSet, table| {
        let found = set.find(TableId(table), FeatureKey::from_u64(40)).unwrap();
        found.row.map(|row| (row.weights, row.state))
    };
    // The row of the key changes without a gradient, because its table is swept.
    let begun = find(&set, 2);
    for step in 1..=3 {
        device.step_again(&mut set, &workers, &plan(0), update(step)).unwrap();
    }
    assert_eq!(find(&set, 2), begun);
    device.tables.settle(&mut set).unwrap();
    let settled = find(&set, 2);
    assert_ne!(settled, begun);
    device.step_again(&mut set, &workers, &plan(0), update(4)).unwrap();
    device.tables.forget(&mut set).unwrap();
    // The rows of a step that was not settled are lost.
    assert_eq!(find(&set, 2), settled);
}

#[test]
fn rows_that_do_not_fit_into_the_memory_have_a_cache_there() {
    let workers = workers(1);
    let mut set = set(&workers);
    let small = EmulatedOptions { memory_bytes: 12_500_000, ..eager() };
    let mut device = OnDevice::new(&set, small, None);
    device.zero_gradients();
    let (mut step, mut bytes) = (0, 0);
    let error = loop {
        step += 1;
        bytes = bytes.max(device.tables.device_bytes());
        device.step_again(&mut set, &workers, &plan(step * 30), update(step)).unwrap();
        if let Some(reason) = device.tables.cache_reason() {
            break reason.to_owned();
        }
        assert!(step < 10_000, "the memory is never full");
    };
    assert!(error.contains("table `plain`: its rows need "), "{error}");
    assert!(
        error.contains(" must stay free for the batches; use a GPU with more memory"),
        "{error}"
    );
    assert_eq!(set.rows(TableId(0)), step * 30);
    // The rows may take most of the memory, although a slab that grows is copied.
    assert!(bytes > 5_000_000, "{bytes} bytes of rows");
    // The cache takes what the rows had, and the table goes on growing.
    let begun = step;
    while step < 2 * begun {
        step += 1;
        device.step_again(&mut set, &workers, &plan(step * 30), update(step)).unwrap();
        device.tables.look_ahead(&mut set, &workers, &plan((step + 1) * 30)).unwrap();
    }
    let slots = device.tables.cache_figures().unwrap().slots;
    assert!(slots > 20_000 && slots < step * 30, "{slots} slots");
    assert!(device.tables.device_bytes() > 5_000_000);
    device.tables.settle(&mut set).unwrap();
    assert_eq!(set.rows(TableId(0)), step * 30);
}

#[test]
fn calls_out_of_order_and_plans_of_other_tables_are_refused() {
    let workers = workers(1);
    let mut set = set(&workers);
    let mut device = OnDevice::new(&set, eager(), None);
    let refused = device.tables.end(&mut set).unwrap_err().to_string();
    assert!(refused.contains("no step has begun"), "{refused}");
    let two = plan_of(&[vec![FeatureKey(1)], vec![FeatureKey(2)]]);
    let refused = device.step_again(&mut set, &workers, &two, update(1)).unwrap_err();
    assert!(refused.contains("needs all 3 tables"), "{refused}");
    let mut notes = zillion_feature::RowBuffer::default();
    notes.reshape((0..3).map(|_| (0, 1)));
    device.tables.begin(&mut set, &workers, &plan(0), &mut notes, update(1)).unwrap();
    let refused = device.tables.settle(&mut set).unwrap_err().to_string();
    assert!(refused.contains("end it first"), "{refused}");
}

#[test]
fn settings_that_move_rows_on_the_host_are_refused_by_name() {
    let with = |spec: TableSpec| {
        let set = TableSet::new(vec![table("good"), spec], NonZeroUsize::MIN).unwrap();
        ResidentTables::refusal(&set)
    };
    assert_eq!(with(table("other")), None);
    assert_eq!(with(TableSpec { dense: true, max_rows: Some(9), ..table("bad") }), None);
    let grow = Some(Growth { at: 3, from: Some(2) });
    let eviction = Eviction::Unseen { steps: 4 };
    assert_eq!(with(TableSpec { eviction, ..table("bad") }), None);
    assert_eq!(with(TableSpec { max_rows: Some(100), ..table("bad") }), None);
    let (below, every) = (None, None);
    let by_weights = TableSpec { eviction: Eviction::L2 { below, every }, ..table("bad") };
    for (key, spec) in [
        ("eviction", TableSpec { max_rows: Some(100), ..by_weights }),
        ("grow", TableSpec { grow, ..table("bad") }),
    ] {
        let reason = with(spec).unwrap();
        assert!(reason.starts_with(&format!("`tables.bad.{key}` is set")), "{reason}");
    }
}

#[test]
fn events_and_memory_do_not_grow_with_the_steps() {
    let workers = workers(1);
    let mut set = set(&workers);
    let mut device = OnDevice::new(&set, eager(), Some(1.0));
    device.zero_gradients();
    let plan = |first: u64, count: u64| {
        let keys: Vec<FeatureKey> = (first..first + count).map(FeatureKey::from_u64).collect();
        plan_of(&[keys.clone(), keys.clone(), keys])
    };
    let live = |device: &OnDevice| {
        let counters = device.gpu.counters();
        [counters.live_events, counters.live_streams, counters.live_bytes]
    };
    let mut before = None;
    for step in 1..=10_000 {
        device.step_again(&mut set, &workers, &plan(step % 7, 3), update(step)).unwrap();
        if step == 100 {
            before = Some(live(&device));
        }
    }
    assert_eq!(Some(live(&device)), before);
    // Larger batches get another block, with the events of the old one given back.
    let [events, ..] = live(&device);
    for count in 4..40 {
        device.step_again(&mut set, &workers, &plan(0, count), update(10_000 + count)).unwrap();
    }
    assert_eq!(live(&device)[0], events);
    // The rows leave the device with all of their events.
    let gpu = device.leave(&mut set);
    assert_eq!(gpu.counters().live_events, 0);
}
