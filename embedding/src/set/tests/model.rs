//! Tests that compare tables with a `BTreeMap` after random histories.

use std::collections::BTreeMap;

use proptest::prelude::*;
use zillion_feature::{FeatureKey, RowBuffer, Step, TableId};

use crate::testing::fixtures::*;
use crate::{Rates, TableSet, Update};
use zillion_rows::conformance::plan_of;
use zillion_rows::{Dtype, OptimizerSpec, TableSpec};

const LR: f32 = 0.25;
const DIM: usize = 5;

#[derive(Clone, Debug)]
struct Round {
    keys: Vec<FeatureKey>,
    /// The positions in the plan of the gradients that are not finite.
    poisoned: Vec<usize>,
}

fn any_key() -> impl Strategy<Value = FeatureKey> {
    prop_oneof![
        Just(FeatureKey(0)),
        Just(FeatureKey(u64::MAX)),
        (0u64..60).prop_map(key),
        (0u64..40).prop_map(|low| FeatureKey(9 << 52 | low)),
    ]
}

fn round() -> impl Strategy<Value = Round> {
    let keys = prop::collection::vec(any_key(), 0..50);
    (keys, prop::collection::vec(0usize..50, 0..3))
        .prop_map(|(keys, poisoned)| Round { keys, poisoned })
}

/// Returns the settings of an optimizer step with all factors at 1.
fn at(step: u64) -> Update {
    Update { step: Step(step), rates: Rates::default(), scale: 1.0 }
}

#[derive(Default)]
struct Model {
    /// The rows by key, each with its weights and its number of pushes.
    rows: BTreeMap<FeatureKey, ([f32; DIM], u32)>,
    missing: u64,
    refused: u64,
    nonfinite: u64,
    created: u64,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn tables_are_maps_that_learn(
        dense in any::<bool>(),
        dtype in prop::sample::select(&Dtype::ALL[..]),
        n in 1usize..6,
        rounds in prop::collection::vec(round(), 1..12),
        vocabulary in prop::collection::btree_set(any_key(), 0..40),
    ) {
        let workers = workers(1);
        let segments = vec![segment("v", DIM, OptimizerSpec::Sgd { lr: LR }, 0.0)];
        let spec = TableSpec { dtype, ..table("t", dense, segments) };
        let shape = crate::shape::TableShape::new(spec.clone()).unwrap();
        let initial = |key| {
            let mut row = [0.0; 8];
            shape.fill_initial(key, &mut row);
            let mut weights = [0.0; DIM];
            weights.copy_from_slice(&row[..DIM]);
            weights
        };
        let mut set = TableSet::new(vec![spec.clone()], shards(n)).unwrap();
        let mut model = Model::default();
        if dense {
            let keys: Vec<FeatureKey> = vocabulary.into_iter().collect();
            set.prefill(&workers, TableId(0), &keys).unwrap();
            model.rows.extend(keys.iter().map(|&k| (k, (initial(k), 0))));
            model.created = keys.len() as u64;
        }
        let mut pulled = 0;
        for (t, round) in rounds.iter().enumerate() {
            let t = t as u64 + 1;
            let plan = plan_of(std::slice::from_ref(&round.keys));
            let keys = &plan.tables[0].keys;
            let mut rows = RowBuffer::default();
            set.pull(&workers, &plan, true, &mut rows).unwrap();
            pulled += keys.len() as u64;
            for (i, k) in keys.iter().enumerate() {
                let found = model.rows.get(k).copied();
                model.missing += u64::from(found.is_none());
                let (weights, count) = found.unwrap_or_else(|| (initial(*k), 0));
                prop_assert_eq!(&rows.tables[0].row(i)[..DIM], &weights[..]);
                prop_assert_eq!(&rows.tables[0].row(i)[DIM..], &[0.0; 3][..]);
                prop_assert_eq!(rows.tables[0].counts.as_ref().unwrap()[i], count);
            }
            let mut raw = gradients(&set, &plan, t);
            for &p in round.poisoned.iter().filter(|&&p| p < keys.len()) {
                raw.tables[0].values[p * 8 + p % DIM] = if p % 2 == 0 { f32::NAN } else { f32::NEG_INFINITY };
            }
            let counted = set.push(&workers, &plan, &raw, at(t)).unwrap();
            let mut pushed = 0;
            for (i, &k) in keys.iter().enumerate() {
                let g = raw.tables[0].row(i);
                if dense && !model.rows.contains_key(&k) {
                    model.refused += 1;
                    continue;
                }
                let row = model.rows.entry(k).or_insert_with(|| { model.created += 1; (initial(k), 0) });
                row.1 += 1;
                if !g[..DIM].iter().all(|x| x.is_finite()) {
                    model.nonfinite += 1;
                    continue;
                }
                pushed += 1;
                for (unit, (w, g)) in row.0.iter_mut().zip(g).enumerate() {
                    *w = dtype.round_pushed(spec.seed, k.0, t, unit, *w - LR * g);
                }
            }
            prop_assert_eq!(counted.pushed, pushed);
        }
        let statistics = &set.statistics()[0];
        prop_assert_eq!(statistics.rows, model.rows.len() as u64);
        let counters = statistics.counters;
        prop_assert_eq!(counters.pulled, pulled);
        prop_assert_eq!(counters.missing, model.missing);
        prop_assert_eq!(counters.refused, model.refused);
        prop_assert_eq!(counters.nonfinite, model.nonfinite);
        prop_assert_eq!(counters.created, model.created);

        // The checkpoint holds the model, in key order.
        let folder = tempfile::tempdir().unwrap();
        let (parts, _) = checkpoint(&set, &workers, folder.path());
        prop_assert_eq!(parts[0].rows, model.rows.len() as u64);
        let specs = vec![spec];
        let mut source =
            zillion_rows::PartSource::open(&workers, folder.path(), specs.clone(), &parts).unwrap();
        let expected = vec![model.rows.iter().map(|(k, (w, _))| (*k, w.to_vec())).collect()];
        let absent = vec![(1000..1010).map(key).collect()];
        zillion_rows::conformance::check(&mut source, &expected, &absent, &|_, k| initial(k).to_vec())
            .map_err(TestCaseError::fail)?;
        // The restored tables hold the model too, and they write the same checkpoint again.
        let mut restored = TableSet::new(specs, shards(6 - n)).unwrap();
        restored.restore(&workers, folder.path(), &parts).unwrap();
        let again = tempfile::tempdir().unwrap();
        prop_assert_eq!(&checkpoint(&restored, &workers, again.path()).0, &parts);
        zillion_rows::conformance::check(
            &mut crate::testing::LiveRows::new(&mut restored, &workers), &expected, &absent,
            &|_, k| initial(k).to_vec(),
        )
        .map_err(TestCaseError::fail)?;
    }
}
