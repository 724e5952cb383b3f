//! Tests of lookup plans against a simple computation.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use proptest::prelude::*;

use super::*;
use crate::batch::KeyColumn;
use crate::seeded::tests::crafted_keys;

fn schema() -> Schema {
    let job: toml::Table = toml::from_str(
        r#"
        [features.a]
        kind = "id"
        table = "shared"
        [features.b]
        kind = "ids"
        table = "shared"
        [features.c]
        kind = "id"
        [labels.y]
        "#,
    )
    .unwrap();
    Schema::from_job(&job.into()).unwrap()
}

fn batch(a: &[u64], b: &[Vec<u64>], c: &[u64]) -> Batch {
    let mut batch = Batch::empty(&schema());
    batch.rows = a.len();
    let keys = |ids: &[u64]| ids.iter().map(|&i| FeatureKey::from_u64(i)).collect::<Vec<_>>();
    let mut offsets = vec![0];
    for row in b {
        offsets.push(offsets.last().unwrap() + row.len() as i32);
    }
    batch.sparse[0] = KeyColumn::single(keys(a));
    batch.sparse[1] = KeyColumn::ragged(offsets, keys(&b.concat()));
    batch.sparse[2] = KeyColumn::single(keys(c));
    batch
}

proptest! {
    #[test]
    fn few_and_many_keys_are_sorted_alike(keys in prop::collection::btree_set(any::<u64>(), 0..600), spread in 0u32..60) {
        let mut scratch = PlanScratch::default();
        // A smaller range of keys puts more keys into one slot.
        let keys: std::collections::BTreeSet<u64> = keys.iter().map(|k| k >> spread).collect();
        scratch.unique.keys = keys.iter().map(|&k| FeatureKey(k.rotate_right(7))).collect();
        let few = (scratch.sort_few(), scratch.rank.clone());
        let many = (scratch.sort_many(), scratch.rank.clone());
        prop_assert_eq!(few, many);
    }
}

proptest! {
    #[test]
    fn a_plan_for_scoring_gives_each_value_its_key(
        ids in prop::collection::vec((0u64..4, 0u64..3, prop::collection::vec(0u64..3, 0..3)), 1..40),
        has_lists: bool,
    ) {
        let [a, c] = [0, 1].map(|at| {
            ids.iter().map(|row| if at == 0 { row.0 } else { row.1 }).collect::<Vec<_>>()
        });
        let lists: Vec<Vec<u64>> = ids.iter().map(|row| row.2.clone()).collect();
        let mut batch = batch(&a, &lists, &c);
        if !has_lists {
            batch.sparse[1] = KeyColumn::single(batch.sparse[0].keys.iter().rev().copied().collect());
        }
        let mut scratch = PlanScratch::default();
        let plan = LookupPlan::for_scoring(&batch, &schema(), &mut scratch);
        for (column, keys) in plan.columns.iter().zip(&batch.sparse) {
            let of_plan = &plan.tables[column.table].keys;
            let found = column.inverse.iter().map(|&index| of_plan[index as usize]);
            prop_assert!(found.eq(keys.keys.iter().copied()));
        }
        let built = LookupPlan::build(&batch, &schema(), &mut scratch);
        if has_lists {
            prop_assert_eq!(&plan.tables[0], &built.tables[0]);
        }
        let bases = |plan: &LookupPlan| plan.columns.iter().map(|c| c.base).collect::<Vec<_>>();
        prop_assert_eq!(bases(&plan), bases(&built));
        // A column of one id has one row.
        let repeats = c.windows(2).filter(|pair| pair[0] == pair[1]).count();
        prop_assert_eq!(plan.tables[1].keys.len(), c.len() - repeats);
    }
}

fn check(batch: &Batch, plan: &LookupPlan) {
    for (table, members) in [(0usize, vec![0usize, 1]), (1, vec![2])] {
        let plan_table = &plan.tables[table];
        let values: Vec<FeatureKey> =
            members.iter().flat_map(|&c| batch.sparse[c].keys.clone()).collect();
        // Keys are unique and sorted by slot, and inside a slot by first occurrence.
        let mut first: BTreeMap<FeatureKey, usize> = BTreeMap::new();
        for (i, &key) in values.iter().enumerate() {
            first.entry(key).or_insert(i);
        }
        let mut expected: Vec<FeatureKey> = first.keys().copied().collect();
        expected.sort_by_key(|k| (k.slot(), first[k]));
        assert_eq!(plan_table.keys, expected);
        // The inverse index of each value leads to the key of the value.
        for &c in &members {
            let column = &plan.columns[c];
            assert_eq!(column.table, table);
            for (value, &index) in batch.sparse[c].keys.iter().zip(&column.inverse) {
                assert_eq!(plan_table.keys[index as usize], *value);
            }
        }
        // The occurrences contain each position exactly once, ascending for each key.
        let occurrences = &plan_table.occurrences;
        for (u, &key) in plan_table.keys.iter().enumerate() {
            let range = occurrences.offsets[u] as usize..occurrences.offsets[u + 1] as usize;
            let wanted: Vec<u32> =
                (0..values.len()).filter(|&i| values[i] == key).map(|i| i as u32).collect();
            assert_eq!(occurrences.positions[range], wanted);
        }
        for shards in [1, 3, 8] {
            let map = ShardMap::new(NonZeroUsize::new(shards).unwrap());
            let ranges = plan_table.shard_ranges(&map);
            let mut next = 0;
            for (shard, range) in ranges.into_iter().enumerate() {
                assert_eq!(range.start, next);
                next = range.end;
                assert!(plan_table.keys[range].iter().all(|k| map.shard_of(k.slot()) == shard));
            }
            assert_eq!(next, plan_table.keys.len());
        }
    }
}

proptest! {
    #[test]
    fn a_plan_is_what_a_naive_one_would_be(
        rows in prop::collection::vec((0u64..50, prop::collection::vec(0u64..50, 0..4), any::<u64>()), 0..80),
        again in prop::collection::vec((0u64..9, prop::collection::vec(any::<u64>(), 0..4), 0u64..3), 0..80),
    ) {
        let mut scratch = PlanScratch::default();
        for rows in [rows, again] {
            let a: Vec<u64> = rows.iter().map(|r| r.0).collect();
            let b: Vec<Vec<u64>> = rows.iter().map(|r| r.1.clone()).collect();
            let c: Vec<u64> = rows.iter().map(|r| r.2).collect();
            let batch = batch(&a, &b, &c);
            check(&batch, &LookupPlan::build(&batch, &schema(), &mut scratch));
        }
    }
}

#[test]
fn scratch_survives_the_wrap_of_its_generation() {
    let mut scratch = PlanScratch::default();
    let batch = batch(&[1, 2, 1], &[vec![], vec![2, 2], vec![3]], &[9, 9, 9]);
    check(&batch, &LookupPlan::build(&batch, &schema(), &mut scratch));
    scratch.unique.set_generation(u32::MAX - 1);
    for _ in 0..4 {
        check(&batch, &LookupPlan::build(&batch, &schema(), &mut scratch));
    }
}

#[test]
fn a_plan_does_not_depend_on_the_seed() {
    let ids: Vec<u64> = (0..300).map(|i| FeatureKey(i << 26).unmix() % 977).collect();
    let lists: Vec<Vec<u64>> = ids.iter().map(|&id| vec![id, id / 2, 5]).collect();
    let batch = batch(&ids, &lists, &ids);
    let plan = |seed| LookupPlan::build(&batch, &schema(), &mut PlanScratch::with_seed(seed));
    check(&batch, &plan(0));
    assert!((1..20).all(|seed| plan(seed) == plan(0)));
}

#[test]
fn crafted_keys_are_planned_as_any_others() {
    for (_, keys) in crafted_keys(900) {
        let ids: Vec<u64> = keys.iter().map(|key| key.unmix()).collect();
        let batch = batch(&ids, &vec![vec![]; ids.len()], &ids);
        check(&batch, &LookupPlan::build(&batch, &schema(), &mut PlanScratch::default()));
    }
}
