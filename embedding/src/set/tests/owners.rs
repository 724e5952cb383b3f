//! Tests of sets that own some slots of each table. Together, they must write the rows that one set
//! with all slots writes, and each of them must restore its own slots from any checkpoint.

mod files;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;
use zillion_device::{Files, Workers};
use zillion_feature::{FeatureKey, RowBuffer, SLOTS, TableId};

use crate::set::tests::snapshots::{Act, Rows, any_key, contents, specs as snapshot_specs};
use crate::testing::checkpoint_oracle;
use crate::testing::fixtures::*;
use crate::{Keep, Order, TableSet, TableView};
use zillion_rows::conformance::plan_of;
use zillion_rows::layer::{Unthrottled, layer_of_checkpoint};
use zillion_rows::{
    Admission, Candidate, OptimizerSpec, PartInfo, PartSource, RowSource, TableParts, TableSpec,
};

/// The largest number of rows of a part. It is so small that tables have several parts.
const LIMIT: u64 = 20;

/// Returns tables with every rule, with narrow rows, waiting keys and evicted rows. One of them
/// counts keys in a filter.
fn specs() -> Vec<TableSpec> {
    let sgd = OptimizerSpec::Sgd { lr: 0.25 };
    let filtered = TableSpec {
        admission: Admission::Bloom { at_least: 2, keys: 300, error: 0.1 },
        ..table("filtered", false, vec![segment("v", 3, sgd, 0.0)])
    };
    snapshot_specs().into_iter().chain([filtered]).collect()
}

/// The slots of one owner, for each table.
type Slots = Vec<Range<usize>>;

/// Returns the slots of each owner. The owners divide the slots at `bounds`, and the bounds are
/// moved by some slots from table to table.
fn divide(bounds: &[usize]) -> Vec<Slots> {
    let mut bounds = bounds.to_vec();
    bounds.sort_unstable();
    let bound = |owner: usize, table: usize| match owner {
        0 => 0,
        owner => bounds.get(owner - 1).map_or(SLOTS, |at| (at + table * 64).min(SLOTS)),
    };
    let slots = |owner, table| bound(owner, table)..bound(owner + 1, table);
    let tables = specs().len();
    (0..=bounds.len()).map(|owner| (0..tables).map(|t| slots(owner, t)).collect()).collect()
}

fn owner(n: usize, slots: &Slots) -> TableSet {
    let mut set = TableSet::new(specs(), shards(n)).unwrap();
    set.follow_snapshots();
    set.own(slots.clone()).unwrap();
    set
}

/// Performs an action of the history on the slots that a set owns.
fn train(set: &mut TableSet, workers: &Workers, step: &mut u64, act: &Act) {
    let of_owner = |set: &TableSet, keys: &[FeatureKey], table: usize| -> Vec<FeatureKey> {
        let owned = set.owned(TableId(table as u16));
        keys.iter().copied().filter(|key| owned.contains(&key.slot())).collect()
    };
    match act {
        Act::Step(keys, _) => {
            *step += 1;
            let keys: Vec<_> = (0..specs().len()).map(|t| of_owner(set, keys, t)).collect();
            let plan = plan_of(&keys);
            let (raw, now) = (gradients(set, &plan, *step), update(*step, 1.0));
            set.push(workers, &plan, &raw, now).unwrap();
            set.sweep(workers, now).unwrap();
        }
        Act::Prefill(keys) => {
            for (table, spec) in specs().iter().enumerate().filter(|(_, spec)| spec.dense) {
                let keys = of_owner(set, keys, table);
                set.prefill(workers, TableId(table as u16), &keys).unwrap_or_else(|e| {
                    panic!("{}: {e}", spec.name);
                });
            }
        }
        Act::EndEpoch => drop(set.advance_dirty_epoch()),
        Act::Advance(rows) => set.advance_snapshot(workers, *rows),
    }
}

type FileBytes = BTreeMap<String, Vec<u8>>;

/// Returns every file in the folder of a checkpoint.
fn bytes(folder: &Path, parts: &[TableParts]) -> FileBytes {
    let files = parts.iter().flat_map(TableParts::files);
    files.map(|p| (p.file.clone(), std::fs::read(folder.join(&p.file)).unwrap())).collect()
}

/// Returns the checkpoint that a set writes while nothing changes.
fn stopped(set: &TableSet, workers: &Workers) -> (Vec<TableParts>, FileBytes) {
    let folder = tempfile::tempdir().unwrap();
    let parts = checkpoint_oracle(set, workers, folder.path(), &Files::new(), LIMIT).unwrap();
    let files = bytes(folder.path(), &parts);
    (parts, files)
}

type Contents = (Rows, BTreeMap<(usize, u64), Candidate>);

/// Returns the part of the content that lies in some slots.
fn only((rows, candidates): &Contents, slots: &Slots) -> Contents {
    let is_owned = |&(table, key): &(usize, u64)| slots[table].contains(&FeatureKey(key).slot());
    let rows = rows.iter().filter(|(place, _)| is_owned(place));
    let candidates = candidates.iter().filter(|(place, _)| is_owned(place));
    (
        rows.map(|(place, row)| (*place, row.clone())).collect(),
        candidates.map(|(place, candidate)| (*place, *candidate)).collect(),
    )
}

/// A checkpoint of a chain: its folder and its manifest entries.
#[derive(Debug)]
struct Saved {
    folder: PathBuf,
    parts: Vec<TableParts>,
}

/// Returns the entries of a checkpoint of changes, after the folders of the unchanged rows have
/// been set.
fn resolve(below: Option<&Saved>, mut parts: Vec<TableParts>) -> Vec<TableParts> {
    for (own, below) in parts
        .iter_mut()
        .zip(below.iter().flat_map(|saved| saved.parts.iter().map(|parts| (&saved.folder, parts))))
    {
        own.stand_on(below.0, below.1);
    }
    parts
}

#[derive(Clone, Debug)]
struct Round {
    before: Vec<Act>,
    is_whole: bool,
    during: Vec<Act>,
    /// The bounds of the owners that restore the checkpoint.
    bounds: Vec<usize>,
    /// Whether training goes on with the sets that restored the checkpoint.
    restart: bool,
}

fn bounds() -> impl Strategy<Value = Vec<usize>> {
    let bound = prop_oneof![0..=SLOTS, (0usize..=64).prop_map(|group| group * 64)];
    prop::sample::select(vec![0usize, 1, 2, 4])
        .prop_flat_map(move |n| prop::collection::vec(bound.clone(), n))
}

fn round() -> impl Strategy<Value = Round> {
    let wide_key = || prop_oneof![any_key(), (0u64..200).prop_map(key)];
    let act = move || {
        prop_oneof![
            6 => prop::collection::vec(wide_key(), 0..60).prop_map(|keys| Act::Step(keys, false)),
            3 => prop_oneof![0usize..40, Just(300), Just(3000)].prop_map(Act::Advance),
            1 => prop::collection::btree_set(any_key(), 0..20)
                .prop_map(|keys| Act::Prefill(keys.into_iter().collect())),
            1 => Just(Act::EndEpoch),
        ]
    };
    let acts = move |most: usize| prop::collection::vec(act(), 0..most);
    (acts(6), prop::bool::weighted(0.2), acts(8), bounds(), any::<bool>()).prop_map(
        |(before, is_whole, during, bounds, restart)| Round {
            before,
            is_whole,
            during,
            bounds,
            restart,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn owners_write_and_restore_what_one_set_does(
        n in prop::sample::select(vec![1usize, 3, 8]),
        threads in 1usize..3,
        first in bounds(),
        rounds in prop::collection::vec(round(), 1..5),
    ) {
        let workers = workers(threads);
        let everything = divide(&[]).remove(0);
        let mut one = owner(3, &everything);
        let mut owners: Vec<TableSet> = divide(&first).iter().map(|slots| owner(n, slots)).collect();
        let mut step = 0;
        let train_all = |one: &mut TableSet, owners: &mut [TableSet], step: &mut u64, acts: &[Act]| {
            for act in acts {
                let before = *step;
                for set in owners.iter_mut() {
                    *step = before;
                    train(set, &workers, step, act);
                }
                *step = before;
                train(one, &workers, step, act);
            }
        };
        let mut saved: Option<Saved> = None;
        let mut saved_of_one: Option<Saved> = None;
        let mut folders: Vec<TempDir> = Vec::new();
        for round in rounds {
            train_all(&mut one, &mut owners, &mut step, &round.before);
            let (moment, expected) = (contents(&one), stopped(&one, &workers));
            let (folder, folder_of_one) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let is_whole = round.is_whole || saved.is_none();
            let begin = |set: &mut TableSet, folder: &TempDir| {
                let since = set.snapshot_mark().filter(|_| !is_whole);
                assert_eq!(since.is_none(), is_whole);
                set.begin_snapshot_in_parts(&workers, folder.path(), &Files::new(), LIMIT, since).unwrap();
            };
            begin(&mut one, &folder_of_one);
            owners.iter_mut().for_each(|set| begin(set, &folder));
            train_all(&mut one, &mut owners, &mut step, &round.during);
            let entries_of_one = one.finish_snapshot(&workers).unwrap();
            let entries: Vec<Vec<TableParts>> =
                owners.iter_mut().map(|set| set.finish_snapshot(&workers).unwrap()).collect();

            // The merged entries list the same rows, with the same digest.
            let merged = TableParts::merge(&entries).unwrap();
            for (merged, of_one) in merged.iter().zip(&entries_of_one) {
                prop_assert!(merged.digest.is_some());
                prop_assert_eq!(merged.digest, of_one.digest, "{}", merged.table);
                prop_assert_eq!((merged.rows, merged.dirty_epoch), (of_one.rows, of_one.dirty_epoch));
                let groups = |t: &TableParts| -> Vec<Option<u64>> {
                    let gone = t.changes.as_ref().and_then(|changes| changes.gone.as_ref());
                    let all = [gone, t.narrow.as_ref(), t.candidates.as_ref(), t.filter.as_ref()];
                    let rows = all.map(|group| group.map(|group| group.rows));
                    rows.into_iter().chain([t.changes.as_ref().map(|c| c.rows)]).collect()
                };
                prop_assert_eq!(groups(merged), groups(of_one), "{}", merged.table);
            }
            if is_whole {
                prop_assert_eq!(&entries_of_one, &expected.0);
            }
            if owners.len() == 1 {
                // An owner of all slots writes the files that a set without owners writes.
                prop_assert_eq!(&merged, &entries_of_one);
                prop_assert!(bytes(folder.path(), &merged) == bytes(folder_of_one.path(), &merged));
            }
            let parts = resolve(saved.as_ref().filter(|_| !is_whole), merged);
            let parts_of_one =
                resolve(saved_of_one.as_ref().filter(|_| !is_whole), entries_of_one);

            // One set restores the checkpoint, and writes the checkpoint of one set.
            let mut restored = owner(2, &everything);
            restored.restore(&workers, folder.path(), &parts).unwrap();
            prop_assert!(contents(&restored) == moment);
            prop_assert!(stopped(&restored, &workers) == expected);
            for spec in specs() {
                // The view compares the digest of the table.
                let view = TableView::open(&workers, folder.path(), spec.clone(), &parts).unwrap();
                let rows = parts.iter().find(|table| table.table == spec.name).unwrap().rows;
                prop_assert_eq!(view.rows(), rows);
            }

            // Other owners restore their slots from the checkpoint of each writer.
            let others = divide(&round.bounds);
            let restore = |folder: &TempDir, parts: &[TableParts]| -> Vec<TableSet> {
                let restored = others.iter().map(|slots| {
                    let mut set = owner(n, slots);
                    set.restore(&workers, folder.path(), parts).unwrap();
                    assert!(contents(&set) == only(&moment, slots));
                    set
                });
                restored.collect()
            };
            let restored = restore(&folder, &parts);
            restore(&folder_of_one, &parts_of_one);
            let again = tempfile::tempdir().unwrap();
            let files = Files::new();
            let again_entries: Vec<_> = restored.iter().map(|set| {
                checkpoint_oracle(set, &workers, again.path(), &files, LIMIT).unwrap()
            }).collect();
            let again_parts = TableParts::merge(&again_entries).unwrap();
            let mut back = owner(5, &everything);
            back.restore(&workers, again.path(), &again_parts).unwrap();
            prop_assert!(stopped(&back, &workers) == expected);

            if round.restart {
                // The actions since the checkpoint are repeated.
                owners = restored;
                let steps = round.during.iter().filter(|act| matches!(act, Act::Step(..))).count();
                let now = step;
                for set in &mut owners {
                    step = now - steps as u64;
                    round.during.iter().for_each(|act| train(set, &workers, &mut step, act));
                }
                step = now;
            }
            saved = Some(Saved { folder: folder.path().to_owned(), parts });
            saved_of_one = Some(Saved { folder: folder_of_one.path().to_owned(), parts: parts_of_one });
            folders.extend([folder, folder_of_one, again]);
        }
    }
}

#[test]
fn the_limit_of_rows_is_that_of_the_whole_table() {
    let workers = workers(1);
    let sgd = OptimizerSpec::Sgd { lr: 0.25 };
    let spec = |cap| {
        let spec = table("ids", true, vec![segment("v", 2, sgd, 0.0)]);
        vec![TableSpec { max_rows: cap, ..spec }]
    };
    let mut set = TableSet::new(spec(None), shards(2)).unwrap();
    set.prefill(&workers, TableId(0), &sorted_keys(0..50)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let parts = write_snapshot(&mut set, &workers, folder.path(), &Files::new()).unwrap();
    for (cap, fits) in [(50, true), (49, false)] {
        let mut owner = TableSet::new(spec(Some(cap)), shards(1)).unwrap();
        owner.own(std::iter::once(0..64).collect()).unwrap();
        let restored = owner.restore(&workers, folder.path(), &parts);
        match fits {
            true => assert!(restored.is_ok() && owner.rows(TableId(0)) < 10),
            false => assert!(restored.unwrap_err().to_string().contains("has 50 rows")),
        }
    }
}

#[test]
fn slots_that_a_set_does_not_own_are_not_lost_silently() {
    let workers = workers(1);
    let (mut set, mut step) = (owner(2, &divide(&[])[0]), 0);
    let act = Act::Step((0..30).map(key).collect(), false);
    train(&mut set, &workers, &mut step, &act);
    let folder = tempfile::tempdir().unwrap();
    let files = Files::new();
    let parts = write_snapshot(&mut set, &workers, folder.path(), &files).unwrap();
    let mark = set.snapshot_mark().unwrap();
    let half = divide(&[2048]).remove(0);
    set.own(half.clone()).unwrap();
    let error = set.begin_snapshot(&workers, folder.path(), &files).unwrap_err().to_string();
    assert!(error.contains("`wide`") && error.contains("owns only the slots 0..2048"), "{error}");
    // The changes since the checkpoint of other slots are not known.
    set.restore(&workers, folder.path(), &parts).unwrap();
    assert!(set.begin_changes(&workers, folder.path(), &files, mark).is_err());
    let other = tempfile::tempdir().unwrap();
    write_snapshot(&mut set, &workers, other.path(), &files).unwrap();
    let mark = set.snapshot_mark().unwrap();
    set.own(half).unwrap();
    assert_eq!(set.snapshot_mark(), Some(mark), "the same slots keep the mark");
    set.own(divide(&[]).remove(0)).unwrap();
    assert_eq!(set.snapshot_mark(), None);

    let mut wrong = divide(&[]).remove(0);
    wrong[3] = 64..SLOTS + 64;
    let error = set.own(wrong).unwrap_err().to_string();
    assert!(error.contains("`dense_decay`") && error.contains("64..4160"), "{error}");
    let error = set.own(std::iter::once(0..64).collect()).unwrap_err().to_string();
    assert!(error.contains("1 ranges of slots were given"), "{error}");
    set.begin_snapshot(&workers, other.path(), &files).unwrap();
    let error = set.own(divide(&[]).remove(0)).unwrap_err().to_string();
    assert!(error.contains("finish it first"), "{error}");
}
