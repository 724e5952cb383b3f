//! One random history of two sets. The sets differ in their numbers of shards and threads, and in
//! the tables that spill.
//!
//! Every operation is done on both sets, and both must return the same bits. A checkpoint that one
//! set writes beside training is compared with a checkpoint that the other set writes at once. The
//! previous version, changed by a delta, is compared with all rows. The first table is compared
//! with a model.

mod written;

use std::time::Instant;

use tempfile::TempDir;
use zillion_embedding::{Counters, Rates, SpillHome, Update};
use zillion_feature::random::{combine, unit_f32};
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, Step, TableId, Use};
use zillion_rows::conformance::plan_of;
use zillion_rows::{Admission, ByteSize, Eviction, TableSpec};

use crate::chance::Chance;
use crate::compare::assert_same_rows;
use crate::keys::Keys;
use crate::model::{self, Model};
use crate::side::{Setting, Side, files, memory};
use crate::tables::{PINNED, tables};
use written::{Beside, Published, Saved};

/// The memory of a shard in bytes. It is the initial size of its slabs and a little more, for some
/// rows.
const SPILL_MEMORY: u64 = 9 << 10;
/// The number of keys that a dense table's vocabulary has at the beginning.
const VOCABULARY: u64 = 300;
/// The number of steps after which all unseen keys must have been removed. It is more than twice
/// the longest time for which tables keep them.
const QUIET: u64 = 20;

/// The size of a history.
#[derive(Clone, Copy)]
struct Size {
    ids: u64,
    batch: u64,
    operations: u64,
    /// The interval of the histories in which tables spill, counted in histories. Large histories
    /// spill less often, because checking all rows reads the file slot by slot, which is slow if
    /// many slots have few rows.
    spills: u64,
}

pub(crate) struct History {
    chance: Chance,
    size: Size,
    specs: Vec<TableSpec>,
    keys: Vec<Keys>,
    sides: [Side; 2],
    model: Option<Model>,
    step: u64,
    vocabulary: u64,
    /// The number of pinned keys that have no row yet, for each table.
    unpinned: Vec<u64>,
    beside: Option<Beside>,
    saved: Option<Saved>,
    published: Option<Published>,
    /// The keys of the next step if they have been announced, else `None`.
    announced: Option<Vec<Vec<FeatureKey>>>,
    home: SpillHome,
    /// The folder of all files. The field is dropped last, because tasks may still write into the
    /// folder.
    root: TempDir,
}

impl History {
    pub(crate) fn new(seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let size = chance.pick(&[
            Size { ids: 150, batch: 40, operations: 150, spills: 2 },
            Size { ids: 4_000, batch: 500, operations: 90, spills: 3 },
            Size { ids: 100_000, batch: 4_000, operations: 45, spills: 12 },
        ]);
        let specs = tables(&mut chance);
        let root = tempfile::tempdir().unwrap();
        let limit = ByteSize(chance.within(24, 48) << 20);
        let shared = chance.one_in(4).then_some(limit);
        let is_spilled = chance.one_in(size.spills);
        let may_spill = |spec: &TableSpec| is_spilled && spec.check_spill().is_ok();
        let memory = SPILL_MEMORY * chance.within(2, 8);
        let mut spills = |spec| (may_spill(spec) && chance.one_in(2)).then_some(memory);
        let spill: Vec<Option<u64>> = specs.iter().map(&mut spills).collect();
        let home = SpillHome::open(&files(), &root.path().join("spill")).unwrap();
        let setting = |spill, home| Setting { specs: specs.clone(), shared, spill, home };
        let threads = chance.within(1, 2) as usize;
        let mut shards = || chance.pick(&[1, 3, 8]);
        let plain = Side::new(setting(Vec::new(), None), threads, shards());
        let tight = Side::new(setting(spill, Some(home.clone())), 3 - threads, shards());
        let keys = specs.iter().map(|_| Keys::new(&mut chance, size.ids)).collect();
        let mut history = Self {
            // With a shared limit there is no model, because a full table refuses keys that the
            // model takes.
            model: shared.is_none().then(|| Model::new(&specs[0])),
            unpinned: vec![PINNED; specs.len()],
            chance,
            size,
            keys,
            specs,
            sides: [plain, tight],
            step: 0,
            vocabulary: 0,
            beside: None,
            saved: None,
            published: None,
            announced: None,
            home,
            root,
        };
        history.prefill(VOCABULARY);
        history
    }

    /// Returns a description of the tables and the sizes of the history.
    pub(crate) fn describe(&self) -> String {
        let kinds = self
            .specs
            .iter()
            .map(|s| format!("{:?} {:?} {:?} {:?}", s.dtype, s.admission, s.eviction, s.max_bytes));
        let shards = self.sides.each_ref().map(|side| side.set.map().shards());
        let kinds: Vec<String> = kinds.collect();
        format!("shards {shards:?}, batches up to {}, {}", self.size.batch, kinds.join("; "))
    }

    /// Runs the whole history, or stops it at a given moment. Calls `tell` with a description of
    /// each operation. Returns the number of operations.
    pub(crate) fn run(mut self, until: Option<Instant>, tell: &dyn Fn(String)) -> u64 {
        let mut operations = 0;
        while operations < self.size.operations && until.is_none_or(|end| Instant::now() < end) {
            operations += 1;
            let operation = self.chance.below(60);
            tell(format!("operation {operations} (kind {operation}), step {}", self.step));
            match operation {
                0 | 1 => self.look_up(),
                2 => self.lose(),
                3 | 4 => self.announce(),
                5..8 => self.begin_beside(),
                8 => self.save(),
                9 => self.move_over(),
                10 => self.go_back(),
                11 | 12 => self.publish(),
                13 => self.end_epoch(),
                14 => self.prefill(20),
                _ => self.step(),
            }
        }
        tell("the end".to_owned());
        self.close();
        operations
    }

    /// Calls `f` for both sides, and returns both results. `f` must do the same operation on both
    /// sides.
    fn both<T>(&mut self, mut f: impl FnMut(&mut Side) -> T) -> [T; 2] {
        let [a, b] = &mut self.sides;
        [f(a), f(b)]
    }

    fn folder(&self) -> TempDir {
        TempDir::new_in(self.root.path()).unwrap()
    }

    /// Returns keys for every table; some tables may get none.
    fn batch(&mut self) -> Vec<Vec<FeatureKey>> {
        let Self { keys, chance, specs, size, vocabulary, .. } = self;
        let mut of_table = |(keys, spec): (&mut Keys, &TableSpec)| {
            let count = match chance.below(8) {
                0 => chance.below(3),
                1 => size.batch,
                _ => chance.within(1, size.batch),
            };
            match spec.dense {
                // A few keys are outside of the vocabulary, and are refused.
                true => (0..count).map(|_| Keys::known(chance.below(*vocabulary + 9))).collect(),
                false => keys.batch(chance, count),
            }
        };
        keys.iter_mut().zip(specs.iter()).map(&mut of_table).collect()
    }

    fn gradients(&mut self, plan: &LookupPlan) -> RowBuffer {
        let seed = self.chance.bits();
        let poisoned = self.chance.one_in(4);
        let layouts = self.sides[0].set.layouts();
        let mut rows = RowBuffer::default();
        rows.reshape(plan.tables.iter().map(|t| (t.keys.len(), layouts[t.table.index()].stride)));
        for (table, (rows, plan)) in rows.tables.iter_mut().zip(&plan.tables).enumerate() {
            let width = layouts[table].width();
            let offsets = &plan.occurrences.offsets;
            let mut uses = Vec::with_capacity(plan.keys.len());
            for (i, key) in plan.keys.iter().enumerate() {
                let mut bits = combine(combine(seed, key.0), table as u64);
                let row = &mut rows.values[i * rows.stride..(i + 1) * rows.stride];
                let shows = (offsets[i + 1] - offsets[i]) as f32;
                uses.push(Use { shows, clicks: (bits % 2) as f32 * shows });
                let is_poisoned = poisoned && bits.is_multiple_of(31);
                for g in &mut row[..width] {
                    bits = bits.rotate_left(17).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let random = unit_f32((bits >> 32) as u32) - 0.45;
                    *g = if table == 0 { model::gradient(bits >> 40) } else { random };
                }
                // The padding of a row has no meaning.
                row[width..].fill(f32::NAN);
                if is_poisoned {
                    row[key.0 as usize % width] = [f32::NAN, f32::INFINITY][i % 2];
                }
            }
            rows.uses = self.specs[table].statistics.map(|_| uses);
        }
        rows
    }

    fn step(&mut self) {
        self.step += if self.chance.one_in(20) { self.chance.within(2, 6) } else { 1 };
        let keys = self.announced.take();
        let keys = keys.unwrap_or_else(|| self.batch());
        let plan = plan_of(&keys);
        let gradients = self.gradients(&plan);
        if !self.chance.one_in(8) {
            self.pull(&plan);
        }
        let rates = Rates { scale: self.chance.pick(&[1.0, 1.0, 0.5]) };
        let step = Step(self.step);
        let mut update = Update { step, rates, scale: 1.0 };
        if self.chance.one_in(3) {
            let [a, b] = self.both(|side| {
                let staged = side.set.stage(&side.workers, &plan, &gradients).unwrap();
                let norm = side.set.grad_sq_norm(&side.workers, &plan, &gradients, step).unwrap();
                (staged, norm.to_bits())
            });
            assert_eq!(a, b, "what was staged and its norm");
            if self.chance.one_in(6) {
                self.both(|side| side.set.discard());
                return;
            }
            update.scale = self.chance.pick(&[1.0, 0.5, 0.25]);
            if self.chance.one_in(6) {
                self.learn(&plan, &gradients, update, true);
                let counted = self
                    .both(|side| side.set.skip(&side.workers, &plan, &gradients, update).unwrap());
                self.agree(counted, "skip");
                self.check_pinned();
                self.advance_beside();
                return;
            }
            self.learn(&plan, &gradients, update, false);
            let counted =
                self.both(|side| side.set.apply(&side.workers, &plan, &gradients, update).unwrap());
            self.agree(counted, "apply");
        } else {
            self.learn(&plan, &gradients, update, false);
            let counted =
                self.both(|side| side.set.push(&side.workers, &plan, &gradients, update).unwrap());
            self.agree(counted, "push");
        }
        let counted = self.both(|side| side.set.sweep(&side.workers, update).unwrap());
        self.agree(counted, "sweep");
        self.check_pinned();
        self.advance_beside();
    }

    /// Applies a training step to the model.
    fn learn(
        &mut self,
        plan: &LookupPlan,
        gradients: &RowBuffer,
        update: Update,
        is_skipped: bool,
    ) {
        if let Some(model) = &mut self.model {
            model.push(&plan.tables[0], &gradients.tables[0], update, is_skipped);
        }
    }

    /// Checks that both sides have the same counters, and checks the rules that must hold at any
    /// time.
    fn agree(&mut self, [a, b]: [Counters; 2], what: &str) {
        assert_eq!(a, b, "{what}");
        let [a, b] = self.both(|side| {
            side.check();
            let all = side.set.statistics();
            all.iter().map(|s| (s.rows, s.candidates)).collect::<Vec<_>>()
        });
        assert_eq!(a, b, "rows and candidates after {what}");
        if let Some(model) = &self.model {
            assert_eq!(a[0].0, model.rows(), "rows of the model after {what}");
        }
    }

    fn pull(&mut self, plan: &LookupPlan) {
        let [a, b] = self.both(|side| {
            let mut rows = RowBuffer::default();
            side.set.pull(&side.workers, plan, true, &mut rows).unwrap();
            rows
        });
        assert_same_rows(&a, &b, "a pull");
        if let Some(model) = &self.model {
            model.check_pull(&plan.tables[0], &a.tables[0]);
        }
    }

    /// Looks up keys for evaluation on both sides.
    fn look_up(&mut self) {
        let plan = plan_of(&self.batch());
        let [(a, found), (b, also)] = self.both(|side| {
            let mut rows = RowBuffer::default();
            let report = side.set.lookup(&side.workers, &plan, &mut rows).unwrap();
            (rows, report)
        });
        assert_same_rows(&a, &b, "a lookup");
        assert_eq!(found, also, "keys that were not found");
    }

    /// Compares the regulariser's loss of both sides.
    fn lose(&mut self) {
        let plan = plan_of(&self.batch());
        let [a, b] =
            self.both(|side| side.set.regulariser_loss(&side.workers, &plan).unwrap().to_bits());
        assert_eq!(a, b, "the regulariser's loss");
    }

    /// Announces the next plan, and sometimes another plan that is then not looked up.
    fn announce(&mut self) {
        let keys = self.announced.take();
        let next = keys.unwrap_or_else(|| self.batch());
        let plans = [plan_of(&next), plan_of(&self.batch())];
        let count = self.chance.within(1, 2) as usize;
        let plans: Vec<&LookupPlan> = plans.iter().take(count).collect();
        self.both(|side| side.set.look_ahead(&side.workers, &plans).unwrap());
        self.announced = Some(next);
    }

    /// Checks that no row of a pinned key has been removed.
    fn check_pinned(&mut self) {
        let keys: Vec<Vec<FeatureKey>> =
            self.specs.iter().map(|s| s.pinned.iter().map(|id| id.key()).collect()).collect();
        if keys.iter().all(Vec::is_empty) {
            return;
        }
        let plan = plan_of(&keys);
        let side = &mut self.sides[0];
        let mut rows = RowBuffer::default();
        let report = side.set.lookup(&side.workers, &plan, &mut rows).unwrap();
        for (table, (now, before)) in report.missing.iter().zip(&mut self.unpinned).enumerate() {
            assert!(*now <= *before, "a pinned row of table {table} is gone");
            *before = *now;
        }
    }

    /// Adds `by` keys to the vocabulary of the dense tables.
    fn prefill(&mut self, by: u64) {
        self.vocabulary += by;
        let mut keys: Vec<FeatureKey> = (0..self.vocabulary).map(Keys::known).collect();
        keys.sort_unstable();
        for table in 0..self.specs.len() {
            if self.specs[table].dense {
                let id = TableId(table as u16);
                let [a, b] = self.both(|side| side.set.prefill(&side.workers, id, &keys).unwrap());
                assert_eq!(a, b, "rows of a vocabulary");
            }
        }
    }

    /// Runs steps without keys until every row that can expire has been removed. Checks that their
    /// memory was freed.
    fn close(mut self) {
        self.finish_beside();
        let before = self.both(|side| side.set.statistics());
        let nothing = plan_of(&vec![Vec::new(); self.specs.len()]);
        let gradients = self.gradients(&nothing);
        for _ in 0..QUIET {
            self.step += 1;
            let update = Update { step: Step(self.step), rates: Rates::default(), scale: 1.0 };
            let counted = self.both(|side| {
                // Rows that a lookup has brought in are spilled by the next push.
                side.set.push(&side.workers, &nothing, &gradients, update).unwrap();
                side.set.sweep(&side.workers, update).unwrap()
            });
            self.agree(counted, "a step without keys");
        }
        for (side, before) in self.sides.iter().zip(&before) {
            let (now, fresh) = (side.set.statistics(), side.fresh());
            for (table, spec) in self.specs.iter().enumerate() {
                if !matches!(spec.eviction, Eviction::Unseen { .. }) {
                    continue;
                }
                let (now, before, fresh) = (&now[table], &before[table], &fresh[table]);
                assert!(now.rows <= spec.pinned.len() as u64 && now.candidates == 0, "{now:?}");
                // A pinned row keeps its chunk of memory, and the memory of a filter stays.
                let is_filter = matches!(spec.admission, Admission::Bloom { .. });
                let is_empty = now.rows == 0 && !is_filter;
                let most = memory(if is_empty { fresh } else { before });
                assert!(memory(now) <= most, "{now:?} after {before:?}, and at first {fresh:?}");
            }
        }
        self.checkpoint();
        let [plain, tight] = self.sides;
        drop((plain, tight));
        let left = std::fs::read_dir(self.home.path()).unwrap().count();
        assert_eq!(left, 1, "only the lock is left where tables spilled");
    }
}
