//! Tests of tables at their limits. The bytes must be the same for all numbers of shards and
//! threads and after all restarts. The memory must stay within the limit, and the right rows and
//! keys must be evicted and refused. The filter of waiting keys in a checkpoint is tested too.

use zillion_feature::{FeatureKey, SLOTS, TableId, Use};

use crate::set::tests::capacity::{contents, pushed, spec, train};
use crate::testing::fixtures::*;
use crate::{Counters, TableSet};
use zillion_rows::conformance::plan_of;
use zillion_rows::{Admission, ByteSize, Eviction, PinnedId, TableSpec};

/// Returns the keys of a step: `hot` keys that occur in every step, and `new` keys that occur in no
/// other step.
fn stream_keys(step: u64, hot: u64, new: u64) -> Vec<FeatureKey> {
    let fresh = (0..new).map(|i| 1_000_000 + step * new + i);
    (0..hot).chain(fresh).chain(0..hot / 2).map(key).collect()
}

fn policies() -> Vec<TableSpec> {
    let limited = |admission, eviction| TableSpec {
        max_rows: Some(6000),
        pinned: vec![PinnedId::Number(1_000_300), PinnedId::Text("x".into())],
        ..spec(admission, eviction)
    };
    let bloom = Admission::Bloom { at_least: 2, keys: 4000, error: 0.01 };
    let lfu = Eviction::Lfu {
        half_life: zillion_rows::Span::Steps(10),
        below: Some(0.2),
        every: Some(16),
    };
    let score = Eviction::Score { show_weight: 1.0, click_weight: 5.0, below: None, every: None };
    vec![
        limited(Admission::All, Eviction::Lru),
        limited(Admission::All, lfu),
        limited(bloom, Eviction::L2 { below: None, every: None }),
        limited(Admission::Probability { p: 0.4 }, score),
        limited(Admission::Count { at_least: 2 }, Eviction::Unseen { steps: 50 }),
        TableSpec {
            max_bytes: Some(ByteSize(4 << 20)),
            ..limited(
                Admission::Count { at_least: 2 },
                Eviction::Lfu { half_life: zillion_rows::Span::Steps(9), below: None, every: None },
            )
        },
    ]
}

/// Runs the given steps. The keys of a step are its own keys and the new keys of the step three
/// steps before it.
fn run(
    set: &mut TableSet,
    workers: &zillion_device::Workers,
    steps: std::ops::RangeInclusive<u64>,
) {
    for step in steps {
        let mut keys = stream_keys(step, 500, 900);
        keys.extend(stream_keys(step.saturating_sub(3), 0, 900));
        train(set, workers, &keys, step);
    }
}

#[test]
fn shards_threads_and_restarts_do_not_change_who_goes() {
    for spec in policies() {
        let mut reference = None;
        for (n, threads, restart) in [(1, 1, None), (3, 2, None), (8, 2, Some(5)), (64, 1, Some(1))]
        {
            let workers = workers(threads);
            let mut set = TableSet::new(vec![spec.clone()], shards(n)).unwrap();
            run(&mut set, &workers, 1..=13);
            if let Some(n) = restart {
                let folder = tempfile::tempdir().unwrap();
                let (parts, _) = checkpoint(&set, &workers, folder.path());
                set = TableSet::new(vec![spec.clone()], shards(n)).unwrap();
                set.restore(&workers, folder.path(), &parts).unwrap();
            }
            run(&mut set, &workers, 14..=30);
            let folder = tempfile::tempdir().unwrap();
            let (parts, _) = checkpoint(&set, &workers, folder.path());
            if restart.is_none() {
                let counters = set.statistics()[0].counters;
                assert!(counters.displaced > 500, "{:?}: {counters:?}", spec.eviction);
            }
            let first = reference.get_or_insert(parts.clone());
            assert!(parts == *first, "{:?} on {n} shards", spec.eviction);
        }
    }
}

#[test]
fn what_comes_often_stays_in_a_table_that_is_looked_at_in_slices() {
    for eviction in [
        Eviction::Lfu { half_life: zillion_rows::Span::Steps(100), below: None, every: None },
        Eviction::Lru,
        Eviction::Score { show_weight: 1.0, click_weight: 1.0, below: None, every: None },
    ] {
        let workers = workers(1);
        let limit = 40_000;
        let spec = TableSpec { max_rows: Some(limit), ..spec(Admission::All, eviction) };
        let mut set = TableSet::new(vec![spec], shards(4)).unwrap();
        for step in 1..=60 {
            let counted = train(&mut set, &workers, &stream_keys(step, 2000, 1500), step);
            assert!(set.rows(TableId(0)) <= limit);
            // The table made room before the next step needed it.
            assert_eq!(counted.refused_full, 0, "{eviction:?} at step {step}");
            if step > 1 {
                assert_eq!(counted.created, 1500, "{eviction:?} at step {step}");
            }
        }
        // Of the 40,000 rows, 3,000 are kept free for the next step.
        assert!(set.rows(TableId(0)) > limit * 9 / 10);
    }
}

#[test]
fn a_full_table_that_evicts_none_refuses_new_keys() {
    let workers = workers(1);
    let spec = TableSpec { max_rows: Some(100), ..spec(Admission::All, Eviction::Never) };
    let mut set = TableSet::new(vec![spec], shards(3)).unwrap();
    train(&mut set, &workers, &(0..80).map(key).collect::<Vec<_>>(), 1);
    let counted = train(&mut set, &workers, &(0..130).map(key).collect::<Vec<_>>(), 2);
    assert_eq!((counted.created, counted.refused_full, counted.pushed), (20, 30, 100));
    // The keys that came first in the plan were admitted.
    let plan = plan_of(&[(0..130).map(key).collect::<Vec<_>>()]);
    let new: Vec<FeatureKey> =
        plan.tables[0].keys.iter().copied().filter(|k| k.unmix() >= 80).collect();
    let (rows, _) = contents(&set);
    assert!(new[..20].iter().all(|k| rows.contains_key(k)));
    assert!(new[20..].iter().all(|k| !rows.contains_key(k)));
}

#[test]
fn memory_stays_within_its_limit() {
    let lfu = Eviction::Lfu { half_life: zillion_rows::Span::Steps(50), below: None, every: None };
    let bloom = Admission::Bloom { at_least: 2, keys: 20_000, error: 0.01 };
    for (limit, new, admission, eviction) in [
        (1 << 20, 400, Admission::All, lfu),
        (2 << 20, 900, Admission::All, Eviction::Never),
        (8 << 20, 3000, Admission::Count { at_least: 2 }, Eviction::Lru),
        (6 << 20, 3000, bloom, lfu),
        (48 << 20, 30_000, Admission::All, Eviction::Lru),
        (160 << 20, 60_000, Admission::All, Eviction::Lru),
    ] {
        let workers = workers(2);
        let spec = TableSpec { max_bytes: Some(ByteSize(limit)), ..spec(admission, eviction) };
        let most = spec.most_rows().unwrap();
        let mut set = TableSet::new(vec![spec], shards(8)).unwrap();
        let mut largest = 0;
        for step in 1..=40 {
            let mut keys = stream_keys(step, 300, new);
            keys.extend(stream_keys(step.saturating_sub(2), 0, new));
            let plan = plan_of(&[keys]);
            let raw = pushed(&set, &plan, step);
            set.push(&workers, &plan, &raw, update(step, 1.0)).unwrap();
            largest = largest.max(set.statistics()[0].total_bytes());
            set.sweep(&workers, update(step, 1.0)).unwrap();
            largest = largest.max(set.statistics()[0].total_bytes());
            assert!(set.rows(TableId(0)) <= most);
            assert!(largest <= limit, "{largest} bytes of {limit} at step {step}, {eviction:?}");
        }
        let counters = set.statistics()[0].counters;
        assert!(counters.displaced + counters.refused_full > 0, "{eviction:?}: {counters:?}");
        // The slabs of small tables have memory that rows do not fill.
        let least = if limit < 160 << 20 { limit / 2 } else { limit * 3 / 4 };
        let is_filled = admission == Admission::All && limit > 40 << 20;
        assert!(largest > least || !is_filled, "{largest} bytes of {limit} are used");
    }
}

#[test]
fn places_of_rows_that_went_are_slack_and_keep_no_chunk() {
    let (workers, folder) = (workers(2), tempfile::tempdir().unwrap());
    let lru = |rows| TableSpec { max_rows: Some(rows), ..spec(Admission::All, Eviction::Lru) };
    let reserved = |set: &TableSet| {
        let table = set.statistics().remove(0);
        assert_eq!(table.payload_bytes, table.rows * lru(1).weight_bytes() as u64, "{table:?}");
        table.payload_bytes + table.state_bytes + table.slack_bytes
    };
    // Each slab of both shards has six chunks; then only one shard gets rows.
    let mut large = TableSet::new(vec![lru(2_000_000)], shards(2)).unwrap();
    for step in 1..=8 {
        train(&mut large, &workers, &stream_keys(step, 500, 200_000), step);
    }
    let (parts, _) = checkpoint(&large, &workers, folder.path());
    let mut set = TableSet::new(vec![lru(200_000)], shards(2)).unwrap();
    set.restore(&workers, folder.path(), &parts).unwrap();
    assert!(reserved(&set) > reserved(&large) / 2);
    // A group that needs fewer rows than in the step before has enough room, and is not visited. So
    // the steps are three times as many as are needed to visit every slot once.
    for step in 9..=60 {
        train(&mut set, &workers, &stream_keys(step, 500, 3000), step);
        reserved(&set);
    }
    assert!(set.statistics()[0].counters.displaced > 1_400_000);
    // A table that never had more rows has the same number of chunks, or one chunk less for each
    // slab.
    let mut small = TableSet::new(vec![lru(200_000)], shards(2)).unwrap();
    train(&mut small, &workers, &stream_keys(1, 500, 199_000), 1);
    let chunks = 2 * 2 * (2 << 20);
    assert!(reserved(&set) <= reserved(&small) + chunks, "of {} bytes", reserved(&large));
    // Nothing is kept if a step has no keys.
    train(&mut set, &workers, &[], 61);
    assert!(set.shards.iter().all(|shard| !shard.tables[0].has_free_list()));
}

#[test]
fn rows_that_move_from_shard_to_shard_take_their_memory_along() {
    let workers = workers(2);
    let limit = 1 << 20;
    let spec =
        TableSpec { max_bytes: Some(ByteSize(limit)), ..spec(Admission::All, Eviction::Lru) };
    let most = spec.most_rows().unwrap();
    let mut set = TableSet::new(vec![spec], shards(8)).unwrap();
    assert_eq!(set.groups(), [1], "a small limit is one group, whose rows can be in any shard");
    let mut fullest = [0; 8];
    for step in 1..=160 {
        // Twenty steps have keys of one shard, then twenty have keys of the next shard.
        let shard = (step - 1) as usize / 20;
        let slots = set.map().range(shard);
        let fresh = (0..).map(|i| key(step << 32 | i)).filter(|key| slots.contains(&key.slot()));
        train(&mut set, &workers, &fresh.take(most as usize / 8).collect::<Vec<_>>(), step);
        let table = &set.statistics()[0];
        assert!(table.total_bytes() <= limit, "{} bytes at step {step}", table.total_bytes());
        let rows = set.rows(TableId(0));
        assert!(rows <= most);
        fullest[shard] = fullest[shard].max(rows);
    }
    // A step that creates many rows leaves a quarter free for the next.
    assert!(fullest.iter().all(|&rows| rows > most * 2 / 3), "{fullest:?} rows of {most}");
}

#[test]
fn a_group_of_slots_has_only_its_part_of_a_limit() {
    let workers = workers(2);
    for eviction in [Eviction::Lru, Eviction::Never] {
        let spec = TableSpec { max_rows: Some(40_000), ..spec(Admission::All, eviction) };
        let mut set = TableSet::new(vec![spec], shards(3)).unwrap();
        assert_eq!(set.groups(), [8]);
        let in_first = |key: &FeatureKey| key.slot() < SLOTS / 8;
        let keys: Vec<FeatureKey> = (0..).map(key).filter(in_first).take(7000).collect();
        let others = (0..).map(key).filter(|key| !in_first(key)).take(9000);
        let counted =
            train(&mut set, &workers, &keys.iter().copied().chain(others).collect::<Vec<_>>(), 1);
        assert_eq!((counted.created, counted.refused_full), (14_000, 2000), "{eviction:?}");
        let rows = set.group_rows().remove(0);
        // The first group makes room for later keys; the other groups have room.
        let expected = if eviction.is_never() { 5000 } else { 3750 };
        assert_eq!(rows[0], expected, "{eviction:?}");
        assert_eq!(rows[1..].iter().sum::<u64>(), 9000);
    }
}

#[test]
fn keys_that_a_filter_takes_for_others_find_no_room_that_was_given_to_those() {
    let workers = workers(2);
    // The plan has many keys of three slots, so that the filter mistakes keys of one step for each
    // other.
    let admission = Admission::Bloom { at_least: 2, keys: 100, error: 0.5 };
    let in_three_slots = |key: &FeatureKey| [0, SLOTS / 2, SLOTS - 1].contains(&key.slot());
    let mut admitted = 0;
    for limit in [1, 40, 3000] {
        let spec = TableSpec { max_rows: Some(limit), ..spec(admission, Eviction::Never) };
        let mut sets = [1, 3, 8].map(|n| TableSet::new(vec![spec.clone()], shards(n)).unwrap());
        for step in 1..=40 {
            let fresh = (0..).map(|i| key(step << 32 | i)).filter(in_three_slots);
            let keys: Vec<FeatureKey> = fresh.take(300).collect();
            let counted = sets.each_mut().map(|set| train(set, &workers, &keys, step));
            assert!(counted.iter().all(|of| *of == counted[0]), "{counted:?}");
            let rows = sets[0].rows(TableId(0));
            assert!(rows <= limit, "{rows} rows of {limit} at step {step}");
            admitted += counted[0].admitted;
        }
    }
    assert!(admitted > 100, "{admitted} keys were taken for others");
}

#[test]
fn tables_share_a_limit_and_small_ones_get_what_they_need() {
    let workers = workers(2);
    let limit = 8 << 20;
    let lru = spec(Admission::All, Eviction::Lru);
    let named = |name: &str, spec: &TableSpec| TableSpec { name: name.to_owned(), ..spec.clone() };
    let tables = vec![
        named("large", &lru),
        named("small", &lru),
        named("kept", &spec(Admission::All, Eviction::Never)),
        named("counted", &spec(Admission::Count { at_least: 2 }, Eviction::Lru)),
    ];
    let mut bytes = None;
    for n in [1, 8] {
        let mut set = TableSet::new(tables.clone(), shards(n)).unwrap();
        set.limit_bytes(Some(ByteSize(limit))).unwrap();
        let mut counted = Counters::default();
        for step in 1..=60 {
            let keys = [
                stream_keys(step, 100, 3000),
                (0..500).map(key).collect(),
                stream_keys(step, 100, 100),
                stream_keys(step / 2, 100, 2000),
            ];
            let plan = plan_of(&keys);
            let raw = pushed(&set, &plan, step);
            counted.add(set.push(&workers, &plan, &raw, update(step, 1.0)).unwrap());
            let total = |set: &TableSet| -> u64 {
                set.statistics().iter().map(|table| table.total_bytes()).sum()
            };
            assert!(total(&set) <= limit, "{} bytes at step {step}", total(&set));
            counted.add(set.sweep(&workers, update(step, 1.0)).unwrap());
        }
        let rows: Vec<u64> = (0..4).map(|i| set.rows(TableId(i))).collect();
        assert!(rows[1] == 500 && rows[0] > 8000 && rows[3] > 4000, "{rows:?}");
        assert!(counted.displaced > 0);
        let folder = tempfile::tempdir().unwrap();
        let (parts, _) = checkpoint(&set, &workers, folder.path());
        assert!(*bytes.get_or_insert(parts.clone()) == parts, "{n} shards");
    }
}

#[test]
fn beside_a_frozen_table_another_makes_room_in_what_is_left() {
    let workers = workers(2);
    let lru = spec(Admission::All, Eviction::Lru);
    let named = |name: &str| TableSpec { name: name.to_owned(), ..lru.clone() };
    let mut set = TableSet::new(vec![named("frozen"), named("learning")], shards(2)).unwrap();
    set.limit_bytes(Some(ByteSize(8 << 20))).unwrap();
    let mut counted = Counters::default();
    let mut run = |set: &mut TableSet, step: u64, keys: [Vec<FeatureKey>; 2]| {
        let plan = plan_of(&keys);
        let raw = pushed(set, &plan, step);
        set.push(&workers, &plan, &raw, update(step, 1.0)).unwrap();
        counted.add(set.sweep(&workers, update(step, 1.0)).unwrap());
        counted.displaced
    };
    // One table takes most of the limit while the other is small, and is then frozen.
    (1..=40).for_each(|step| _ = run(&mut set, step, [stream_keys(step, 100, 3000), vec![key(1)]]));
    set.freeze(&[TableId(0)]).unwrap();
    let rows = set.rows(TableId(0));
    let before = run(&mut set, 41, [vec![key(1)], stream_keys(41, 100, 3000)]);
    let mut after = before;
    for step in 42..=100 {
        after = run(&mut set, step, [vec![key(1)], stream_keys(step, 100, 3000)]);
    }
    assert!(after > before + 10_000, "{} rows made room for new ones", after - before);
    assert_eq!(set.rows(TableId(0)), rows);
}

#[test]
fn shows_are_pushed_where_they_are_kept_and_nowhere_else() {
    let workers = workers(1);
    let score =
        Eviction::Score { show_weight: 1.0, click_weight: 1.0, below: Some(0.1), every: None };
    let keeps = spec(Admission::All, score);
    let other = spec(Admission::All, Eviction::Never);
    let plan = plan_of(&[vec![key(1), key(2)]]);
    type Change = fn(&mut Option<Vec<Use>>);
    let cases: [(&TableSpec, Change, &str); 4] = [
        (&keeps, |uses| *uses = None, "none were pushed"),
        (&other, |uses| *uses = Some(vec![Use::default(); 2]), "keeps none"),
        (&keeps, |uses| uses.as_mut().unwrap().truncate(1), "2 keys were pushed, but shows of 1"),
        (&keeps, |uses| uses.as_mut().unwrap()[1].clicks = f32::NAN, "of key 1 are not finite"),
    ];
    for (spec, change, expected) in cases {
        let mut set = TableSet::new(vec![spec.clone()], shards(2)).unwrap();
        let mut raw = pushed(&set, &plan, 1);
        change(&mut raw.tables[0].uses);
        let error = set.push(&workers, &plan, &raw, update(1, 1.0)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(set.rows(TableId(0)), 0);
    }
}

fn filtered(keys: u64) -> TableSpec {
    let admission = Admission::Bloom { at_least: 3, keys, error: 0.01 };
    spec(admission, Eviction::Never)
}

#[test]
fn a_filter_goes_on_from_a_checkpoint() {
    let workers = workers(2);
    let mut set = TableSet::new(vec![filtered(10_000)], shards(3)).unwrap();
    run(&mut set, &workers, 1..=6);
    let folder = tempfile::tempdir().unwrap();
    let (parts, _) = checkpoint(&set, &workers, folder.path());
    assert!(parts[0].filter.as_ref().unwrap().rows > 1000);
    let mut other = TableSet::new(vec![filtered(10_000)], shards(5)).unwrap();
    other.restore(&workers, folder.path(), &parts).unwrap();
    run(&mut set, &workers, 7..=12);
    run(&mut other, &workers, 7..=12);
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    assert_eq!(checkpoint(&set, &workers, a.path()), checkpoint(&other, &workers, b.path()));

    // The counts of a filter with other settings are not compatible.
    let mut other = TableSet::new(vec![filtered(10_000_000)], shards(5)).unwrap();
    let error = other.restore(&workers, folder.path(), &parts).unwrap_err().to_string();
    assert!(error.contains("blocks a slot"), "{error}");
    let mut other = TableSet::new(vec![spec(Admission::All, Eviction::Never)], shards(5)).unwrap();
    let error = other.restore(&workers, folder.path(), &parts).unwrap_err().to_string();
    assert!(error.contains("a filter of keys that wait"), "{error}");
    assert_eq!(other.rows(TableId(0)), 0);
}

/// Checks that a file of a filter with wrong content gives an error and never a panic, even if the
/// hash of the file is right.
#[test]
fn a_filter_with_any_bytes_is_refused_or_read() {
    let workers = workers(1);
    let mut set = TableSet::new(vec![filtered(10_000)], shards(2)).unwrap();
    run(&mut set, &workers, 1..=1);
    let folder = tempfile::tempdir().unwrap();
    let (mut parts, _) = checkpoint(&set, &workers, folder.path());
    let file = parts[0].filter.as_ref().unwrap().parts[1].file.clone();
    let path = folder.path().join(&file);
    let whole = std::fs::read(&path).unwrap();
    let mut other = TableSet::new(vec![filtered(10_000)], shards(2)).unwrap();
    let mut bytes = whole.clone();
    bytes[whole.len() / 2] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let error = other.restore(&workers, folder.path(), &parts).unwrap_err().to_string();
    assert!(error.contains(&file), "{error}");
    let mut refused = 0;
    for at in (0..whole.len()).step_by(7) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x80 >> (at % 8);
        let info = &mut parts[0].filter.as_mut().unwrap().parts[1];
        info.blake3 = blake3::hash(&bytes).to_hex().to_string();
        std::fs::write(&path, bytes).unwrap();
        refused += u32::from(other.restore(&workers, folder.path(), &parts).is_err());
    }
    assert!(refused > 50, "{refused} refused");
}
