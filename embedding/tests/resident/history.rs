//! One random history of two sets with the same tables. The rows of one set are on a device.

use std::collections::VecDeque;
use std::path::PathBuf;

use tempfile::TempDir;
use zillion_device::gpu::emulated::EmulatedOptions;
use zillion_device::{Files, Workers};
use zillion_embedding::testing::checkpoint_oracle;
use zillion_embedding::{
    CacheFigures, EventClock, Rates, ResidentReport, SnapshotMark, SpillHome, TableSet,
    TableStatistics, Update,
};
use zillion_feature::random::{combine, unit_f32};
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, Step, TableId, Use};
use zillion_rows::conformance::plan_of;
use zillion_rows::layer::Unthrottled;
use zillion_rows::{ByteSize, MAX_PART_ROWS, TableParts, TableSpec};

use crate::chance::Chance;
use crate::compare::assert_same_files;
use crate::device::{Left, MOST_KEYS, OnDevice, workers};
use crate::same::{assert_same, bits, prefill};
use crate::tables::{let_evict, let_refuse, tables};

/// The number of ended epochs for which tables keep lists of changes.
const EPOCHS: usize = 3;

/// The largest number of ids of a table.
const MOST_IDS: u64 = 3_000;

/// The results of a step on the host, and those that the device will return.
struct Open {
    step: u64,
    rows: Vec<Vec<f32>>,
    norm: Option<f64>,
    left: Left,
    report: ResidentReport,
}

/// A checkpoint that both sets write beside their steps.
struct Beside {
    folders: [TempDir; 2],
    /// The same rows, written at once when the checkpoint began.
    expected: Option<PathBuf>,
}

pub(crate) struct History {
    chance: Chance,
    specs: Vec<TableSpec>,
    workers: Workers,
    host: TableSet,
    resident: TableSet,
    device: OnDevice,
    clip: Option<f64>,
    open: Vec<Open>,
    beside: Option<Beside>,
    saved: Option<(TempDir, Vec<TableParts>)>,
    marks: Option<[SnapshotMark; 2]>,
    step: u64,
    now: u32,
    vocabulary: u64,
    published: u32,
    skipped: u64,
    root: TempDir,
    /// The plans of the next steps, which the device knows.
    window: VecDeque<LookupPlan>,
    /// The number of these plans whose rows all have a place on the device.
    announced: usize,
    /// The number of plans that the device knows ahead; zero: none.
    ahead: u64,
    /// The number of steps that were done on the host, because the cache was too small.
    refused: u64,
}

/// The work that a history has done.
#[derive(Default)]
pub(crate) struct Done {
    /// The number of steps.
    pub(crate) steps: u64,
    pub(crate) skipped: u64,
    pub(crate) refused: u64,
    pub(crate) figures: CacheFigures,
}

fn files() -> Files {
    Files::new().scratch()
}

impl History {
    /// Begins a history. With `has_cache`, the device has a cache, and tables may evict rows.
    pub(crate) fn new(seed: u64, has_cache: bool) -> Self {
        let mut chance = Chance::new(seed);
        let mut specs = tables(&mut chance);
        let (mut cache_rows, mut ahead) = (None, 0);
        if has_cache {
            specs.iter_mut().for_each(|spec| let_evict(&mut chance, spec));
            let most = chance.pick(&[8, 200, 200, 10_000]);
            cache_rows = Some(chance.within(1, most) as usize);
            ahead = chance.pick(&[0, 1, 2, 5, 100]);
        } else {
            specs.iter_mut().for_each(|spec| let_refuse(&mut chance, spec));
        }
        let shared = chance.one_in(4).then(|| ByteSize(chance.pick(&[1 << 20, 4 << 20])));
        let workers = workers(chance.within(1, 2) as usize);
        let frozen = chance.one_in(3).then(|| TableId(chance.below(specs.len() as u64) as u16));
        let clip = chance.pick(&[None, Some(0.5), Some(40.0)]);
        let mut shards = || chance.pick(&[1, 3]).try_into().unwrap();
        let mut sets = [shards(), shards()].map(|shards| {
            let mut set = TableSet::new(specs.clone(), shards).unwrap();
            set.freeze(frozen.as_slice()).unwrap();
            // The limit may be too small for one row of each table.
            let _ = set.limit_bytes(shared.filter(|_| has_cache));
            set.track_changes(&workers, EPOCHS).unwrap();
            set.follow_snapshots();
            set
        });
        let root = tempfile::tempdir().unwrap();
        if has_cache && chance.one_in(3) {
            let home = SpillHome::open(&files(), &root.path().join("spill")).unwrap();
            let shards = sets[1].map().shards() as u64;
            for (table, _) in
                specs.iter().enumerate().filter(|(_, spec)| spec.check_spill().is_ok())
            {
                let memory = shards * chance.pick(&[64 << 10, 256 << 10]);
                sets[1].spill(TableId(table as u16), memory, &home).unwrap();
            }
        }
        let vocabulary = chance.within(0, 200);
        sets.iter_mut().for_each(|set| prefill(set, &workers, &specs, vocabulary));
        let [host, resident] = sets;
        let options = EmulatedOptions::seeded(seed);
        let device = OnDevice::with_cache(&resident, options, clip, cache_rows);
        Self {
            chance,
            specs,
            workers,
            host,
            resident,
            device,
            clip,
            open: Vec::new(),
            beside: None,
            saved: None,
            marks: None,
            step: 0,
            now: 0,
            vocabulary,
            published: 0,
            skipped: 0,
            root,
            window: VecDeque::new(),
            announced: 0,
            ahead,
            refused: 0,
        }
    }

    /// Runs the history to its end.
    pub(crate) fn run(mut self, operations: u64) -> Done {
        for _ in 0..operations {
            match self.chance.below(36) {
                0 | 1 => self.compare(),
                2 => self.look_up(),
                3 | 4 => self.begin_beside(),
                5 => self.finish_beside(),
                6 | 7 => self.publish(),
                8 => self.save(),
                9 => self.go_back(),
                10 => self.extend_vocabulary(),
                11 => self.step_on_the_host(),
                _ => self.step(),
            }
        }
        self.finish_beside();
        self.compare();
        assert_eq!(self.device.gpu.free_bytes().map_err(|e| e.to_string()).err(), None);
        let Self { step, skipped, refused, device, .. } = &self;
        let figures = device.tables.cache_figures().unwrap_or_default();
        Done { steps: *step, skipped: *skipped, refused: *refused, figures }
    }

    fn folder(&self) -> TempDir {
        TempDir::new_in(self.root.path()).unwrap()
    }

    fn plan(&mut self) -> LookupPlan {
        let Self { chance, specs, vocabulary, .. } = self;
        let ids = chance.pick(&[30, 300, MOST_IDS]);
        let most = chance.pick(&[3, MOST_KEYS as u64 / 2, MOST_KEYS as u64]);
        let keys = specs.iter().map(|spec| {
            let ids = if spec.dense { *vocabulary + 5 } else { ids };
            let count = if chance.one_in(8) { 0 } else { chance.below(most + 1) };
            (0..count).map(|_| FeatureKey::from_u64(chance.below(ids))).collect()
        });
        plan_of(&keys.collect::<Vec<Vec<FeatureKey>>>())
    }

    /// Replaces rows by gradients, of which a few are not finite or are zero with a sign.
    fn gradients(&mut self, plan: &LookupPlan, rows: &mut RowBuffer) {
        let seed = self.chance.bits();
        let poisoned = self.chance.one_in(3);
        let huge = self.chance.one_in(8);
        for (index, (rows, plan)) in rows.tables.iter_mut().zip(&plan.tables).enumerate() {
            let width = self.host.layouts()[index].width();
            let offsets = &plan.occurrences.offsets;
            let mut uses = Vec::new();
            for (i, key) in plan.keys.iter().enumerate() {
                let mut bits = combine(combine(seed, key.0), index as u64);
                let shows = (offsets[i + 1] - offsets[i]) as f32;
                uses.push(Use { shows, clicks: (bits % 2) as f32 * shows });
                let row = &mut rows.values[i * rows.stride..(i + 1) * rows.stride];
                let is_poisoned = poisoned && bits.is_multiple_of(7);
                for (unit, g) in row.iter_mut().enumerate() {
                    bits = combine(bits, unit as u64);
                    *g = match (unit < width, bits % 16) {
                        (false, _) => f32::NAN,
                        (true, 0) => -0.0,
                        (true, _) => unit_f32(bits as u32) - 0.45,
                    };
                    if huge && unit < width {
                        *g *= 1e9;
                    }
                }
                if is_poisoned {
                    row[width - 1] = if bits.is_multiple_of(2) { f32::NAN } else { f32::INFINITY };
                }
            }
            rows.uses = self.specs[index].statistics.as_ref().map(|_| uses);
        }
    }

    fn next_step(&mut self) -> (Update, f64) {
        self.step += 1;
        let before = self.now;
        self.now += self.chance.below(60) as u32;
        let clock = EventClock { before, now: self.now };
        self.host.set_clock(clock).unwrap();
        self.resident.set_clock(clock).unwrap();
        let rates = Rates { scale: self.chance.pick(&[1.0, 0.5, 0.1]) };
        let dense = match self.chance.below(12) {
            0 => f64::NAN,
            1 => f64::INFINITY,
            _ => self.chance.unit(),
        };
        (Update { step: Step(self.step), rates, scale: 1.0 }, dense)
    }

    /// Does the step of a plan on a set whose rows are on the host, as a trainer does it. Returns
    /// the squared norm of the row gradients and the report.
    fn do_on_the_host(
        set: &mut TableSet,
        workers: &Workers,
        plan: &LookupPlan,
        gradients: &RowBuffer,
        (update, dense, clip): (Update, f64, Option<f64>),
    ) -> (Option<f64>, ResidentReport) {
        let mut counters = set.stage(workers, plan, gradients).unwrap();
        let norm = clip.map(|_| set.grad_sq_norm(workers, plan, gradients, update.step).unwrap());
        let total = (norm.unwrap_or(0.0) + dense).sqrt();
        let is_skipped = !dense.is_finite() || !total.is_finite();
        let scale = clip.map_or(1.0, |most| (most / (total + 1e-6)).min(1.0) as f32);
        if is_skipped {
            counters.add(set.skip(workers, plan, gradients, update).unwrap());
        } else {
            let update = Update { scale, ..update };
            counters.add(set.apply(workers, plan, gradients, update).unwrap());
            counters.add(set.sweep(workers, update).unwrap());
        }
        (norm, ResidentReport { step: update.step, is_skipped, counters })
    }

    /// Returns the plan of the next step, after the device has learned those behind it.
    fn next_plan(&mut self) -> LookupPlan {
        while (self.window.len() as u64) < self.ahead {
            let plan = self.plan();
            self.window.push_back(plan);
        }
        // Now and then the device does not learn a plan, so its step fetches the rows.
        while self.announced < self.window.len() && !self.chance.one_in(9) {
            let Self { device, resident, workers, window, announced, .. } = self;
            if !device.tables.look_ahead(resident, workers, &window[*announced]).unwrap() {
                break;
            }
            *announced += 1;
        }
        self.announced = self.announced.saturating_sub(1);
        match self.window.pop_front() {
            Some(plan) => plan,
            None => self.plan(),
        }
    }

    fn step(&mut self) {
        let plan = self.next_plan();
        let mut gradients = RowBuffer::default();
        let (update, dense) = self.next_step();
        self.host.pull(&self.workers, &plan, true, &mut gradients).unwrap();
        let rows = gradients.tables.iter().map(|table| table.values.clone());
        let rows: Vec<Vec<f32>> = rows.collect();
        self.gradients(&plan, &mut gradients);
        let Self { workers, host, resident, device, clip, .. } = self;
        let with = (update, dense, *clip);
        let (norm, report) = Self::do_on_the_host(host, workers, &plan, &gradients, with);
        let left = match device.step(resident, workers, &plan, &gradients, (dense, update)) {
            Ok(left) => left,
            Err(reason) => {
                assert!(reason.contains("holds"), "{reason}");
                // The set has the newest rows, so the step is done on the host.
                self.refused += 1;
                let mut pulled = RowBuffer::default();
                resident.pull(workers, &plan, true, &mut pulled).unwrap();
                Self::do_on_the_host(resident, workers, &plan, &gradients, with);
                let pulled = pulled.tables.iter().map(|table| &table.values);
                assert!(pulled.map(|rows| bits(rows)).eq(rows.iter().map(|rows| bits(rows))));
                return;
            }
        };
        self.skipped += u64::from(report.is_skipped);
        self.open.push(Open { step: self.step, rows, norm, left, report });
        if self.beside.is_some() {
            let rows = self.chance.below(40) as usize;
            self.host.advance_snapshot(&self.workers, rows);
            self.resident.advance_snapshot(&self.workers, rows);
        }
    }

    /// Does a step of both sets on the host.
    fn step_on_the_host(&mut self) {
        self.settle();
        let plan = self.plan();
        let mut gradients = RowBuffer::default();
        let (update, dense) = self.next_step();
        self.host.pull(&self.workers, &plan, true, &mut gradients).unwrap();
        let mut rows = RowBuffer::default();
        self.resident.pull(&self.workers, &plan, true, &mut rows).unwrap();
        assert_same(&gradients, &rows, "pulled on the host");
        self.gradients(&plan, &mut gradients);
        self.device.tables.forget(&mut self.resident).unwrap();
        let with = (update, dense, self.clip);
        for set in [&mut self.host, &mut self.resident] {
            Self::do_on_the_host(set, &self.workers, &plan, &gradients, with);
        }
    }

    /// Compares what the steps since the last settlement have returned, and settles.
    fn settle(&mut self) {
        let waits = self.chance.one_in(2);
        let mut reports = Vec::new();
        while waits && let Some(report) = self.collect() {
            reports.push(report);
        }
        self.device.tables.settle(&mut self.resident).unwrap();
        while let Some(report) = self.collect() {
            reports.push(report);
        }
        let mut reports = reports.into_iter();
        for Open { step, rows, norm, left, report } in std::mem::take(&mut self.open) {
            assert_eq!(reports.next(), Some(report), "step {step}");
            let (got, got_norm) = self.device.read(left);
            for (table, (got, rows)) in got.iter().zip(&rows).enumerate() {
                let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
                let at = got.iter().zip(rows).position(differs);
                let found = at.map(|at| (at, got[at], rows[at]));
                assert_eq!(found, None, "step {step}, table {table}: {:?}", self.specs[table]);
            }
            if let Some(norm) = norm {
                assert_eq!(norm.to_bits(), got_norm.to_bits(), "step {step}: {norm} {got_norm}");
            }
        }
        assert_eq!(reports.next(), None);
    }

    fn collect(&mut self) -> Option<ResidentReport> {
        self.device.tables.collect(&mut self.resident, true).unwrap()
    }

    /// Compares all rows, all metadata and all counters.
    fn compare(&mut self) {
        self.settle();
        for (index, spec) in self.specs.iter().enumerate() {
            for id in 0..MOST_IDS {
                let key = FeatureKey::from_u64(id);
                let find = |set: &TableSet| set.find(TableId(index as u16), key).unwrap();
                let found = [find(&self.host), find(&self.resident)];
                assert_eq!(format!("{:?}", found[0]), format!("{:?}", found[1]), "{id}: {spec:?}");
            }
        }
        let [a, b] = [self.folder(), self.folder()];
        for (set, folder) in [(&self.host, &a), (&self.resident, &b)] {
            let write = checkpoint_oracle;
            write(set, &self.workers, folder.path(), &files(), MAX_PART_ROWS).unwrap();
        }
        assert_same_files(a.path(), b.path());
        let counted = |set: &TableSet| {
            let of = |table: TableStatistics| (table.rows, table.candidates, table.counters);
            set.statistics().into_iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(counted(&self.host), counted(&self.resident));
    }

    fn look_up(&mut self) {
        self.settle();
        let plan = self.plan();
        let [mut a, mut b] = [RowBuffer::default(), RowBuffer::default()];
        let reports = [
            self.host.lookup(&self.workers, &plan, &mut a).unwrap(),
            self.resident.lookup(&self.workers, &plan, &mut b).unwrap(),
        ];
        assert_eq!(reports[0], reports[1]);
        assert_same(&a, &b, "looked up");
        let loss = |set: &mut TableSet| set.regulariser_loss(&self.workers, &plan).unwrap();
        assert_eq!(loss(&mut self.host).to_bits(), loss(&mut self.resident).to_bits());
    }

    fn begin_beside(&mut self) {
        self.finish_beside();
        self.settle();
        let folders = [self.folder(), self.folder()];
        let marks = self.marks.filter(|_| self.chance.one_in(2));
        let mut expected = None;
        for (at, set) in [&mut self.host, &mut self.resident].into_iter().enumerate() {
            let (folder, files) = (folders[at].path(), &files());
            match marks {
                None => set.begin_snapshot(&self.workers, folder, files).unwrap(),
                Some(marks) => {
                    set.begin_changes(&self.workers, folder, files, marks[at]).unwrap();
                }
            }
        }
        if marks.is_none() {
            let folder = self.root.path().join(format!("expected{}", self.step));
            let _ = std::fs::remove_dir_all(&folder);
            checkpoint_oracle(&self.host, &self.workers, &folder, &files(), MAX_PART_ROWS).unwrap();
            expected = Some(folder);
        }
        self.beside = Some(Beside { folders, expected });
    }

    fn finish_beside(&mut self) {
        let Some(Beside { folders: [a, b], expected }) = self.beside.take() else { return };
        let parts = self.host.finish_snapshot(&self.workers).unwrap();
        assert_eq!(parts, self.resident.finish_snapshot(&self.workers).unwrap());
        assert_same_files(a.path(), b.path());
        if let Some(expected) = expected {
            assert_same_files(&expected, b.path());
        }
        let mark = |set: &TableSet| set.snapshot_mark().unwrap();
        self.marks = Some([mark(&self.host), mark(&self.resident)]);
    }

    fn publish(&mut self) {
        self.settle();
        let [a, b] = [self.folder(), self.folder()];
        let write = |set: &TableSet, folder: &TempDir| {
            let (folder, pace) = (folder.path(), &mut Unthrottled);
            set.write_delta(&self.workers, self.published, &files(), folder, pace).unwrap()
        };
        let manifests = [write(&self.host, &a), write(&self.resident, &b)];
        assert_eq!(manifests[0], manifests[1]);
        if manifests[0].is_some() {
            assert_same_files(a.path(), b.path());
        }
        let ended = self.host.advance_dirty_epoch();
        assert_eq!(ended, self.resident.advance_dirty_epoch());
        self.published = ended;
    }

    fn save(&mut self) {
        self.settle();
        let folder = self.folder();
        let (path, files) = (folder.path(), files());
        let parts = checkpoint_oracle(&self.host, &self.workers, path, &files, MAX_PART_ROWS);
        self.saved = Some((folder, parts.unwrap()));
    }

    /// Restores the saved checkpoint in both sets.
    fn go_back(&mut self) {
        self.finish_beside();
        self.settle();
        let Some((folder, parts)) = &self.saved else { return };
        self.device.tables.forget(&mut self.resident).unwrap();
        for set in [&mut self.host, &mut self.resident] {
            set.restore(&self.workers, folder.path(), parts).unwrap();
        }
        self.marks = None;
        self.published = self.host.advance_dirty_epoch();
        assert_eq!(self.published, self.resident.advance_dirty_epoch());
    }

    /// Adds keys to the tables with a fixed vocabulary.
    fn extend_vocabulary(&mut self) {
        self.finish_beside();
        self.settle();
        self.vocabulary += self.chance.below(30);
        self.device.tables.forget(&mut self.resident).unwrap();
        for set in [&mut self.host, &mut self.resident] {
            prefill(set, &self.workers, &self.specs, self.vocabulary);
        }
    }
}
