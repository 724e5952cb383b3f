//! Tests of checkpoints of changes. A chain of them must restore the same tables as a whole
//! checkpoint of the same moment. A damaged chain must be refused with an error that names the file
//! or the table.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;
use zillion_device::{Files, Workers};
use zillion_feature::{FeatureKey, TableId};

use crate::set::tests::snapshots::{Act, any_key, contents, specs as snapshot_specs, train};
use crate::testing::checkpoint_oracle;
use crate::testing::fixtures::*;
use crate::{Order, SnapshotMark, SpillHome, TableSet, TableView};
use zillion_rows::layer::{Unthrottled, layer_of_checkpoint};
use zillion_rows::{Admission, Eviction, OptimizerSpec, PartSource, TableParts, TableSpec};

/// The largest number of rows of a part. It is so small that tables have several parts.
const LIMIT: u64 = 60;
/// The memory of a shard in bytes. It is the initial size of its slabs and a little more, for some
/// dozens of rows.
const SHARD_MEMORY: u64 = 9 << 10;

/// Returns tables with every rule. Some of them have waiting keys and evicted rows, one table
/// counts keys in a filter, and one table is at its limit.
fn specs() -> Vec<TableSpec> {
    let sgd = OptimizerSpec::Sgd { lr: 0.25 };
    let filtered = TableSpec {
        admission: Admission::Bloom { at_least: 2, keys: 300, error: 0.1 },
        ..table("filtered", false, vec![segment("v", 3, sgd, 0.0)])
    };
    let full = TableSpec {
        max_rows: Some(40),
        eviction: Eviction::Lfu {
            half_life: zillion_rows::Span::Steps(5),
            below: None,
            every: None,
        },
        ..table("full", false, vec![segment("v", 2, sgd, 0.0)])
    };
    snapshot_specs().into_iter().chain([filtered, full]).collect()
}

fn make(n: usize, home: Option<&SpillHome>) -> TableSet {
    let mut set = TableSet::new(specs(), shards(n)).unwrap();
    if let Some(home) = home {
        let may_spill =
            |spec: &TableSpec| !spec.dense && spec.eviction.is_never() && spec.grow.is_none();
        for (id, _) in (0..).map(TableId).zip(specs()).filter(|(_, spec)| may_spill(spec)) {
            set.spill(id, SHARD_MEMORY * n as u64, home).unwrap();
        }
    }
    set.follow_snapshots();
    set
}

type Bytes = BTreeMap<String, Vec<u8>>;

/// Returns every file in the folder of a checkpoint.
fn bytes(folder: &Path, parts: &[TableParts]) -> Bytes {
    let files = parts.iter().flat_map(TableParts::files);
    files.map(|p| (p.file.clone(), std::fs::read(folder.join(&p.file)).unwrap())).collect()
}

fn whole(set: &TableSet, workers: &Workers) -> (Vec<TableParts>, Bytes) {
    let folder = tempfile::tempdir().unwrap();
    let parts = checkpoint_oracle(set, workers, folder.path(), &Files::new(), LIMIT).unwrap();
    let files = bytes(folder.path(), &parts);
    (parts, files)
}

/// A checkpoint of a chain: its folder and its manifest entries.
#[derive(Debug)]
struct Saved {
    folder: PathBuf,
    parts: Vec<TableParts>,
}

impl Saved {
    /// Returns the entries of a checkpoint of changes, after the folders of the unchanged rows have
    /// been set.
    fn resolved(&self, mut parts: Vec<TableParts>) -> Vec<TableParts> {
        for (own, below) in parts.iter_mut().zip(&self.parts) {
            own.stand_on(&self.folder, below);
        }
        parts
    }
}

/// The way in which a checkpoint ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ending {
    Kept,
    /// The checkpoint is abandoned before it is complete.
    Abandoned,
    /// The checkpoint is complete, but its folder is lost before the caller renames it.
    Lost,
}

#[derive(Clone, Debug)]
struct Round {
    before: Vec<Act>,
    is_whole: bool,
    during: Vec<Act>,
    ending: Ending,
    /// The number of shards on which one of the sets is restarted from the saved checkpoint; `None`
    /// if no set is restarted.
    restart: Option<usize>,
}

fn wide_key() -> impl Strategy<Value = FeatureKey> {
    prop_oneof![any_key(), (0u64..400).prop_map(key)]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (prop::collection::vec(wide_key(), 0..60), any::<bool>())
            .prop_map(|(keys, clipped)| Act::Step(keys, clipped)),
        4 => prop_oneof![0usize..40, Just(300), Just(3000)].prop_map(Act::Advance),
        1 => prop::collection::btree_set(any_key(), 0..20)
            .prop_map(|keys| Act::Prefill(keys.into_iter().collect())),
        1 => Just(Act::EndEpoch),
    ]
}

fn round() -> impl Strategy<Value = Round> {
    let ending = prop_oneof![
        4 => Just(Ending::Kept),
        1 => Just(Ending::Abandoned),
        1 => Just(Ending::Lost),
    ];
    let restart = prop::option::weighted(0.3, 1usize..9);
    let acts = |most: usize| prop::collection::vec(act(), 0..most);
    (acts(6), prop::bool::weighted(0.2), acts(12), ending, restart).prop_map(
        |(before, is_whole, during, ending, restart)| Round {
            before,
            is_whole,
            during,
            ending,
            restart,
        },
    )
}

fn begin(
    set: &mut TableSet,
    workers: &Workers,
    folder: &Path,
    since: Option<SnapshotMark>,
) -> Result<(), crate::Error> {
    set.begin_snapshot_in_parts(workers, folder, &Files::new(), LIMIT, since)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]
    #[test]
    fn a_chain_is_the_whole_checkpoint_of_its_moment(
        n in prop::sample::select(vec![1usize, 3, 8]),
        other in prop::sample::select(vec![1usize, 2, 5]),
        threads in 1usize..3,
        spills in any::<bool>(),
        tracked in any::<bool>(),
        rounds in prop::collection::vec(round(), 2..6),
    ) {
        let workers = workers(threads);
        let scratch = tempfile::tempdir().unwrap();
        let home = SpillHome::open(&Files::new(), scratch.path()).unwrap();
        let home = spills.then_some(&home);
        // The first set has checkpoints that fail, one is restored now and then, and one takes no
        // checkpoints.
        let mut set = make(n, home);
        let mut again = make(other, home);
        let mut plain = TableSet::new(specs(), shards(3)).unwrap();
        if tracked {
            set.track_changes(&workers, 2).unwrap();
        }
        let (mut step, mut step_again, mut step_plain) = (0, 0, 0);
        let mut saved: Option<(Saved, SnapshotMark, SnapshotMark)> = None;
        let mut lost = 0;
        let mut folders: Vec<TempDir> = Vec::new();
        for round in rounds {
            for act in &round.before {
                train(&mut set, &workers, &mut step, act);
                train(&mut again, &workers, &mut step_again, act);
                train(&mut plain, &workers, &mut step_plain, act);
            }
            let since = saved.as_ref().filter(|_| !round.is_whole && lost < 2);
            let (since, since_again) = (since.map(|s| s.1), since.map(|s| s.2));
            let expected = whole(&plain, &workers);
            let moment = contents(&plain);
            let folder = tempfile::tempdir().unwrap();
            let folder_again = tempfile::tempdir().unwrap();
            begin(&mut set, &workers, folder.path(), since).unwrap();
            let is_good = round.ending == Ending::Kept;
            if is_good {
                begin(&mut again, &workers, folder_again.path(), since_again).unwrap();
            }
            for act in &round.during {
                train(&mut set, &workers, &mut step, act);
                train(&mut again, &workers, &mut step_again, act);
                train(&mut plain, &workers, &mut step_plain, act);
                if let Act::Advance(rows) = act {
                    set.advance_snapshot(&workers, *rows);
                    again.advance_snapshot(&workers, rows / 2);
                }
            }
            match round.ending {
                Ending::Abandoned => set.abandon_snapshot(),
                Ending::Lost => {
                    set.finish_snapshot(&workers).unwrap();
                    lost += 1;
                    if lost == 2 && let Some((_, mark, _)) = &saved {
                        let error = set.begin_changes(&workers, folder.path(), &Files::new(), *mark);
                        let error = error.unwrap_err().to_string();
                        prop_assert!(error.contains("write a whole checkpoint"), "{error}");
                    }
                }
                Ending::Kept => {
                    let parts = set.finish_snapshot(&workers).unwrap();
                    let same = again.finish_snapshot(&workers).unwrap();
                    prop_assert_eq!(&parts, &same);
                    prop_assert!(
                        bytes(folder.path(), &parts) == bytes(folder_again.path(), &same),
                        "a set that was restored writes other changes"
                    );
                    for (table, spec) in parts.iter().zip(specs()) {
                        let is_whole = spec.has_whole_table_rule() || spec.grow.is_some();
                        let holds_changes = since.is_some() && !is_whole;
                        prop_assert_eq!(table.changes.is_some(), holds_changes, "{}", table.table);
                    }
                    let parts = match (&saved, since) {
                        (Some((below, ..)), Some(_)) => below.resolved(parts),
                        _ => parts,
                    };
                    // The set is new and has another number of shards.
                    let mut restored = TableSet::new(specs(), shards(4)).unwrap();
                    restored.restore(&workers, folder.path(), &parts).unwrap();
                    prop_assert!(contents(&restored) == moment, "rows differ");
                    prop_assert!(whole(&restored, &workers) == expected, "bytes differ");
                    if let Some(n) = round.restart {
                        again = make(n, home);
                        again.restore(&workers, folder.path(), &parts).unwrap();
                        // The steps since the checkpoint are repeated.
                        let is_step = |act: &&Act| matches!(act, Act::Step(..));
                        step_again -= round.during.iter().filter(is_step).count() as u64;
                        for act in &round.during {
                            train(&mut again, &workers, &mut step_again, act);
                        }
                    }
                    let marks = (set.snapshot_mark().unwrap(), again.snapshot_mark().unwrap());
                    let path = folder.path().to_owned();
                    saved = Some((Saved { folder: path, parts }, marks.0, marks.1));
                    folders.push(folder);
                    lost = 0;
                }
            }
        }
        // The checkpoints have not changed training.
        prop_assert!(contents(&set) == contents(&plain));
        prop_assert!(contents(&again) == contents(&plain));
        prop_assert!(whole(&set, &workers) == whole(&plain, &workers));
    }
}

/// Returns a chain of four checkpoints and the whole checkpoint of the same moment. In the chain,
/// rows have changed, have been removed and have been created again.
fn chain(workers: &Workers) -> (Vec<TempDir>, Vec<TableParts>, TempDir, Vec<TableParts>) {
    let (mut set, mut step) = (make(3, None), 0);
    let keys = |i: u64| Act::Step((0..40).map(|k| key(i * 17 + k % 25)).collect(), false);
    let mut saved: Option<Saved> = None;
    let mut folders = Vec::new();
    for round in 0..4u64 {
        (0..4).for_each(|i| train(&mut set, workers, &mut step, &keys(round * 3 + i)));
        let folder = tempfile::tempdir().unwrap();
        let since = saved.as_ref().and(set.snapshot_mark());
        begin(&mut set, workers, folder.path(), since).unwrap();
        train(&mut set, workers, &mut step, &keys(round));
        let mut parts = set.finish_snapshot(workers).unwrap();
        if let Some(below) = &saved {
            parts = below.resolved(parts);
        }
        saved = Some(Saved { folder: folder.path().to_owned(), parts });
        folders.push(folder);
    }
    let parts = saved.unwrap().parts;
    let gone = parts.iter().filter_map(|t| t.changes.as_ref()?.gone.as_ref());
    assert!(gone.map(|gone| gone.rows).sum::<u64>() > 5, "keys went");
    let mut restored = TableSet::new(specs(), shards(2)).unwrap();
    restored.restore(workers, folders[3].path(), &parts).unwrap();
    let whole = tempfile::tempdir().unwrap();
    let whole_parts =
        checkpoint_oracle(&restored, workers, whole.path(), &Files::new(), LIMIT).unwrap();
    (folders, parts, whole, whole_parts)
}

#[test]
fn all_who_read_checkpoints_read_chains() {
    let workers = workers(2);
    let (folders, parts, whole, whole_parts) = chain(&workers);
    let folder = folders[3].path();
    let everything = conformance_plan();
    let read = |folder: &Path, parts: &[TableParts]| {
        let mut source = PartSource::open(&workers, folder, specs(), parts).unwrap();
        let mut rows = zillion_feature::RowBuffer::default();
        let report = zillion_rows::RowSource::lookup(&mut source, &everything, &mut rows).unwrap();
        let bits: Vec<Vec<u32>> = rows
            .tables
            .iter()
            .map(|table| table.values.iter().map(|x| x.to_bits()).collect())
            .collect();
        (report, bits)
    };
    assert!(read(folder, &parts) == read(whole.path(), &whole_parts));
    let layer = |folder: &Path, parts: &[TableParts]| {
        let (to, files, pace) = (tempfile::tempdir().unwrap(), Files::new(), &mut Unthrottled);
        // The files of a layer are named by their contents.
        layer_of_checkpoint(&workers, folder, &specs(), parts, &files, to.path(), pace).unwrap()
    };
    assert!(layer(folder, &parts) == layer(whole.path(), &whole_parts));
    for spec in specs() {
        let open = |folder: &Path, parts: &[TableParts]| {
            TableView::open(&workers, folder, spec.clone(), parts).unwrap()
        };
        let (chained, flat) = (open(folder, &parts), open(whole.path(), &whole_parts));
        assert_eq!(chained.rows(), flat.rows());
        let (a, b) = (chained.survey(&workers, 99), flat.survey(&workers, 99));
        assert_eq!((a.counts, a.ages, a.norms, a.slots), (b.counts, b.ages, b.norms, b.slots));
        assert_eq!(chained.top(&workers, Order::Norm, 1000), flat.top(&workers, Order::Norm, 1000));
        for id in 0..200 {
            assert_eq!(chained.get(key(id)), flat.get(key(id)), "{} {id}", spec.name);
            assert_eq!(chained.waiting(key(id)), flat.waiting(key(id)), "{} {id}", spec.name);
        }
        // A plan that keeps every row writes a whole checkpoint.
        let shrink = chained.plan_whole(&workers);
        assert_eq!(shrink.before, shrink.after);
        let listed = parts.iter().find(|t| t.table == spec.name).unwrap();
        let out = tempfile::tempdir().unwrap();
        let files = Files::new();
        let written = chained.write_shrunk(&workers, out.path(), &files, &shrink, listed).unwrap();
        let listed = whole_parts.iter().find(|t| t.table == spec.name).unwrap();
        let other = tempfile::tempdir().unwrap();
        let plain = flat.plan_whole(&workers);
        let plain = flat.write_shrunk(&workers, other.path(), &files, &plain, listed).unwrap();
        // The files of a filter are copied. In these two checkpoints, their parts have different
        // boundaries, so only rows are compared.
        assert_eq!((written.rows, &written.parts), (plain.rows, &plain.parts));
        assert_eq!((written.narrow, written.candidates), (plain.narrow, plain.candidates));
    }
}

fn conformance_plan() -> zillion_feature::LookupPlan {
    zillion_rows::conformance::plan_of(&vec![(0..220).map(key).collect::<Vec<_>>(); specs().len()])
}

#[test]
fn a_chain_that_is_not_what_was_written_is_refused_by_name() {
    let workers = workers(2);
    let (folders, parts, _whole, _) = chain(&workers);
    let restore = |parts: &[TableParts]| {
        let mut set = TableSet::new(specs(), shards(3)).unwrap();
        set.restore(&workers, folders[3].path(), parts).map_err(|e| e.to_string())
    };
    restore(&parts).unwrap();
    // Some files of every folder are damaged in one bit, and then removed.
    let below = |folder: usize| -> Vec<String> {
        let of = |table: &TableParts| -> Vec<String> {
            let Some(changes) = &table.changes else { return Vec::new() };
            let b = &changes.below[folder];
            let gone = b.gone.iter().flat_map(|gone| &gone.parts);
            b.parts.iter().chain(gone).map(|p| p.file.clone()).collect()
        };
        parts.iter().flat_map(of).collect()
    };
    let own = parts.iter().flat_map(TableParts::files).map(|p| p.file.clone()).collect();
    let all = [below(0), below(1), below(2), own];
    let mut tried = 0;
    for (at, files) in all.iter().enumerate() {
        assert!(files.iter().any(|file| file.contains("gone-")) == (at > 0), "{at}");
        for (i, file) in files.iter().enumerate().filter(|(i, _)| i % 5 == at) {
            let path = folders[at].path().join(file);
            let good = std::fs::read(&path).unwrap();
            let mut bad = good.clone();
            let bit = i * 7919 % (bad.len() * 8);
            bad[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, &bad).unwrap();
            let error = restore(&parts).unwrap_err();
            assert!(error.contains(path.to_str().unwrap()), "{error}");
            std::fs::remove_file(&path).unwrap();
            let error = restore(&parts).unwrap_err();
            assert!(error.contains(path.to_str().unwrap()), "{error}");
            std::fs::write(&path, good).unwrap();
            tried += 1;
        }
    }
    assert!(tried > 20, "{tried}");
    // The changes are restored without the checkpoints that they are based on, and with only some
    // of these checkpoints.
    let mut bare = parts.clone();
    bare.iter_mut().filter_map(|t| t.changes.as_mut()).for_each(|c| c.below.clear());
    assert!(restore(&bare).unwrap_err().contains("no whole checkpoint below them"));
    for skipped in 0..3 {
        let mut gap = parts.clone();
        let changes = gap.iter_mut().filter_map(|t| t.changes.as_mut());
        changes.for_each(|c| drop(c.below.remove(skipped)));
        let error = restore(&gap).unwrap_err();
        let expected =
            if skipped == 0 { "no whole checkpoint below" } else { "this checkpoint lists" };
        assert!(error.contains(expected), "{error}");
    }
    restore(&parts).unwrap();
}

#[test]
fn checkpoints_of_changes_need_one_to_stand_on() {
    let workers = workers(1);
    let (mut set, mut step) = (make(2, None), 0);
    let act = Act::Step((0..30).map(key).collect(), false);
    train(&mut set, &workers, &mut step, &act);
    assert_eq!(set.snapshot_mark(), None);
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    begin(&mut set, &workers, folders[0].path(), None).unwrap();
    let parts = set.finish_snapshot(&workers).unwrap();
    let mark = set.snapshot_mark().unwrap();
    // Unchanged rows are in no file.
    begin(&mut set, &workers, folders[1].path(), Some(mark)).unwrap();
    let nothing = set.finish_snapshot(&workers).unwrap();
    let changed = nothing.iter().filter_map(|t| t.changes.as_ref());
    assert!(changed.clone().count() > 5 && changed.clone().all(|c| c.rows == 0));
    assert_eq!(set.statistics().iter().map(|s| s.snapshot_bytes).sum::<u64>(), 0);
    // A mark is valid only in its history.
    set.restore(&workers, folders[0].path(), &parts).unwrap();
    let error = set.begin_changes(&workers, folders[2].path(), &Files::new(), mark);
    assert!(error.unwrap_err().to_string().contains("write a whole checkpoint"));
    // A set that does not follow checkpoints has no mark.
    let mut other = TableSet::new(specs(), shards(1)).unwrap();
    other.restore(&workers, folders[0].path(), &parts).unwrap();
    assert_eq!(other.snapshot_mark(), None);
    assert!(other.begin_changes(&workers, folders[2].path(), &Files::new(), mark).is_err());
}

#[test]
fn a_table_whose_rows_grow_is_whole_in_a_chain() {
    let workers = workers(2);
    let segments = || {
        let adagrad = OptimizerSpec::Adagrad { lr: 0.25, initial_accumulator: 0.5, eps: 1e-8 };
        vec![segment("v", 4, adagrad, 0.0), segment("linear", 1, adagrad, 0.0)]
    };
    let spec = |name: &str| TableSpec {
        eviction: Eviction::Unseen { steps: 6 },
        ..table(name, false, segments())
    };
    let specs = || vec![growing(3, None, spec("grows")), spec("plain")];
    let mut set = TableSet::new(specs(), shards(3)).unwrap();
    set.follow_snapshots();
    let mut step = 0;
    // Some ids occur in every step, others for a while, so that rows grow, are evicted, and come
    // back narrow.
    let mut train = |set: &mut TableSet| {
        step += 1;
        let ids = (0..20).chain((0..30).map(|i| 20 + (step * 9 + i) % 130));
        let plan = zillion_rows::conformance::plan_of(&vec![ids.map(key).collect(); 2]);
        let (raw, now) = (gradients(set, &plan, step), update(step, 1.0));
        set.push(&workers, &plan, &raw, now).unwrap();
        set.sweep(&workers, now).unwrap();
    };
    let mut saved: Option<Saved> = None;
    let mut folders = Vec::new();
    let mut widths: Vec<(u64, u64)> = Vec::new();
    for round in 0..4 {
        (0..7).for_each(|_| train(&mut set));
        let expected = whole(&set, &workers);
        let folder = tempfile::tempdir().unwrap();
        let since = set.snapshot_mark();
        begin(&mut set, &workers, folder.path(), since).unwrap();
        for rows in [30, 60, 100] {
            train(&mut set);
            set.advance_snapshot(&workers, rows);
        }
        let mut parts = set.finish_snapshot(&workers).unwrap();
        let narrow = parts[0].narrow.clone().unwrap();
        widths.push((parts[0].rows - narrow.rows, narrow.rows));
        assert_eq!(parts[0], TableParts { changes: None, ..expected.0[0].clone() });
        assert_eq!((parts[1].changes.is_some(), parts[1].narrow.is_some()), (round > 0, false));
        for (file, written) in bytes(folder.path(), &parts[..1]) {
            assert!(written == expected.1[&file], "{file}");
        }
        if let Some(below) = &saved {
            parts = below.resolved(parts);
        }
        for n in [1, 2, 5] {
            let mut restored = TableSet::new(specs(), shards(n)).unwrap();
            restored.restore(&workers, folder.path(), &parts).unwrap();
            assert!(whole(&restored, &workers) == expected, "{n} shards");
        }
        saved = Some(Saved { folder: folder.path().to_owned(), parts });
        folders.push(folder);
    }
    assert!(widths.iter().all(|&(full, narrow)| full >= 20 && narrow >= 10), "{widths:?}");
    let counters = set.statistics();
    let counters = &counters[0].counters;
    assert!(counters.evicted > 100 && counters.grown > 50, "{counters:?}");
    // Removed keys are recorded only for tables that are not written whole.
    let kept = |table: usize| -> usize {
        let spilled_or_gone = |slot| {
            let shard = set.shards.iter().find(|shard| shard.slots().contains(&slot)).unwrap();
            shard.tables[table].gone_between(slot, 0, u32::MAX).len()
        };
        (0..zillion_feature::SLOTS).map(spilled_or_gone).sum()
    };
    assert!(kept(0) == 0 && kept(1) > 0);
    // Entries of changes are never written for such a table.
    let mut parts = saved.unwrap().parts;
    parts[0].changes = parts[1].changes.clone();
    let mut restored = TableSet::new(specs(), shards(2)).unwrap();
    let error = restored.restore(&workers, folders[3].path(), &parts).unwrap_err().to_string();
    assert!(error.contains("tables/grows") && error.contains("written whole"), "{error}");
}
