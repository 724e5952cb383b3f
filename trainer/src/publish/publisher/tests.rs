//! Tests of a publisher that remembers the versions of its run, against one that reads the registry
//! before each publication.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::{Duration, SystemTime};

use zillion_device::ManualClock;
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer};
use zillion_nn::Mode;
use zillion_ps::Since;
use zillion_registry::{Cache, Retention};
use zillion_rows::layer::{Layer, LayerManifest, LayerWriter, Unthrottled, part_count};
use zillion_rows::{LookupReport, RowSource, TableLayout, shape_rows};
use zillion_store::{Operation, Outcome};

use super::*;

mod compaction;
mod dense_types;
mod repetition;
mod row_types;
mod tables;

/// The number of users, whose rows change in turns.
const USERS: u64 = 12;

/// Tables whose rows change as the test says. They list the rows that an epoch has changed.
#[derive(Clone)]
struct Table {
    layouts: Vec<TableLayout>,
    /// The value of each row, and the epoch of its last change.
    rows: BTreeMap<FeatureKey, (f32, u32)>,
    epoch: u32,
    /// Whether layers cannot be written.
    fails: bool,
    /// The manifest of another writer, which appears while the next layer is written.
    intruder: Option<PathBuf>,
}

impl RowSource for Table {
    fn tables(&self) -> &[TableLayout] {
        &self.layouts
    }

    fn lookup(
        &mut self,
        plan: &LookupPlan,
        rows: &mut RowBuffer,
    ) -> zillion_rows::Result<LookupReport> {
        shape_rows(&self.layouts, plan, rows)?;
        let mut missing = 0;
        for (table, rows) in plan.tables.iter().zip(&mut rows.tables) {
            let (stride, width) = (rows.stride, self.layouts[0].width());
            for (key, row) in table.keys.iter().zip(rows.values.chunks_exact_mut(stride)) {
                let value = self.rows.get(key).map(|&(value, _)| value);
                missing += u64::from(value.is_none());
                row.fill(0.0);
                row[..width].fill(value.unwrap_or(0.0));
            }
        }
        Ok(LookupReport { missing: vec![missing] })
    }
}

impl Publishing for Table {
    fn track_changes(&mut self, _: usize) -> zillion_ps::Result<()> {
        Ok(())
    }

    fn write_layer(
        &mut self,
        since: Since,
        folder: &Path,
        files: &Files,
    ) -> zillion_ps::Result<Option<LayerManifest>> {
        if self.fails {
            return Err(zillion_rows::Error::misuse("the layer cannot be written").into());
        }
        if let Some(intruder) = self.intruder.take() {
            std::fs::write(intruder, b"{}").unwrap();
        }
        let after = match since {
            Since::Base => 0,
            Since::Epoch(epoch) => epoch,
        };
        let changed: Vec<_> = self.rows.iter().filter(|(_, (_, at))| *at > after).collect();
        let (layout, mut pace) = (&self.layouts[0], Unthrottled);
        let mut writer = LayerWriter::new(files, folder, &mut pace);
        writer.table(layout, part_count(changed.len() as u64, layout.width()))?;
        for (&key, &(value, _)) in changed {
            writer.push(key, Some(&vec![value; layout.width()]), 1)?;
        }
        Ok(Some(writer.finish()?))
    }

    fn end_dirty_epoch(&mut self) -> zillion_ps::Result<u32> {
        self.epoch += 1;
        Ok(self.epoch - 1)
    }

    fn row_source(&mut self) -> zillion_ps::Result<Box<dyn RowSource + '_>> {
        Ok(Box::new(self.clone()))
    }
}

/// Opens a publisher of the run in a folder.
fn open(
    job: &Job,
    folder: &Path,
    clock: &Arc<ManualClock>,
    files: &Files,
    compacts: bool,
) -> Publisher {
    Publisher::open(Opening {
        job,
        config: job.publish.as_ref().unwrap(),
        run: RunId("run".to_owned()),
        run_folder: folder,
        newest: None,
        statistics: &Statistics::default(),
        sides: &SideTables::load(&job.data, &job.schema).unwrap(),
        files,
        workers: &Arc::new(Workers::new(NonZeroUsize::MIN).unwrap()),
        clock: clock.clone(),
        has_onnx: false,
        compacts,
    })
    .unwrap()
}

/// A run with a registry of its own.
struct Run {
    folder: tempfile::TempDir,
    job: Job,
    clock: Arc<ManualClock>,
    publisher: Publisher,
    table: Table,
    params: Params,
    step: u64,
    /// Whether the publisher remembers the versions of its run.
    remembers: bool,
}

impl Run {
    fn new(remembers: bool, more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let rows: String = (0..USERS).map(|user| format!("{user},{}\n", user % 2)).collect();
        std::fs::write(folder.path().join("rows.csv"), format!("user,click\n{rows}")).unwrap();
        let text = format!(
            "[data]\nroot = {:?}\ntrain = ['rows.csv']\n[features.user]\nkind = 'id'\n\
             [labels.click]\n[tables.'*']\ndim = 4\n[model]\nkind = 'dnn'\nhidden = [5]\n\
             [publish]\nregistry = {:?}\nmodel = 'm'\nparity_rows = 3\n{more}\n",
            folder.path(),
            folder.path().join("registry"),
        );
        let value: toml::Table = toml::from_str(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let job = Job::from_value(value.into()).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let clock = Arc::new(ManualClock::new(SystemTime::UNIX_EPOCH + Duration::from_secs(9999)));
        let publisher = open(&job, folder.path(), &clock, &Files::new(), false);
        let layouts = job.tables.iter().map(TableSpec::layout).collect();
        let table =
            Table { layouts, rows: BTreeMap::new(), epoch: 1, fails: false, intruder: None };
        let params = Params::init(&job.graph(Mode::Infer).unwrap().params, 1);
        let mut run = Self { folder, job, clock, publisher, table, params, step: 0, remembers };
        (0..USERS).for_each(|user| run.change(user));
        run
    }

    fn model(&self) -> &Model {
        &self.publisher.model
    }

    /// Changes the row of a user. Only a row that is in the registry counts as changed.
    fn change(&mut self, user: u64) {
        let value = (self.step * USERS + user) as f32 / 100.0;
        self.table.rows.insert(FeatureKey::from_u64(user), (value, self.table.epoch));
    }

    /// Does a step that changes one row, and publishes its state.
    fn publish(&mut self) -> Result<Published> {
        self.step += 1;
        self.change(self.step % USERS);
        self.publish_again(Wish::default())
    }

    fn publish_again(&mut self, wish: Wish) -> Result<Published> {
        if !self.remembers {
            self.publisher.branch = None;
        }
        let clock = self.clock.clone();
        clock.advance(Duration::from_secs(1));
        let origin = Origin { step: self.step, ..Origin::default() };
        self.publisher.publish(origin, &mut self.table, &self.params, wish)
    }

    /// Publishes a base of another run.
    fn publish_foreign(&mut self) {
        let own = std::mem::replace(&mut self.publisher.run, RunId("other".to_owned()));
        let branch = self.publisher.branch.take();
        self.publish_again(Wish { base: true, ..Wish::default() }).unwrap();
        (self.publisher.run, self.publisher.branch) = (own, branch);
    }

    /// Returns the path of a file of a version.
    fn file(&self, version: VersionId, number: usize) -> PathBuf {
        let (name, _) = self.model().version(version).unwrap().files().swap_remove(number);
        self.folder.path().join("registry/m/files").join(&name[..2]).join(name)
    }

    /// Returns the path of the manifest of a version.
    fn manifest(&self, version: u64) -> PathBuf {
        let folder = self.folder.path().join("registry/m/versions/00000000000000/000");
        folder.join(format!("{version:020}.json"))
    }

    /// Returns the number of folders that were listed so far.
    fn listings(&self) -> u64 {
        let stats = self.model().store().stats();
        Outcome::ALL.into_iter().map(|outcome| stats.requests(Operation::List, outcome)).sum()
    }

    /// Returns the numbers of objects that were read and looked for so far.
    fn reads(&self) -> (u64, u64) {
        let stats = self.model().store().stats();
        let all = |of| Outcome::ALL.into_iter().map(|outcome| stats.requests(of, outcome)).sum();
        (all(Operation::Get), all(Operation::Head))
    }
}

/// Returns whether the version continues `parent`.
fn continues(published: &Published, parent: u64) -> bool {
    published.version.parent.as_ref().is_some_and(|link| link.version == VersionId(parent))
}

#[test]
fn the_reads_of_a_publication_do_not_grow_with_the_chain() {
    for (more, first) in [("", 1), ("promote = ''", 2)] {
        let mut run = Run::new(true, more);
        let mut reads = Vec::new();
        for number in 0..40 {
            let (gets, heads) = run.reads();
            let listings = run.listings();
            run.publish().unwrap();
            // A listing takes the longer, the more versions its folder has. Without a pointer, the
            // empty folders of pointers and of their moves are listed.
            let most = if more.is_empty() { 0 } else { 2 };
            assert!(number < 2 || run.listings() - listings <= most, "publication {number}");
            let (now_gets, now_heads) = run.reads();
            reads.push((now_gets - gets, now_heads - heads));
        }
        assert_eq!(run.model().chain(VersionId(40)).unwrap().len(), 40);
        let known = &reads[first..];
        assert!(known.iter().all(|(gets, _)| *gets == known[0].0 && *gets < 6), "{reads:?}");
        assert!(known.iter().all(|(_, heads)| *heads < 48), "{reads:?}");
        // A publisher that has forgotten the versions reads the whole chain.
        run.remembers = false;
        let (before, _) = run.reads();
        run.publish().unwrap();
        assert!(run.reads().0 - before > 80);
    }
}

/// Does the same to a run that remembers its versions and to one that does not, and checks that
/// both have published the same.
fn assert_same(more: &str, act: impl Fn(&mut Run)) {
    let runs = [true, false].map(|remembers| {
        let mut run = Run::new(remembers, more);
        act(&mut run);
        let model = run.model();
        let versions: Vec<_> = model.page(None, 1000).unwrap();
        let versions: Vec<_> =
            versions.iter().map(|&id| model.version(id).map_err(|e| e.to_string().len())).collect();
        let moves = model.moves(STABLE, None, 1000).unwrap();
        (versions, moves)
    });
    assert!(runs[0].0.len() > 3);
    assert_eq!(runs[0], runs[1]);
}

#[test]
fn a_publisher_that_remembers_publishes_the_same_versions() {
    assert_same("max_deltas = 7", |run| {
        for _ in 0..3 {
            run.publish().unwrap();
        }
        run.model().rollback(STABLE, Some(VersionId(2)), "test", None).unwrap();
        assert!(continues(&run.publish().unwrap(), 2));
        assert!(continues(&run.publish().unwrap(), 4));
        run.publish_foreign();
        assert!(continues(&run.publish().unwrap(), 5));
        run.model().promote(STABLE, VersionId(1), MoveKind::Promote, "test", None).unwrap();
        assert!(continues(&run.publish().unwrap(), 7));
        // A rollback to the version of another run needs a base.
        run.model().rollback(STABLE, Some(VersionId(6)), "test", None).unwrap();
        assert!(run.publish().unwrap().version.is_base());
        assert!(continues(&run.publish().unwrap(), 9));
        for wish in [Wish::default(), Wish { is_command: true, ..Wish::default() }] {
            let again = run.publish_again(wish).unwrap();
            assert!(again.was_there && again.version.version == VersionId(10));
        }
        let base = run.publish_again(Wish { base: true, ..Wish::default() }).unwrap();
        assert!(base.version.is_base() && !base.was_there);
        let bases = (0..20).map(|_| run.publish().unwrap().version.is_base());
        assert_eq!(bases.filter(|is_base| *is_base).count(), 2);
    });
}

#[test]
fn a_pointer_that_moves_back_is_named() {
    let mut run = Run::new(true, "");
    let first = run.publish().unwrap().to_string();
    assert!(first.ends_with("; the pointer stands on it"), "{first}");
    run.publish_foreign();
    let again = run.publish_again(Wish { is_command: true, ..Wish::default() }).unwrap();
    assert!(again.was_there && again.inputs.is_none());
    let again = again.to_string();
    assert!(again.ends_with("; the pointer moves back from 2 to 1"), "{again}");
}

#[test]
fn a_lost_file_of_a_chain_is_noticed() {
    assert_same("", |run| {
        for _ in 0..3 {
            run.publish().unwrap();
        }
        // Each file of the parent is lost once.
        let files = run.model().version(VersionId(3)).unwrap().files().len();
        for number in 0..files {
            let parent = run.model().latest().unwrap().unwrap();
            std::fs::remove_file(run.file(parent, number)).unwrap();
            assert!(run.publish().unwrap().version.is_base());
            assert!(!run.publish().unwrap().version.is_base());
        }
        // A file of the base, below two deltas, and a file that is too short.
        let base = run.model().latest().unwrap().unwrap().0 - 1;
        run.publish().unwrap();
        std::fs::remove_file(run.file(VersionId(base), 0)).unwrap();
        assert!(run.publish().unwrap().version.is_base());
        let parent = run.publish().unwrap().version.version;
        std::fs::write(run.file(parent, 0), b"short").unwrap();
        assert!(run.publish().unwrap().version.is_base());
    });
    // The ancestors of a long chain take turns.
    let mut run = Run::new(true, "");
    for _ in 0..30 {
        run.publish().unwrap();
    }
    std::fs::remove_file(run.file(VersionId(12), 0)).unwrap();
    assert!((0..12).any(|_| run.publish().unwrap().version.is_base()));
}

#[test]
fn a_lost_or_damaged_manifest_is_noticed() {
    assert_same("", |run| {
        for _ in 0..3 {
            run.publish().unwrap();
        }
        std::fs::remove_file(run.manifest(3)).unwrap();
        assert!(continues(&run.publish().unwrap(), 2));
        std::fs::write(run.manifest(3), b"{}").unwrap();
        assert!(continues(&run.publish().unwrap(), 2));
        assert!(continues(&run.publish().unwrap(), 4));
    });
}

#[test]
fn a_race_or_a_failure_makes_a_publisher_read_again() {
    assert_same("", |run| {
        for _ in 0..3 {
            run.publish().unwrap();
        }
        // Another writer takes the next number while the rows are written.
        run.table.intruder = Some(run.manifest(4));
        assert!(continues(&run.publish().unwrap(), 3));
        let reads = run.reads();
        assert!(continues(&run.publish().unwrap(), 5));
        assert!(run.reads().0 - reads.0 > 6);
        run.table.fails = true;
        run.publish().unwrap_err();
        assert!(run.publisher.branch.is_none());
        run.table.fails = false;
        assert!(continues(&run.publish().unwrap(), 6));
    });
}

#[test]
fn a_publisher_removes_old_versions_and_none_in_use() {
    let mut run = Run::new(true, "max_deltas = 4");
    let retention =
        Retention { keep: 8, keep_for: Duration::ZERO, grace: Duration::ZERO, history: true };
    run.publisher.collector = Some(Collector::new(retention));
    for number in 1..=60 {
        run.publish().unwrap();
        // Files without an age are removed as soon as no version in use needs them, those of a
        // version that is being published included.
        run.publisher.collector.as_mut().unwrap().end();
        if number == 20 {
            run.model().pin(VersionId(20), "test").unwrap();
        }
    }
    let model = run.model();
    let versions = model.page(None, 1000).unwrap();
    // The newest, what they stand on, those since the last collection, and the pinned version with
    // what it stands on.
    assert!((8..=8 + 4 + 2 + 5).contains(&versions.len()), "{versions:?}");
    assert!(versions.contains(&VersionId(20)) && !versions.contains(&VersionId(10)));
    for version in [20, 53, 60].map(VersionId) {
        model.verify(version, |_| ()).unwrap();
    }
    assert!(model.moves(STABLE, None, 1000).unwrap().len() <= 8 + 2);
    assert_eq!(run.publish().unwrap().version.version, VersionId(61));
}

#[test]
fn a_short_age_of_removal_is_refused() {
    let config = PublishConfig {
        keep_versions: NonZeroUsize::new(8),
        keep_seconds: 59,
        ..PublishConfig::new("registry")
    };
    let said = Collector::of(&config).err().unwrap().to_string();
    assert!(said.contains("publish.keep_seconds") && said.contains("at least 60"), "{said}");
    assert!(Collector::of(&PublishConfig { keep_seconds: 60, ..config }).unwrap().is_some());
    assert!(Collector::of(&PublishConfig::new("registry")).unwrap().is_none());
}

/// Adds a number to every dense parameter.
fn add(params: &mut Params, number: f32) {
    for (_, values) in params.iter_mut() {
        values.iter_mut().for_each(|value| *value += number);
    }
}

#[test]
fn deltas_have_the_dense_parameters_of_their_parent_until_new_ones_are_due() {
    assert_same("dense_every = 3\nmax_deltas = 8", |run| {
        let mut written = Vec::new();
        for _ in 0..12 {
            // Each step changes the dense parameters.
            add(&mut run.params, 0.25);
            let version = run.publish().unwrap().version;
            let trained = VersionFile::of("safetensors", &run.params.to_safetensors().unwrap());
            let is_new = version.dense == trained;
            // The hash of the trained parameters is there if the version does not have them.
            let later = (!is_new).then_some(trained.blake3);
            assert_eq!(version.origin.later_dense, later);
            written.push(is_new);
            // The same state is recognised, whichever parameters its version has.
            let again = run.publish_again(Wish::default()).unwrap();
            assert!(again.was_there && again.version.version == version.version);
        }
        // Version 10 is a base, because there were eight deltas.
        let due = [true, false, false, true, false, false, true, false, false, true, false, false];
        assert_eq!(written, due);
        // A command publishes the parameters that it was given.
        let wish = Wish { is_command: true, new_dense: true, ..Wish::default() };
        let asked = run.publish_again(wish).unwrap();
        assert!(!asked.was_there && asked.version.origin.later_dense.is_none());
        assert!(run.publish_again(wish).unwrap().was_there);
    });
}

#[test]
fn the_parity_rows_of_a_delta_are_scored_with_its_own_parameters() {
    let mut run = Run::new(true, "dense_every = 2");
    run.publish().unwrap();
    let before = run.params.clone();
    add(&mut run.params, 0.5);
    let version = run.publish().unwrap().version;
    assert!(version.origin.later_dense.is_some());
    let Publisher { parity, scorer, tables, .. } = &mut run.publisher;
    let mut score = |params: &Params| {
        let scored = parity.score(scorer, tables, &mut run.table, params).unwrap();
        VersionFile::of("json", &scored.to_json())
    };
    assert_eq!(version.parity, score(&before));
    assert_ne!(version.parity, score(&run.params));
}
