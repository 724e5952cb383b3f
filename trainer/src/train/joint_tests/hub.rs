//! Tables of this process that several trainers in threads share, as servers would hold them.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use zillion_device::Files;
use zillion_embedding::{Adopted, EventClock, Pruned, Rates, TableStatistics};
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, Step, TableId};
use zillion_ps::{
    CheckpointMark, CheckpointTicket, Checkpointing, Contribution, Error, Exchanged, Exchanging,
    LocalClient, MergedDense, MergedGradients, Pacing, Publishing, PullOptions, PulledRows,
    PushMode, Residency, Result, Since, StepClient, StepReport, TableAccess, TableOptions,
    TrainClient, TrainerPlace,
};
use zillion_rows::layer::{LayerManifest, WholeRow};
use zillion_rows::{LookupReport, RowSource, TableLayout, TableParts};

use crate::error::Result as TrainerResult;
use crate::job::Job;
use crate::observer::Observer;
use crate::train::TrainOptions;
use crate::train::opening::After;

/// The time after which a test fails because a trainer waits for another one.
const PATIENCE: Duration = Duration::from_secs(120);

/// The loss of a trainer at the beginning of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss {
    pub(super) index: usize,
    pub(super) step: u64,
}

/// The tables of a run, which its trainers share.
pub(super) struct Hub {
    count: usize,
    /// The trainer that is stopped, and the number of its batches before the stop.
    stop: Option<(usize, u64)>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// The losses that have not come yet. The first of them comes next.
    losses: Vec<Loss>,
    generation: u64,
    /// The cause of the end of the generation.
    ended: Option<String>,
    /// Whether a trainer has ended the run with an error of its own.
    is_aborted: bool,
    client: Option<LocalClient>,
    note: Option<Vec<u8>>,
    /// The step that has begun last.
    step: u64,
    pushes: Meeting<(Arc<LookupPlan>, RowBuffer), ()>,
    exchanges: Meeting<Contribution, Exchanged>,
    applies: Meeting<f32, StepReport>,
    skips: Meeting<(), StepReport>,
    discards: Meeting<(), ()>,
}

/// A call that every trainer makes. The last call computes the result for all.
struct Meeting<V, R> {
    values: Vec<Option<V>>,
    rounds: u64,
    result: Option<R>,
}

impl<V, R> Meeting<V, R> {
    fn new(count: usize) -> Self {
        Self { values: (0..count).map(|_| None).collect(), rounds: 0, result: None }
    }
}

impl State {
    fn new(count: usize, generation: u64, losses: Vec<Loss>) -> Self {
        Self {
            losses,
            generation,
            ended: None,
            is_aborted: false,
            client: None,
            note: None,
            step: 0,
            pushes: Meeting::new(count),
            exchanges: Meeting::new(count),
            applies: Meeting::new(count),
            skips: Meeting::new(count),
            discards: Meeting::new(count),
        }
    }

    fn client(&mut self) -> &mut LocalClient {
        self.client.as_mut().unwrap()
    }
}

impl Hub {
    pub(super) fn new(count: usize) -> Arc<Self> {
        Self::losing(count, Vec::new())
    }

    pub(super) fn stopping(count: usize, index: usize, batches: u64) -> Arc<Self> {
        let hub = Self::new(count);
        Arc::new(Self { stop: Some((index, batches)), ..Arc::into_inner(hub).unwrap() })
    }

    pub(super) fn losing(count: usize, losses: Vec<Loss>) -> Arc<Self> {
        let state = Mutex::new(State::new(count, 0, losses));
        Arc::new(Self { count, stop: None, state, changed: Condvar::new() })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn stop_after(&self, index: usize) -> Option<u64> {
        self.stop.filter(|stop| stop.0 == index).map(|stop| stop.1)
    }

    /// Returns the function that opens the tables for a trainer.
    pub(super) fn opener(
        self: &Arc<Self>,
        place: TrainerPlace,
    ) -> impl FnMut(&Job, &TrainOptions, After, &mut dyn Observer) -> TrainerResult<Box<dyn TrainClient>>
    {
        let hub = self.clone();
        move |job, options, after, _| {
            let mut state = hub.state.lock().unwrap();
            // An error of a trainer ends the run for the trainers that open it later, too.
            let is_over = state.generation <= after.generation || state.ended.is_some();
            if is_over && !state.is_aborted {
                let losses = std::mem::take(&mut state.losses);
                *state = State::new(hub.count, state.generation + 1, losses);
                let tables = TableOptions {
                    max_bytes: job.train.max_table_bytes,
                    frozen: job.frozen_tables()?,
                    follows_checkpoints: job.train.full_every.get() > 1,
                    ..TableOptions::new(job.tables.clone(), job.run.shards)
                };
                state.client = Some(LocalClient::open(tables, options.workers.clone())?);
            }
            let layouts = state.client().layouts().to_vec();
            Ok(Box::new(Member { hub: hub.clone(), place, generation: state.generation, layouts }))
        }
    }
}

/// The access of one trainer to the shared tables.
struct Member {
    hub: Arc<Hub>,
    place: TrainerPlace,
    generation: u64,
    layouts: Vec<TableLayout>,
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut state = self.hub.state.lock().unwrap();
        self.end(&mut state, format!("trainer {} has left", self.place.index));
    }
}

impl Member {
    fn end(&self, state: &mut State, cause: String) {
        if state.generation == self.generation && state.ended.is_none() {
            state.ended = Some(cause);
            self.hub.changed.notify_all();
        }
    }

    fn check(&self, state: &State) -> Result<()> {
        let rewound =
            |cause: &str| Error::Rewound { generation: self.generation, cause: cause.to_owned() };
        if state.generation != self.generation {
            return Err(rewound("another generation has begun"));
        }
        match &state.ended {
            None => Ok(()),
            Some(cause) if state.is_aborted => Err(Error::Aborted { cause: cause.clone() }),
            Some(cause) => Err(rewound(cause)),
        }
    }

    fn state(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.hub.state.lock().unwrap();
        self.check(&state)?;
        Ok(state)
    }

    /// Returns the state for a call that only trainer 0 may make.
    fn first(&self) -> Result<MutexGuard<'_, State>> {
        assert!(self.place.is_first(), "only trainer 0 makes this call");
        self.state()
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> Result<MutexGuard<'a, State>> {
        let (state, waited) = self.hub.changed.wait_timeout(state, PATIENCE).unwrap();
        assert!(!waited.timed_out(), "trainer {} waits for another one", self.place.index);
        self.check(&state)?;
        Ok(state)
    }

    fn meet<V, R: Clone>(
        &self,
        meeting: fn(&mut State) -> &mut Meeting<V, R>,
        value: V,
        finish: impl FnOnce(&mut State, Vec<V>) -> Result<R>,
    ) -> Result<R> {
        let mut state = self.state()?;
        let own = meeting(&mut state);
        assert!(own.values[self.place.index].replace(value).is_none());
        let round = own.rounds;
        if own.values.iter().all(Option::is_some) {
            let values = own.values.iter_mut().map(|value| value.take().unwrap()).collect();
            let result = finish(&mut state, values)?;
            let own = meeting(&mut state);
            own.result = Some(result);
            own.rounds += 1;
            self.hub.changed.notify_all();
        }
        while meeting(&mut state).rounds == round {
            state = self.wait(state)?;
        }
        Ok(meeting(&mut state).result.clone().unwrap())
    }
}

impl Pacing for Member {}

impl Residency for Member {}

impl Exchanging for Member {
    fn place(&self) -> TrainerPlace {
        self.place
    }

    fn start(&mut self, note: Vec<u8>) -> Result<Vec<u8>> {
        let mut state = self.state()?;
        if self.place.is_first() {
            state.note = Some(note);
            self.hub.changed.notify_all();
        }
        while state.note.is_none() {
            state = self.wait(state)?;
        }
        Ok(state.note.clone().unwrap())
    }

    fn exchange(&mut self, mine: Contribution) -> Result<Exchanged> {
        self.meet(
            |state| &mut state.exchanges,
            mine,
            |_, parts| {
                let rows: usize = parts.iter().map(|part| part.rows).sum();
                let mut dense = MergedDense::default();
                parts.iter().for_each(|part| dense.add(part.rows, &part.dense));
                dense.finish(rows);
                let notes = parts.into_iter().map(|part| part.note).collect();
                Ok(Exchanged { rows: rows as u64, dense: dense.values().to_vec(), notes })
            },
        )
    }

    fn abort(&mut self, error: &str) {
        self.end_with(error);
    }
}

impl Member {
    fn end_with(&self, error: &str) {
        let mut state = self.hub.state.lock().unwrap();
        if state.generation == self.generation && state.ended.is_none() {
            state.is_aborted = true;
            self.end(&mut state, format!("trainer {} failed: {error}", self.place.index));
        }
    }
}

impl StepClient for Member {
    fn begin_step(&mut self, step: Step, rates: Rates) -> Result<()> {
        let mut state = self.state()?;
        let Loss { index, step: lost } =
            state.losses.first().copied().unwrap_or(Loss { index: usize::MAX, step: 0 });
        if (index, lost) == (self.place.index, step.0) {
            state.losses.remove(0);
            self.end(&mut state, format!("trainer {index} was lost in step {lost}"));
            return self.check(&state);
        }
        if state.step != step.0 {
            state.step = step.0;
            state.client().begin_step(step, rates)?;
        }
        Ok(())
    }

    fn set_clock(&mut self, clock: EventClock) -> Result<()> {
        self.state()?.client().set_clock(clock)
    }

    fn pull(
        &mut self,
        plan: &Arc<LookupPlan>,
        options: PullOptions,
        buffer: RowBuffer,
    ) -> Result<RowBuffer> {
        self.state()?.client().pull(plan, options, buffer)
    }

    fn push(
        &mut self,
        plan: &Arc<LookupPlan>,
        gradients: RowBuffer,
        mode: PushMode,
    ) -> Result<RowBuffer> {
        if self.place.count == 1 {
            return self.state()?.client().push(plan, gradients, mode);
        }
        assert_eq!(mode, PushMode::Stage);
        self.meet(
            |state| &mut state.pushes,
            (plan.clone(), gradients),
            |state, parts| {
                let mut merged = MergedGradients::default();
                parts.iter().for_each(|(plan, gradients)| merged.add(plan, gradients));
                let mut gradients = RowBuffer::default();
                let plan = merged.finish(&mut gradients);
                state.client().push(&Arc::new(plan), gradients, PushMode::Stage).map(|_| ())
            },
        )?;
        Ok(RowBuffer::default())
    }

    fn grad_sq_norm(&mut self) -> Result<f64> {
        self.state()?.client().grad_sq_norm()
    }

    fn regulariser_loss(&mut self, plan: &LookupPlan) -> Result<f64> {
        self.state()?.client().regulariser_loss(plan)
    }

    fn apply(&mut self, scale: f32) -> Result<StepReport> {
        self.meet(
            |state| &mut state.applies,
            scale,
            |state, scales| {
                assert!(scales.iter().all(|other| other.to_bits() == scales[0].to_bits()));
                state.client().apply(scales[0])
            },
        )
    }

    fn skip(&mut self) -> Result<StepReport> {
        self.meet(|state| &mut state.skips, (), |state, _| state.client().skip())
    }

    fn sweep(&mut self) -> Result<StepReport> {
        assert_eq!(self.place.count, 1);
        self.state()?.client().sweep()
    }

    fn discard(&mut self) -> Result<()> {
        self.meet(|state| &mut state.discards, (), |state, _| state.client().discard())
    }
}

impl TableAccess for Member {
    fn layouts(&self) -> &[TableLayout] {
        &self.layouts
    }

    fn lookup(
        &mut self,
        plan: &LookupPlan,
        buffer: RowBuffer,
    ) -> Result<(RowBuffer, LookupReport)> {
        self.state()?.client().lookup(plan, buffer)
    }

    fn prefill(&mut self, table: TableId, keys: &[FeatureKey]) -> Result<u64> {
        self.first()?.client().prefill(table, keys)
    }

    fn adopt<'a>(
        &mut self,
        table: TableId,
        from: &TableLayout,
        rows: &mut dyn Iterator<Item = (FeatureKey, WholeRow<'a>)>,
    ) -> Result<Adopted> {
        self.first()?.client().adopt(table, from, rows)
    }

    fn prune(&mut self, table: TableId, share: f64) -> Result<Pruned> {
        self.first()?.client().prune(table, share)
    }

    fn stats(&mut self) -> Result<Vec<TableStatistics>> {
        self.state()?.client().stats()
    }
}

impl Checkpointing for Member {
    fn begin_checkpoint(&mut self, folder: &Path, files: &Files) -> Result<CheckpointTicket> {
        self.first()?.client().begin_checkpoint(folder, files)
    }

    fn follow_checkpoints(&mut self) -> Result<()> {
        self.first()?.client().follow_checkpoints()
    }

    fn checkpoint_mark(&mut self) -> Option<CheckpointMark> {
        self.first().ok()?.client().checkpoint_mark()
    }

    fn begin_changes(
        &mut self,
        folder: &Path,
        files: &Files,
        since: &CheckpointMark,
    ) -> Result<CheckpointTicket> {
        self.first()?.client().begin_changes(folder, files, since)
    }

    fn writes_beside_steps(&self) -> bool {
        self.first().is_ok_and(|mut state| state.client().writes_beside_steps())
    }

    fn poll_checkpoint(&mut self, ticket: &CheckpointTicket) -> Result<bool> {
        self.first()?.client().poll_checkpoint(ticket)
    }

    fn finish_checkpoint(&mut self, ticket: CheckpointTicket) -> Result<Vec<TableParts>> {
        self.first()?.client().finish_checkpoint(ticket)
    }

    fn abandon_checkpoint(&mut self, ticket: CheckpointTicket) {
        if let Ok(mut state) = self.first() {
            state.client().abandon_checkpoint(ticket);
        }
    }

    fn restore(&mut self, folder: &Path, parts: &[TableParts]) -> Result<()> {
        self.first()?.client().restore(folder, parts)
    }
}

impl Publishing for Member {
    fn track_changes(&mut self, epochs: usize) -> Result<()> {
        self.first()?.client().track_changes(epochs)
    }

    fn write_layer(
        &mut self,
        since: Since,
        folder: &Path,
        files: &Files,
    ) -> Result<Option<LayerManifest>> {
        self.first()?.client().write_layer(since, folder, files)
    }

    fn end_dirty_epoch(&mut self) -> Result<u32> {
        self.first()?.client().end_dirty_epoch()
    }

    fn row_source(&mut self) -> Result<Box<dyn RowSource + '_>> {
        Ok(Box::new(PulledRows::new(self)))
    }
}
