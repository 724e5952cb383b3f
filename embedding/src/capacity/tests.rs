//! Tests that compare the curves with simulations of all keys, and samples with exact results.

use std::collections::BTreeMap;

use proptest::prelude::*;
use zillion_feature::random::{combine, mix64};

use super::*;
use crate::testing::fixtures::{key, segment, table};
use zillion_rows::OptimizerSpec;

fn grid() -> Grid {
    Grid::of(&table("ids", false, vec![segment("v", 2, OptimizerSpec::Sgd { lr: 0.1 }, 0.0)]))
}

#[test]
fn a_grid_has_the_settings_of_the_table() {
    let spec = table("ids", false, vec![segment("v", 2, OptimizerSpec::Sgd { lr: 0.1 }, 0.0)]);
    let count = Admission::Count { at_least: 7 };
    let bloom = Admission::Bloom { at_least: 7, keys: 1000, error: 0.01 };
    assert!(!Grid::of(&spec).thresholds.contains(&7));
    for admission in [count, bloom] {
        let eviction = Eviction::Unseen { steps: 33 };
        let grid = Grid::of(&TableSpec { admission, eviction, ..spec.clone() });
        assert!(grid.thresholds.contains(&7) && grid.thresholds.is_sorted(), "{admission:?}");
        assert!(grid.limits.contains(&33) && grid.limits.is_sorted());
    }
}

/// Returns the unique keys of a step in the order of their first occurrences, each with its number
/// of occurrences.
fn unique(ids: &[u64]) -> Vec<(FeatureKey, u32)> {
    let mut counts: Vec<(u64, u32)> = Vec::new();
    for &id in ids {
        match counts.iter_mut().find(|(other, _)| *other == id) {
            Some((_, count)) => *count += 1,
            None => counts.push((id, 1)),
        }
    }
    counts.into_iter().map(|(id, count)| (key(id), count)).collect()
}

fn follow(steps: &[Vec<u64>], limit: usize) -> Usage {
    let mut tracker = Tracker::new(grid(), limit);
    for ids in steps {
        tracker.step(ids.len() as u64, unique(ids).into_iter());
    }
    tracker.finish()
}

/// Simulates a table that creates a row after `at_least` occurrences of a key. Returns the number
/// of values whose key had a row before the step, and the number of rows at the end.
fn admitted(steps: &[Vec<u64>], at_least: u32) -> (u64, u64) {
    let (mut counts, mut found) = (BTreeMap::new(), 0);
    for ids in steps {
        let has_row = |id: &&u64| counts.get(*id).is_some_and(|&n| n >= at_least);
        found += ids.iter().filter(has_row).count() as u64;
        ids.iter().for_each(|&id| *counts.entry(id).or_insert(0) += 1);
    }
    (found, counts.values().filter(|&&n| n >= at_least).count() as u64)
}

/// Simulates a table that evicts rows that were unseen for more than `limit` steps. Returns the
/// number of values that came after the eviction of their row, the number of rows that were created
/// again, and the number of rows after each step.
fn evicted(steps: &[Vec<u64>], limit: u64) -> (u64, u64, Vec<u64>) {
    let mut rows: BTreeMap<u64, u64> = BTreeMap::new();
    let mut known = std::collections::BTreeSet::new();
    let (mut lost, mut returns, mut sizes) = (0, 0, Vec::new());
    for (at, ids) in steps.iter().enumerate() {
        let step = at as u64 + 1;
        for (key, times) in unique(ids) {
            if known.contains(&key) && !rows.contains_key(&key.0) {
                lost += u64::from(times);
                returns += 1;
            }
            known.insert(key);
        }
        rows.extend(unique(ids).iter().map(|(key, _)| (key.0, step)));
        rows.retain(|_, last| *last + limit >= step);
        sizes.push(rows.len() as u64);
    }
    (lost, returns, sizes)
}

/// Returns the number of hits of an LRU cache of `rows` rows. The cache sees the keys of a step one
/// after another.
fn lru(steps: &[Vec<u64>], rows: u64) -> u64 {
    let mut list: Vec<FeatureKey> = Vec::new();
    let mut hits = 0;
    for ids in steps {
        for (key, _) in unique(ids) {
            if let Some(at) = list.iter().position(|&other| other == key) {
                hits += 1;
                list.remove(at);
            } else if list.len() as u64 == rows {
                list.remove(0);
            }
            list.push(key);
        }
    }
    hits
}

fn close(found: f64, expected: f64) -> bool {
    (found - expected).abs() < 1e-9
}

fn check(steps: &[Vec<u64>]) {
    let usage = follow(steps, 1 << 20);
    let values: u64 = steps.iter().map(|ids| ids.len() as u64).sum();
    let lookups: u64 = steps.iter().map(|ids| unique(ids).len() as u64).sum();
    let mut all: Vec<u64> = steps.concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!((usage.one_in, usage.keys, usage.keys_error), (1, all.len() as u64, 0.0));
    assert_eq!((usage.values, usage.lookups, usage.rows), (values, lookups, values));
    assert_eq!(usage.growth.last().map(|p| (p.rows, p.keys)), Some((values, usage.keys)));
    for point in &usage.admission {
        let (found, rows) = admitted(steps, point.at_least);
        assert_eq!(point.rows, rows, "{point:?}");
        assert!(close(point.found, found as f64 / values as f64), "{point:?} {found}");
        assert_eq!(point.found_error, 0.0);
    }
    for point in &usage.eviction {
        let (lost, returns, sizes) = evicted(steps, point.unseen);
        assert!(close(point.lost, lost as f64 / values as f64), "{point:?} {lost}");
        assert_eq!(point.returns, returns, "{point:?}");
        assert_eq!(Some(&point.rows_end), sizes.last(), "{point:?}");
        let most = *sizes.iter().max().unwrap();
        // The tracker measures at the end of each stretch of time, which is every step if there are
        // few.
        let exact = steps.len() <= 256;
        assert!(point.rows_peak <= most && (!exact || point.rows_peak == most), "{point:?} {most}");
    }
    for point in &usage.cache {
        let hits = lru(steps, point.rows);
        assert!(close(point.lru, hits as f64 / lookups as f64), "{point:?} {hits}");
        assert!(point.ideal <= 1.0 - usage.keys as f64 / lookups as f64 + 1e-9);
    }
    let whole = usage.cache.last().unwrap();
    assert!(close(whole.lru, 1.0 - usage.keys as f64 / lookups as f64) && whole.lru == whole.ideal);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn curves_are_those_of_tables_that_keep_everything(
        steps in prop::collection::vec(prop::collection::vec(0u64..50, 1..12), 1..120),
    ) {
        check(&steps);
    }
}

#[test]
fn long_passes_and_tired_keys_too() {
    // In 700 steps, stretches of time are merged twice, and keys pause for hundreds of steps.
    let steps: Vec<Vec<u64>> = (0..700u64)
        .map(|step| (0..4).map(|i| mix64(combine(step, i)) % (20 + step / 3)).collect())
        .collect();
    check(&steps);
}

/// Returns steps of 100 values. The ids are drawn from a million ids by Zipf's law with exponent
/// 1.05.
fn zipf(steps: u64) -> impl Iterator<Item = Vec<(FeatureKey, u32)>> {
    const IDS: usize = 1_000_000;
    let mut sums = Vec::with_capacity(IDS);
    let mut sum = 0.0;
    for id in 1..=IDS {
        sum += (id as f64).powf(-1.05);
        sums.push(sum);
    }
    (0..steps).map(move |step| {
        let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
        for i in 0..100 {
            let draw = mix64(combine(step, i)) as f64 / u64::MAX as f64 * sum;
            *counts.entry(sums.partition_point(|&s| s < draw) as u64).or_insert(0) += 1;
        }
        counts.into_iter().map(|(id, times)| (key(id), times)).collect()
    })
}

#[test]
fn a_sample_is_close_to_the_whole_and_small() {
    let run = |limit: usize| {
        let mut tracker = Tracker::new(grid(), limit);
        let mut most = 0;
        for keys in zipf(10_000) {
            tracker.step(100, keys.into_iter());
            most = most.max(tracker.bytes());
        }
        let fixed: usize = tracker.events.iter().map(Events::bytes).sum();
        assert!(fixed < 3 << 20, "{fixed}");
        assert!(most - fixed <= KEY_BYTES * limit.max(tracker.keys.len()), "{most} bytes");
        tracker.finish()
    };
    let whole = run(1 << 20);
    assert_eq!(whole.one_in, 1);
    assert!(whole.keys > 100_000);
    let sample = run(1 << 13);
    assert!(sample.one_in >= 16 && sample.followed <= 1 << 13, "{}", sample.one_in);
    assert_eq!((sample.values, sample.lookups), (whole.values, whole.lookups));
    // The test allows twice the reported error, which one in some thousands of samples would
    // exceed.
    let keys = sample.keys as f64 / whole.keys as f64 - 1.0;
    assert!(keys.abs() <= 2.0 * sample.keys_error && sample.keys_error < 0.04, "{keys}");
    for (a, b) in sample.admission.iter().zip(&whole.admission) {
        assert!((a.found - b.found).abs() <= 2.0 * a.found_error.max(1e-9), "{a:?} {b:?}");
        assert!(a.at_least > 10 || a.found_error < 0.03, "{a:?}");
    }
    for a in &sample.eviction {
        let b = whole.eviction.iter().find(|b| b.unseen == a.unseen).unwrap();
        assert!((a.lost - b.lost).abs() < a.lost_error && a.lost_error < 0.04, "{a:?} {b:?}");
        assert_eq!(b.lost_error, 0.0);
        let rows = a.rows_end as f64 / b.rows_end as f64 - 1.0;
        assert!(rows.abs() < 0.25 && (rows.abs() < 0.1 || b.rows_end < 20_000), "{a:?} {b:?}");
    }
    assert!(sample.eviction.len() >= 4 && whole.eviction.len() > sample.eviction.len());
    let mut compared = 0;
    for a in &sample.cache {
        let Some(b) = whole.cache.iter().find(|b| b.rows == a.rows) else { continue };
        assert!(a.error < 0.04 && b.error == 0.0, "{a:?}");
        assert!((a.lru - b.lru).abs() < a.error, "{a:?} {b:?}");
        assert!((a.ideal - b.ideal).abs() < a.error, "{a:?} {b:?}");
        compared += 1;
    }
    assert!(compared >= 5 && whole.cache.len() > sample.cache.len());
    let (a, b) = (whole.heaps.unwrap(), sample.heaps.unwrap());
    assert!((a.beta - b.beta).abs() < 0.02 && a.error < 0.02, "{a:?} {b:?}");
}

#[test]
fn a_sample_is_what_it_would_have_been_from_the_beginning() {
    let steps: Vec<_> = zipf(1500).collect();
    let mut late = Tracker::new(grid(), 2048);
    for keys in &steps {
        late.step(100, keys.iter().copied());
    }
    let mut early = Tracker::new(grid(), 2048);
    early.level = late.level;
    assert!(late.level >= 3);
    for keys in &steps {
        early.step(100, keys.iter().copied());
    }
    let (late, early) = (late.finish(), early.finish());
    assert_eq!(late.growth, early.growth);
    assert_eq!(late.admission, early.admission);
    assert_eq!(late.eviction, early.eviction);
    // Only the distances differ: they were measured more finely at first.
    for (a, b) in late.cache.iter().zip(&early.cache) {
        assert!((a.lru - b.lru).abs() < a.error && a.ideal == b.ideal, "{a:?} {b:?}");
    }
}

#[test]
fn nothing_is_fine() {
    let usage = Tracker::new(grid(), 0).finish();
    assert_eq!((usage.keys, usage.values, usage.steps), (0, 0, 0));
    assert!(usage.growth.is_empty() && usage.eviction.is_empty() && usage.heaps.is_none());
    let mut tracker = Tracker::new(grid(), 0);
    tracker.step(5, std::iter::empty());
    tracker.step(5, [(FeatureKey(0), 3), (FeatureKey(u64::MAX), 1)].into_iter());
    let usage = tracker.finish();
    assert_eq!((usage.keys, usage.values, usage.rows), (2, 4, 10));
}
