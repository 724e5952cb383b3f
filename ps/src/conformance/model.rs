//! A model of the tables, which keeps the rows in a `BTreeMap` and must give the same results as a
//! client.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use zillion_embedding::{Counters, Rates};
use zillion_feature::random::{combine, unit_f32};
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, Step, TableId};
use zillion_rows::conformance::plan_of;
use zillion_rows::layer::LayerManifest;
use zillion_rows::{Admission, Dtype, Eviction, TableSpec, Unknown};

use super::versions::{State, Versions};
use super::{Action, Ending, StepAction, TABLES, key, specs_of};
use crate::client::{PullOptions, PushMode, StepReport, TrainClient};

/// Runs a history on a client whose tables have the specs of [`specs_of`], and compares the results
/// with the model.
///
/// # Errors
/// Returns a description of the first difference.
pub fn replay(
    dtype: Dtype,
    client: &mut dyn TrainClient,
    actions: &[Action],
) -> Result<(), String> {
    publish(dtype, client, actions).map(drop)
}

/// Runs a history like [`replay`], and returns all layers that the client wrote.
pub(super) fn publish(
    dtype: Dtype,
    client: &mut dyn TrainClient,
    actions: &[Action],
) -> Result<Vec<LayerManifest>, String> {
    let mut model = Model::new(dtype);
    for (i, action) in actions.iter().enumerate() {
        model.act(client, action).map_err(|e| format!("action {i} ({action:?}): {e}"))?;
    }
    model.compare_statistics(client)?;
    Ok(model.versions.map_or_else(Vec::new, |versions| versions.manifests))
}

#[derive(Clone)]
struct Row {
    weights: Vec<f32>,
    pushes: u32,
    last_step: u64,
}

struct Model {
    specs: Vec<TableSpec>,
    tables: Vec<BTreeMap<FeatureKey, Row>>,
    /// The keys of each table that are not admitted yet, each with its number of occurrences and
    /// the last step in which it occurred.
    candidates: Vec<BTreeMap<FeatureKey, (u32, u64)>>,
    /// The values that the client returned for each unknown key. The values of a key never change,
    /// and they are the initial values of its row.
    initial: BTreeMap<(usize, FeatureKey), Vec<f32>>,
    counters: Vec<Counters>,
    step: u64,
    /// The published versions; `None` before the first version.
    versions: Option<Versions>,
}

/// The gradients of one table, divided into those whose keys have or get a row, those whose keys
/// wait for admission, and those that are refused. Gradients are given by their positions in the
/// plan, or only counted.
#[derive(Default)]
struct Sorted {
    used: Vec<usize>,
    waiting: Vec<usize>,
    refused: u64,
}

/// Returns whether a gradient is applied, and not dropped because it is not finite.
fn is_finite(gradient: &[f32]) -> bool {
    gradient.iter().all(|x| x.is_finite())
}

/// Returns an error if two values differ.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: &T, wanted: &T) -> Result<(), String> {
    if got == wanted { Ok(()) } else { Err(format!("{what}: {got:?} instead of {wanted:?}")) }
}

pub(super) fn failed(call: &'static str) -> impl Fn(crate::Error) -> String {
    move |e| format!("`{call}` failed: {e}")
}

impl Model {
    fn new(dtype: Dtype) -> Self {
        Self {
            specs: specs_of(dtype),
            tables: vec![BTreeMap::new(); TABLES],
            candidates: vec![BTreeMap::new(); TABLES],
            initial: BTreeMap::new(),
            counters: vec![Counters::default(); TABLES],
            step: 0,
            versions: None,
        }
    }

    fn act(&mut self, client: &mut dyn TrainClient, action: &Action) -> Result<(), String> {
        match action {
            Action::Step(step) => self.run_step(client, step),
            Action::Evaluate { ids } => self.evaluate(client, &plan(ids)),
            Action::Prefill { ids } => self.prefill(client, ids),
            Action::Restart => {
                self.versions.iter_mut().for_each(Versions::restarted);
                super::versions::restart(client)
            }
            Action::Publish { back } => {
                let state = self.state();
                match &mut self.versions {
                    Some(versions) => versions.publish(client, *back, &state),
                    none => Versions::begin(client, &state).map(|versions| *none = Some(versions)),
                }
            }
        }
    }

    fn state(&self) -> State {
        let row = |(&key, row): (&FeatureKey, &Row)| (key, (row.weights.clone(), row.pushes));
        self.tables.iter().map(|rows| rows.iter().map(row).collect()).collect()
    }

    /// Marks all rows of a table as changed, if the table has a whole-table rule.
    fn all_changed(&mut self, table: usize) {
        if self.specs[table].has_whole_table_rule() {
            let keys: Vec<FeatureKey> = self.tables[table].keys().copied().collect();
            keys.into_iter().for_each(|key| self.changed(table, key));
        }
    }

    /// Marks a row as changed, because it was written, created or evicted.
    fn changed(&mut self, table: usize, key: FeatureKey) {
        self.versions.iter_mut().for_each(|versions| versions.changed(table, key));
    }

    fn run_step(
        &mut self,
        client: &mut dyn TrainClient,
        action: &StepAction,
    ) -> Result<(), String> {
        self.step += 1;
        let rate = if action.slow { 0.5 } else { 1.0 };
        client.begin_step(Step(self.step), Rates { scale: rate }).map_err(failed("begin_step"))?;
        let plan = Arc::new(plan(&action.ids));
        let rows = client
            .pull(&plan, PullOptions { counts: true }, RowBuffer::default())
            .map_err(failed("pull"))?;
        self.compare_pull(&plan, &rows)?;
        if action.ending == Ending::Abandoned {
            return Ok(());
        }
        let gradients = self.gradients(&plan, &action.poisoned);
        let before = self.total();
        match action.ending {
            Ending::Applied => {
                let pushed = client.push(&plan, gradients.clone(), PushMode::Apply);
                let buffer = pushed.map_err(failed("push"))?;
                same("tables of the buffer that comes back", &buffer.tables.len(), &TABLES)?;
                let report = client.sweep().map_err(failed("sweep"))?;
                self.learn(&plan, &gradients, rate, Some(1.0));
                self.evict();
                self.compare_report(report, before)
            }
            _ => {
                let pushed = client.push(&plan, gradients.clone(), PushMode::Stage);
                pushed.map_err(failed("push"))?;
                let norm = client.grad_sq_norm().map_err(failed("grad_sq_norm"))?;
                let wanted = self.square(&plan, &gradients);
                if (norm - wanted).abs() > wanted * 1e-6 {
                    return Err(format!("squared norm: {norm} instead of {wanted}"));
                }
                let (report, scale) = match action.ending {
                    Ending::Discarded => return client.discard().map_err(failed("discard")),
                    Ending::Skipped => (client.skip().map_err(failed("skip"))?, None),
                    _ => (client.apply(0.5).map_err(failed("apply"))?, Some(0.5)),
                };
                self.learn(&plan, &gradients, rate, scale);
                self.evict();
                self.compare_report(report, before)
            }
        }
    }

    fn compare_pull(&mut self, plan: &LookupPlan, rows: &RowBuffer) -> Result<(), String> {
        for (table, keys) in plan.tables.iter().enumerate() {
            let counts = rows.tables[table].counts.as_ref().ok_or("no counts were pulled")?;
            same("counts", &counts.len(), &keys.keys.len())?;
            for (i, &key) in keys.keys.iter().enumerate() {
                self.counters[table].pulled += 1;
                let found = self.tables[table].get(&key).cloned();
                let row = match found {
                    Some(row) => row,
                    None => {
                        self.counters[table].missing += 1;
                        let read = rows.tables[table].row(i)[..self.width(table)].to_vec();
                        let first = self.initial.entry((table, key)).or_insert(read);
                        Row { weights: first.clone(), pushes: 0, last_step: 0 }
                    }
                };
                self.compare_row(table, key, rows.tables[table].row(i), &row.weights)?;
                same(&format!("count of {key:?} in table {table}"), &counts[i], &row.pushes)?;
            }
        }
        Ok(())
    }

    fn evaluate(&mut self, client: &mut dyn TrainClient, plan: &LookupPlan) -> Result<(), String> {
        let (rows, report) = client.lookup(plan, RowBuffer::default()).map_err(failed("lookup"))?;
        for (table, keys) in plan.tables.iter().enumerate() {
            let mut missing = 0;
            for (i, &key) in keys.keys.iter().enumerate() {
                let read = rows.tables[table].row(i);
                let width = self.width(table);
                let wanted = match self.tables[table].get(&key) {
                    Some(row) => row.weights.clone(),
                    None => {
                        missing += 1;
                        match self.specs[table].unknown {
                            Unknown::Zero => vec![0.0; width],
                            Unknown::Seeded => {
                                let first = self.initial.entry((table, key));
                                first.or_insert(read[..width].to_vec()).clone()
                            }
                        }
                    }
                };
                self.compare_row(table, key, read, &wanted)?;
            }
            same("missing", &report.missing[table], &missing)?;
        }
        Ok(())
    }

    fn prefill(&mut self, client: &mut dyn TrainClient, ids: &[u64]) -> Result<(), String> {
        let mut keys: Vec<FeatureKey> = ids.iter().map(|&id| key(id)).collect();
        keys.sort_unstable();
        keys.dedup();
        for table in (0..TABLES).filter(|&t| self.specs[t].dense).collect::<Vec<_>>() {
            let id = TableId(table as u16);
            let added = client.prefill(id, &keys).map_err(failed("prefill"))?;
            let new: Vec<FeatureKey> =
                keys.iter().filter(|k| !self.tables[table].contains_key(k)).copied().collect();
            same("rows added", &added, &(new.len() as u64))?;
            self.counters[table].created += added;
            // A new row starts from the values that an unknown key would have been pulled as.
            let mut by_table = vec![Vec::new(); TABLES];
            by_table[table] = new;
            let plan = plan_of(&by_table);
            let (rows, _) = client.lookup(&plan, RowBuffer::default()).map_err(failed("lookup"))?;
            for (i, &key) in plan.tables[table].keys.iter().enumerate() {
                let read = rows.tables[table].row(i)[..self.width(table)].to_vec();
                let first = self.initial.entry((table, key)).or_insert(read.clone());
                same("a prefilled row", &read, first)?;
                self.tables[table].insert(key, Row { weights: read, pushes: 0, last_step: 0 });
                self.changed(table, key);
            }
        }
        Ok(())
    }

    /// Divides the gradients of one table into the groups of [`Sorted`].
    fn sort_out(&self, plan: &LookupPlan, table: usize) -> Sorted {
        let mut sorted = Sorted::default();
        for (i, key) in plan.tables[table].keys.iter().enumerate() {
            if self.specs[table].dense && !self.tables[table].contains_key(key) {
                sorted.refused += 1;
            } else if self.waits(plan, table, i) {
                sorted.waiting.push(i);
            } else {
                sorted.used.push(i);
            }
        }
        sorted
    }

    /// Returns the number of occurrences of the key at position `i` of the plan. The number
    /// includes earlier occurrences and the occurrences in the plan.
    fn seen(&self, plan: &LookupPlan, table: usize, i: usize) -> u32 {
        let offsets = &plan.tables[table].occurrences.offsets;
        let before = self.candidates[table].get(&plan.tables[table].keys[i]).map_or(0, |c| c.0);
        before + offsets[i + 1] - offsets[i]
    }

    fn waits(&self, plan: &LookupPlan, table: usize, i: usize) -> bool {
        match self.specs[table].admission {
            Admission::Count { at_least } => {
                !self.tables[table].contains_key(&plan.tables[table].keys[i])
                    && self.seen(plan, table, i) < at_least
            }
            // All tables of this suite use admission `All` or `Count`.
            _ => false,
        }
    }

    /// Evicts rows at the end of a step. Only the slots whose turn it is in this step lose rows.
    fn evict(&mut self) {
        for table in 0..TABLES {
            let Eviction::Unseen { steps } = self.specs[table].eviction else { continue };
            // The period is the largest power of two that is at most `steps`.
            let period = 1 << steps.min(4096).ilog2();
            let now = self.step;
            let stays = |key: &FeatureKey, last: u64| {
                key.slot() as u64 % period != now % period || now - last <= steps
            };
            let before = (self.tables[table].len(), self.candidates[table].len());
            let gone = self.tables[table].iter().filter(|(key, row)| !stays(key, row.last_step));
            let gone: Vec<FeatureKey> = gone.map(|(&key, _)| key).collect();
            gone.into_iter().for_each(|key| self.changed(table, key));
            self.tables[table].retain(|key, row| stays(key, row.last_step));
            self.candidates[table].retain(|key, c| stays(key, c.1));
            self.counters[table].evicted += (before.0 - self.tables[table].len()) as u64;
            self.counters[table].lapsed += (before.1 - self.candidates[table].len()) as u64;
        }
    }

    /// Does a step in the model. `scale` is the factor of the gradients, or `None` for a step that
    /// counts its keys and moves nothing.
    fn learn(&mut self, plan: &LookupPlan, gradients: &RowBuffer, rate: f32, scale: Option<f32>) {
        for table in 0..TABLES {
            let Sorted { used, waiting, refused } = self.sort_out(plan, table);
            let width = self.width(table);
            self.counters[table].waiting += waiting.len() as u64;
            for i in waiting {
                let seen = (self.seen(plan, table, i), self.step);
                self.candidates[table].insert(plan.tables[table].keys[i], seen);
            }
            self.counters[table].refused += refused;
            let l2 = self.l2(table);
            let (dtype, seed, step) = (self.specs[table].dtype, self.specs[table].seed, self.step);
            // The random bits of the rounding to 16 bits depend on the seed, the key, the step and
            // the position of the weight.
            let update = |key: FeatureKey, unit: usize, w: &mut f32, g: f32, l2: f32| {
                let Some(scale) = scale else { return };
                let moved = *w - 0.5 * rate * ((g + l2 * *w) * scale);
                *w = dtype.round_pushed(seed, key.0, step, unit, moved);
            };
            let mut touched = BTreeSet::new();
            for i in used {
                let key = plan.tables[table].keys[i];
                self.changed(table, key);
                if !self.tables[table].contains_key(&key) {
                    self.counters[table].created += 1;
                    if self.specs[table].admission != Admission::All {
                        self.counters[table].admitted += 1;
                        self.candidates[table].remove(&key);
                    }
                    let weights = self.initial[&(table, key)].clone();
                    self.tables[table].insert(key, Row { weights, pushes: 0, last_step: 0 });
                }
                let row = self.tables[table].get_mut(&key).expect("inserted above");
                row.pushes += 1;
                row.last_step = self.step;
                let raw = &gradients.tables[table].row(i)[..width];
                if scale.is_none() || !is_finite(raw) {
                    self.counters[table].nonfinite += 1;
                    continue;
                }
                self.counters[table].pushed += 1;
                touched.insert(key);
                for (unit, ((w, &g), &l2)) in row.weights.iter_mut().zip(raw).zip(&l2).enumerate() {
                    update(key, unit, w, g, l2);
                }
            }
            if self.specs[table].has_whole_table_rule() {
                let others = self.tables[table].iter_mut().filter(|(k, _)| !touched.contains(k));
                for (&key, row) in others {
                    for (unit, (w, &l2)) in row.weights.iter_mut().zip(&l2).enumerate() {
                        update(key, unit, w, 0.0, l2);
                    }
                }
            }
            self.all_changed(table);
        }
    }

    /// Returns the squared norm of the gradients of a step, including the gradients of the
    /// regulariser.
    fn square(&self, plan: &LookupPlan, gradients: &RowBuffer) -> f64 {
        let mut sum = 0.0;
        for table in 0..TABLES {
            let l2 = self.l2(table);
            let mut of_row = |g: Option<&[f32]>, w: &[f32]| {
                for (unit, &w) in w.iter().enumerate() {
                    let g = g.map_or(0.0, |g| f64::from(g[unit]));
                    sum += (g + f64::from(l2[unit]) * f64::from(w)).powi(2);
                }
            };
            let raw = |i: usize| &gradients.tables[table].row(i)[..self.width(table)];
            let mut touched = BTreeSet::new();
            for i in self.sort_out(plan, table).used.into_iter().filter(|&i| is_finite(raw(i))) {
                let key = plan.tables[table].keys[i];
                touched.insert(key);
                let row = self.tables[table].get(&key).map(|row| &row.weights);
                let weights = row.or_else(|| self.initial.get(&(table, key)));
                of_row(Some(raw(i)), weights.map_or(&[], Vec::as_slice));
            }
            if self.specs[table].has_whole_table_rule() {
                let others = self.tables[table].iter().filter(|(k, _)| !touched.contains(k));
                others.for_each(|(_, row)| of_row(None, &row.weights));
            }
        }
        sum
    }

    fn gradients(&self, plan: &LookupPlan, poisoned: &[usize]) -> RowBuffer {
        let layouts: Vec<_> = self.specs.iter().map(TableSpec::layout).collect();
        let mut rows = RowBuffer::default();
        rows.reshape(plan.tables.iter().zip(&layouts).map(|(t, l)| (t.keys.len(), l.stride)));
        for (table, rows) in rows.tables.iter_mut().enumerate() {
            let width = self.width(table);
            for (i, row) in rows.values.chunks_exact_mut(rows.stride).enumerate() {
                let key = plan.tables[table].keys[i];
                for (unit, g) in row.iter_mut().enumerate() {
                    let seed = combine(combine(self.step, key.0), unit as u64);
                    // The values in the padding must not matter.
                    *g = if unit < width { unit_f32(seed as u32) - 0.5 } else { f32::NAN };
                }
                if poisoned.contains(&i) {
                    row[i % width] = if i % 2 == 0 { f32::NAN } else { f32::INFINITY };
                }
            }
        }
        rows
    }

    fn compare_row(
        &self,
        table: usize,
        key: FeatureKey,
        read: &[f32],
        wanted: &[f32],
    ) -> Result<(), String> {
        let mut wanted = wanted.to_vec();
        wanted.resize(self.specs[table].layout().stride, 0.0);
        same(&format!("{key:?} in table {table}"), &read.to_vec(), &wanted)
    }

    fn compare_report(&self, report: StepReport, before: Counters) -> Result<(), String> {
        let after = self.total();
        let wanted = StepReport {
            pushed: after.pushed - before.pushed,
            created: after.created - before.created,
            waiting: after.waiting - before.waiting,
            evicted: after.evicted - before.evicted,
            refused: after.refused - before.refused,
            refused_full: after.refused_full - before.refused_full,
            nonfinite: after.nonfinite - before.nonfinite,
        };
        same("the step's report", &report, &wanted)
    }

    fn compare_statistics(&self, client: &mut dyn TrainClient) -> Result<(), String> {
        let statistics = client.stats().map_err(failed("stats"))?;
        same("tables in the statistics", &statistics.len(), &TABLES)?;
        for (table, statistics) in statistics.iter().enumerate() {
            same("name", &statistics.table, &self.specs[table].name)?;
            same("rows", &statistics.rows, &(self.tables[table].len() as u64))?;
            let candidates = self.candidates[table].len() as u64;
            same("candidates", &statistics.candidates, &candidates)?;
            same("counters", &statistics.counters, &self.counters[table])?;
        }
        Ok(())
    }

    fn total(&self) -> Counters {
        self.counters.iter().fold(Counters::default(), |mut sum, c| {
            sum.add(*c);
            sum
        })
    }

    fn width(&self, table: usize) -> usize {
        self.specs[table].layout().width()
    }

    /// Returns the strength of the regulariser for each float of a row, in the order of the floats.
    fn l2(&self, table: usize) -> Vec<f32> {
        self.specs[table].segments.iter().flat_map(|s| vec![s.l2; s.dim]).collect()
    }
}

fn plan(ids: &[Vec<u64>; TABLES]) -> LookupPlan {
    let keys: Vec<Vec<_>> = ids.iter().map(|ids| ids.iter().map(|&id| key(id)).collect()).collect();
    plan_of(&keys)
}
