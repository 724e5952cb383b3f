//! Tests that compare the index with a `BTreeMap`.

use std::collections::BTreeMap;

use proptest::prelude::*;
use zillion_feature::{FeatureKey, SLOTS};

use crate::index::{Compact, Counted, Entry, Index};

#[derive(Clone, Debug)]
enum Action {
    Insert(u64),
    Remove(u64),
    Get(u64),
    Tidy(u64),
}

/// Returns a strategy for keys that collide: they are in few slots, have few home buckets, or are
/// at the ends of the range.
fn key() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(u64::MAX),
        (0u64..3, 0u64..400).prop_map(|(slot, low)| slot << 52 | low),
        (0u64..2, 0u64..400).prop_map(|(slot, high)| slot << 52 | high << 40),
        (0u64..4096).prop_map(|slot| slot << 52 | slot),
        any::<u64>(),
        // More keys of one home than its reach has room for.
        (0u64..2000).prop_map(|low| 9 << 52 | low),
        (0u64..2000).prop_map(|low| 9 << 52 | low),
        (0u64..2000).prop_map(|low| 9 << 52 | low),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => key().prop_map(Action::Insert),
        2 => key().prop_map(Action::Remove),
        1 => key().prop_map(Action::Get),
        1 => key().prop_map(Action::Tidy),
    ]
}

fn entries(index: &Index) -> Vec<(u64, Entry)> {
    let mut entries: Vec<_> =
        index.slots().flat_map(|s| index.slot_entries(s)).map(|(k, row)| (k.0, row)).collect();
    entries.sort_unstable();
    entries
}

proptest! {
    #[test]
    fn an_index_is_a_map(actions in prop::collection::vec(action(), 0..1500)) {
        let mut index = Index::<Compact>::new(0..SLOTS);
        let mut model = BTreeMap::new();
        for (row, action) in actions.into_iter().enumerate() {
            let row = row as u32;
            match action {
                Action::Insert(k) => {
                    prop_assert_eq!(index.get(FeatureKey(k)), model.get(&k).copied());
                    if let std::collections::btree_map::Entry::Vacant(entry) = model.entry(k) {
                        entry.insert(Entry::full(row));
                        index.insert(FeatureKey(k), Entry::full(row)).unwrap();
                    }
                }
                Action::Remove(k) => {
                    prop_assert_eq!(index.remove(FeatureKey(k)), model.remove(&k));
                }
                Action::Tidy(k) => index.tidy(FeatureKey(k).slot()),
                Action::Get(k) => {
                    index.prefetch(FeatureKey(k));
                    prop_assert_eq!(index.get(FeatureKey(k)), model.get(&k).copied());
                }
            }
            prop_assert_eq!(index.len(), model.len());
        }
        prop_assert_eq!(entries(&index), model.clone().into_iter().collect::<Vec<_>>());
        for (&k, &row) in &model {
            prop_assert_eq!(index.get(FeatureKey(k)), Some(row));
        }
        let by_slot: usize = index.slots().map(|s| index.slot_len(s)).sum();
        prop_assert_eq!(by_slot, model.len());
    }
}

#[test]
fn keys_of_one_home_are_found_beside_the_slots() {
    // The 2,000 keys differ in the lowest bits only. So bucket 0 is the home of all of them, more
    // keys pass it than a bucket can count, and most keys have no room in reach of it.
    let mut index = Index::<Compact>::new(5..6);
    let keys: Vec<FeatureKey> = (0..2000).map(|i| FeatureKey(5 << 52 | i)).collect();
    for (row, &key) in keys.iter().enumerate() {
        index.insert(key, Entry::full(row as u32)).unwrap();
    }
    for (row, &key) in keys.iter().enumerate() {
        assert_eq!(index.get(key), Some(Entry::full(row as u32)));
    }
    for &key in keys.iter().step_by(2) {
        assert!(index.remove(key).is_some());
    }
    for (row, &key) in keys.iter().enumerate() {
        assert_eq!(index.get(key), (row % 2 == 1).then_some(Entry::full(row as u32)));
    }
    assert_eq!(index.len(), 1000);
    let in_slot: Vec<_> = index.slot_entries(5).collect();
    assert_eq!((in_slot.len(), index.slot_len(5)), (1000, 1000));
    assert!(in_slot.iter().all(|&(key, entry)| index.get(key) == Some(entry)));
    for &key in keys.iter().skip(1).step_by(2) {
        index.redirect(key, Entry::full(7));
        assert_eq!(index.get(key), Some(Entry::full(7)));
        assert_eq!(index.remove(key), Some(Entry::full(7)));
    }
    index.tidy(5);
    assert_eq!((index.len(), index.slot_entries(5).count(), index.used_bytes()), (0, 0, 0));
}

#[test]
fn counted_keys_of_one_home_keep_their_words() {
    let mut index = Index::<Counted>::new(5..6);
    let key = |i: u64| FeatureKey(5 << 52 | i);
    (0..2000).for_each(|i| index.insert_tagged(key(i), 1 << 52 | i, i as u32));
    (0..2000).for_each(|i| index.set(key(i), (2 + i % 7) << 52 | i, 3 * i as u32));
    for i in 0..2000 {
        assert_eq!(index.entry(key(i)), Some(((2 + i % 7) << 52 | i, 3 * i as u32)));
    }
    let mut words: Vec<_> = index.slot_entries(5).collect();
    words.sort_unstable_by_key(|&(word, _)| word.0 << 12);
    let expected = (0..2000).map(|i| (FeatureKey((2 + i % 7) << 52 | i), 3 * i as u32));
    assert_eq!(words, expected.collect::<Vec<_>>());
}

#[test]
fn an_index_of_mixed_keys_takes_less_than_seventeen_bytes_a_key_at_any_moment() {
    let mut index = Index::<Compact>::new(0..64);
    let (mut worst, mut worst_mapped) = (0.0f64, 0.0f64);
    let mut row = 0;
    for id in 0u64.. {
        let key = FeatureKey::from_u64(id);
        if key.slot() >= 64 {
            continue;
        }
        index.insert(key, Entry::full(row)).unwrap();
        row += 1;
        if row > 30_000 && row % 1_000 == 0 {
            worst = worst.max(index.used_bytes() as f64 / f64::from(row));
            worst_mapped = worst_mapped.max(index.bytes() as f64 / f64::from(row));
        }
        if row == 100_000 {
            break;
        }
    }
    assert!(worst < 17.0, "{worst} bytes a key");
    assert!(worst_mapped < 28.0, "{worst_mapped} bytes a key, with what is free between the slots");
}

#[test]
fn slots_that_have_lost_their_keys_give_their_memory_back() {
    let mut index = Index::<Compact>::new(0..64);
    let empty = index.bytes();
    let keys: Vec<FeatureKey> =
        (0u64..).map(FeatureKey::from_u64).filter(|k| k.slot() < 64).take(192_000).collect();
    for (row, &key) in keys.iter().enumerate() {
        index.insert(key, Entry::full(row as u32)).unwrap();
    }
    let full = index.bytes();
    let (stay, go) = keys.split_at(19_200);
    for &key in go {
        assert!(index.remove(key).is_some());
    }
    (0..64).for_each(|slot| index.tidy(slot));
    assert!(index.bytes() < full / 3, "{} of {full} bytes", index.bytes());
    for (row, &key) in stay.iter().enumerate() {
        assert_eq!(index.get(key), Some(Entry::full(row as u32)));
    }
    for &key in stay {
        index.remove(key);
    }
    (0..64).for_each(|slot| index.tidy(slot));
    assert_eq!(index.bytes(), empty);
}

#[test]
fn keys_that_come_and_go_for_ever_leave_no_endless_probe() {
    let mut index = Index::<Compact>::new(5..6);
    let mut keys = (0u64..).map(FeatureKey::from_u64).filter(|k| k.slot() == 5);
    for full in [4, 9, 13, 40] {
        let mut live = std::collections::VecDeque::new();
        for turn in 0..20_000u32 {
            let key = keys.next().unwrap();
            assert_eq!(index.get(key), None);
            index.insert(key, Entry::full(turn)).unwrap();
            live.push_back((key, turn));
            if live.len() > full {
                let (gone, row) = live.pop_front().unwrap();
                assert_eq!(index.remove(gone), Some(Entry::full(row)));
            }
        }
        for &(key, row) in &live {
            assert_eq!(index.get(key), Some(Entry::full(row)));
            assert_eq!(index.remove(key), Some(Entry::full(row)));
        }
    }
    assert_eq!(index.len(), 0);
}
