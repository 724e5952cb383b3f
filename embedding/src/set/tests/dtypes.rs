//! Tests of tables whose weights have 16 bits.

use proptest::prelude::*;
use zillion_feature::{RowBuffer, Step, TableId};

use crate::testing::fixtures::*;
use crate::{Rates, TableSet, Update};
use zillion_rows::conformance::plan_of;
use zillion_rows::{Bounds, Dtype, InitializerSpec, OptimizerSpec, TableSpec};

fn spec(dtype: Dtype, dense: bool, optimizer: OptimizerSpec) -> TableSpec {
    let mut vector = segment("v", 16, optimizer, 0.0);
    vector.initializer = InitializerSpec::Constant { value: 1.0 };
    TableSpec { dtype, ..table("ids", dense, vec![vector]) }
}

fn at(step: u64) -> Update {
    Update { step: Step(step), rates: Rates::default(), scale: 1.0 }
}

/// Trains some keys with the same gradient for all weights in each step. Returns the weights at the
/// end.
fn train(set: &mut TableSet, keys: u64, steps: u64, gradient: f32) -> Vec<f32> {
    let workers = workers(1);
    let plan = plan_of(&[(0..keys).map(key).collect()]);
    let mut rows = RowBuffer::default();
    set.pull(&workers, &plan, false, &mut rows).unwrap();
    for step in 1..=steps {
        let mut gradients = rows.clone();
        gradients.tables[0].values.fill(gradient);
        set.push(&workers, &plan, &gradients, at(step)).unwrap();
        set.sweep(&workers, at(step)).unwrap();
    }
    set.pull(&workers, &plan, false, &mut rows).unwrap();
    rows.tables[0].values.clone()
}

#[test]
fn many_small_gradients_add_up_though_each_is_below_the_last_place() {
    let (keys, steps, gradient) = (64u64, 1000u64, 1e-4f32);
    for (dtype, dense) in
        [(Dtype::Bf16, false), (Dtype::Bf16, true), (Dtype::F16, false), (Dtype::F32, false)]
    {
        // In a dense table, momentum moves all rows in a sweep; with momentum zero it is plain
        // gradient descent.
        let rule = OptimizerSpec::Momentum { lr: 1.0, momentum: 0.0, nesterov: false, scope: None };
        let mut set = TableSet::new(vec![spec(dtype, dense, rule)], shards(3)).unwrap();
        if dense {
            set.prefill(&workers(1), TableId(0), &sorted_keys(0..keys)).unwrap();
        }
        let ends = train(&mut set, keys, steps, gradient);
        assert_eq!(ends.len() as u64, keys * 16);
        let mean = ends.iter().map(|&w| f64::from(w)).sum::<f64>() / ends.len() as f64;
        // Below one, neighbouring bf16 numbers differ by 2⁻⁸, and a step has a variance of at most
        // width × step.
        let sigma = (steps as f64 * 1e-4 / 256.0 / ends.len() as f64).sqrt();
        assert!((mean - 0.9).abs() < 4.0 * sigma, "{dtype:?}: {mean}, σ {sigma}");
        if dtype == Dtype::Bf16 {
            let mut stuck = [1.0 - gradient];
            dtype.round_nearest(&mut stuck);
            assert_eq!(stuck, [1.0], "to the nearest, no step would have been taken");
        }
    }
}

#[test]
fn what_is_beyond_the_largest_number_becomes_it_and_is_counted() {
    let sgd = OptimizerSpec::Sgd { lr: 1.0 };
    let mut set = TableSet::new(vec![spec(Dtype::F16, false, sgd)], shards(2)).unwrap();
    let rows = train(&mut set, 3, 2, -40_000.0);
    assert!(rows.iter().all(|&w| w == 65504.0), "{rows:?}");
    let counters = set.statistics()[0].counters;
    assert_eq!((counters.saturated, counters.pushed), (3 * 16, 6));
    let rows = train(&mut set, 3, 1, 1.0);
    assert!(rows.iter().all(|&w| (65440.0..=65504.0).contains(&w)), "they can come back");
}

#[test]
fn bounds_hold_in_every_type_for_new_rows_and_moved_ones() {
    for dtype in Dtype::ALL {
        let mut table = spec(dtype, false, OptimizerSpec::Sgd { lr: 1.0 });
        table.segments[0].bounds = Some(Bounds { low: -0.3, high: 0.7 });
        let mut set = TableSet::new(vec![table], shards(1)).unwrap();
        let ends = [-0.01f32, 0.01].map(|gradient| {
            let rows = train(&mut set, 5, 300, gradient);
            assert!(rows.iter().all(|w| (-0.3..=0.7).contains(w)), "{dtype:?}: {rows:?}");
            rows[0]
        });
        assert!(ends[0] > 0.69 && ends[1] < -0.29, "{dtype:?}: {ends:?}");
        let fresh = train(&mut set, 6, 0, 0.0);
        let highest = fresh.iter().filter(|w| (0.69..=0.7).contains(*w));
        assert_eq!(highest.count(), 16, "{dtype:?}: the row that is not there yet is {fresh:?}");
    }
}

#[test]
fn memory_is_what_the_spec_says() {
    for (dtype, dim, bytes) in
        [(Dtype::F32, 17, 80), (Dtype::F16, 17, 48), (Dtype::Bf16, 16, 32), (Dtype::Bf16, 1, 16)]
    {
        let rowwise = OptimizerSpec::rowwise_adagrad(0.1);
        let mut table = spec(dtype, false, rowwise);
        table.segments[0].dim = dim;
        let spec = table.clone();
        // A row has its state, three words of metadata, and a share of the index.
        let index = spec.index_memory(1 << 30) / (1 << 30);
        assert_eq!(spec.bytes_per_row(), bytes + 16 + index, "{dtype:?} {dim}");
        let weights = (dim * dtype.bytes()) as u64;
        assert_eq!(spec.checkpoint_bytes_per_row(), 8 + weights + 4 + 16);
        let mut set = TableSet::new(vec![table], shards(1)).unwrap();
        let workers = workers(1);
        let plan = plan_of(&[(0..1000).map(key).collect()]);
        let gradients = gradients(&set, &plan, 1);
        set.push(&workers, &plan, &gradients, at(1)).unwrap();
        let statistics = &set.statistics()[0];
        assert_eq!((statistics.rows, statistics.payload_bytes), (1000, 1000 * bytes));
    }
}

#[test]
fn a_base_holds_the_same_numbers_in_f32() {
    use zillion_rows::layer::{Layer, LayerSource, Unthrottled, layer_of_checkpoint};
    let workers = workers(2);
    let files = zillion_device::Files::new();
    for dtype in [Dtype::F16, Dtype::Bf16] {
        let rowwise = OptimizerSpec::rowwise_adagrad(0.1);
        let table = spec(dtype, false, rowwise);
        let mut set = TableSet::new(vec![table.clone()], shards(3)).unwrap();
        let rows = train(&mut set, 200, 4, 0.01);
        let (live, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let stored = tempfile::tempdir().unwrap();
        let manifest = set.write_base(&workers, &files, live.path(), &mut Unthrottled).unwrap();
        let (listed, _) = checkpoint(&set, &workers, parts.path());
        let specs = [table];
        let of_parts = layer_of_checkpoint(
            &workers,
            parts.path(),
            &specs,
            &listed,
            &files,
            stored.path(),
            &mut Unthrottled,
        )
        .unwrap();
        assert_eq!(of_parts, manifest, "{dtype:?}");
        let layouts = [specs[0].layout()];
        let layer = Layer::open(live.path(), &manifest, &layouts).unwrap();
        let source = LayerSource::new(
            &specs,
            vec![layer],
            std::sync::Arc::new(crate::testing::fixtures::workers(1)),
        );
        let source = source.unwrap();
        let plan = plan_of(&[(0..200).map(key).collect()]);
        for (key, row) in source.rows_of(0) {
            let i = plan.tables[0].keys.iter().position(|k| *k == key).unwrap();
            assert_eq!(row.weights, &rows[i * 16..(i + 1) * 16]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Checks that the number of shards, the number of threads and a restart change no bit.
    #[test]
    fn rounding_is_the_same_for_any_shards_and_threads_and_after_a_restart(
        dtype in prop_oneof![Just(Dtype::F16), Just(Dtype::Bf16)],
        dense in any::<bool>(),
        stop in 1u64..6,
        n in 1usize..9,
        threads in 1usize..3,
    ) {
        let specs = || {
            let adam = OptimizerSpec::adam(0.01);
            let mut table = spec(dtype, dense, adam);
            table.segments[0].l2 = 0.1;
            vec![table]
        };
        let begin = |n: usize| {
            let mut set = TableSet::new(specs(), shards(n)).unwrap();
            if dense {
                set.prefill(&workers(1), TableId(0), &sorted_keys(0..80)).unwrap();
            }
            set
        };
        let (one, many) = (workers(1), workers(threads));
        let mut whole = begin(1);
        (1..=6).for_each(|t| { clipped_step(&mut whole, &one, t, 100); });
        let mut first = begin(n);
        (1..=stop).for_each(|t| { clipped_step(&mut first, &many, t, 100); });
        let folder = tempfile::tempdir().unwrap();
        let (parts, _) = checkpoint(&first, &many, folder.path());
        let mut second = TableSet::new(specs(), shards(10 - n)).unwrap();
        second.restore(&many, folder.path(), &parts).unwrap();
        (stop + 1..=6).for_each(|t| { clipped_step(&mut second, &many, t, 100); });
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        prop_assert!(
            checkpoint(&second, &one, a.path()) == checkpoint(&whole, &one, b.path())
        );
    }
}
