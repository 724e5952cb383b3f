//! The executor, which runs a program on the CPU.
//!
//! # Invariants
//! A batch is cut into tiles, and each lane gets a contiguous range of tiles. Sums are computed in
//! each lane in the order of its tiles, and then over the lanes in the order of lanes. So the
//! result depends only on the inputs and on [`Settings`](crate::Settings), and not on the threads.
//! Buffers grow to the largest batch so far and are reused. A run therefore allocates almost
//! nothing: only the memory by which the pool shares a phase, and the blocks of scores for softmax
//! over a batch.
//!
//! # Concurrency
//! A lane owns its rows of every value that outlives a pass, and a thread owns its tile buffers. In
//! a pass, threads claim lanes. The lanes share only constants, and no thread writes a constant
//! during the pass.

mod batch_pass;
mod collect;
pub(crate) mod lane;
mod row_gradients;
mod statistics;
mod watch;

use std::sync::{Arc, Mutex, PoisonError};

use zillion_device::Workers;
use zillion_device::matmul::bf16::Instructions;

use crate::cpu::executor::batch_pass::Shared;
use crate::cpu::executor::lane::{Lane, TileBuffers};
use crate::cpu::narrow::Narrow;
use crate::cpu::packed_params::PackedParams;
use crate::cpu::packing::Packing;
use crate::cpu::placement::Place;
use crate::cpu::program::Program;
use crate::error::{Error, Result};
use crate::graph::op::Op;
use crate::graph::shape::{Dim, NodeId, ParamId};
use crate::inputs::{ColumnView, Inputs};
use crate::lowered::{Settings, gathers_of};
use crate::ops::{ListColumn, StepSeed, factor_kind};
use crate::params::Params;
use crate::profile::Profile;
use crate::timeline::{Event, Log, Work};
use collect::constant;
use watch::Watch;

/// An engine that runs a [`Program`] and keeps its buffers between runs.
#[derive(Debug)]
pub struct Executor {
    program: Program,
    consts: Vec<Vec<f32>>,
    lanes: Vec<Lane>,
    tile_buffers: Vec<TileBuffers>,
    lists: Vec<ListColumn>,
    packing: Packing,
    /// The products with factors of bf16; `None` if all products are exact.
    narrow: Option<Narrow>,
    /// The place of each row of the batch in the buffers of the lanes. The upper 8 bits are the
    /// index of the lane, and the lower 24 bits are the index of the row in the lane.
    locate: Vec<u32>,
    outputs: Vec<Vec<f32>>,
    /// The largest number of values of each column in a tile of the batch.
    longest: Vec<usize>,
    profile: Option<Profile>,
    log: Log,
    is_recorded: bool,
    /// The number of events in the log that belong to earlier runs.
    logged: usize,
}

impl Executor {
    /// Creates an executor without buffers. The first run allocates them. All products are exact.
    pub fn new(program: Program) -> Self {
        Self::with_products(program, None)
    }

    /// Creates an executor as [`Executor::new`] does. With `instructions`, the products of layers
    /// have factors of bf16: those with the rows of the batch, or of a column's values, and a
    /// weight of at least 8 rows and columns. Sums, parameters and all other operations are f32.
    pub fn with_products(program: Program, instructions: Option<Instructions>) -> Self {
        let consts = program.placement.const_lens.iter().map(|&len| vec![0.0; len]).collect();
        let lanes =
            (0..program.lowered.settings.lanes).map(|_| Lane::new(&program.placement)).collect();
        let outputs = vec![Vec::new(); program.lowered.outputs.len()];
        let lists = program.lowered.columns_read.iter().map(|_| ListColumn::default()).collect();
        let narrow = instructions.map(|instructions| Narrow::new(&program, instructions));
        let is_exact = |id| narrow.as_ref().is_none_or(|narrow| !narrow.has(id));
        let packing = Packing::new(&program, is_exact);
        Self {
            program,
            consts,
            lanes,
            tile_buffers: Vec::new(),
            lists,
            packing,
            narrow,
            locate: Vec::new(),
            outputs,
            longest: Vec::new(),
            profile: None,
            log: Log::default(),
            is_recorded: false,
            logged: 0,
        }
    }

    /// Returns the program that is run.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Returns the instructions that multiply numbers of bf16; `None` if all products are exact.
    pub fn instructions(&self) -> Option<Instructions> {
        self.narrow.as_ref().map(Narrow::instructions)
    }

    /// Sets the packed weights that the next runs read, or `None` so that each run packs its own.
    /// They must have been made from the parameters of these runs. Results do not depend on packed
    /// weights of f32; those of another type are rounded.
    pub fn set_packed(&mut self, packed: Option<Arc<PackedParams>>) {
        self.packing.set_packed(packed);
    }

    /// Starts or stops the measurement of the time of each node. Both remove the times that were
    /// measured before.
    pub fn set_profile(&mut self, on: bool) {
        let nanos = vec![0; self.program.lowered.graph.nodes.len()];
        self.profile = on.then_some(Profile { nanos, runs: 0 });
    }

    /// Returns the times of the runs since [`Executor::set_profile`], or `None` if times are not
    /// measured.
    pub fn profile(&self) -> Option<&Profile> {
        self.profile.as_ref()
    }

    /// Starts or stops the recording of the work of each thread, with its times. Results do not
    /// change.
    pub fn record(&mut self, on: bool) {
        self.is_recorded = on;
    }

    /// Removes all events since the last call, and appends them to `events`. The events of the
    /// lanes come first, in the order of time in each lane. The events without a lane follow.
    pub fn take_events(&mut self, events: &mut Vec<Event>) {
        self.lanes.iter_mut().for_each(|lane| events.append(&mut lane.events));
        events.append(&mut self.log.events());
    }

    /// Runs a training program. It computes the loss and all gradients, and updates the running
    /// statistics in `params`. `row_grads` has one slice of `unique × stride` floats for each
    /// table, with the stride of the inputs. The gradients of the table's rows are written to its
    /// slice. If the loss does not depend on a table, its slice is filled with zeros.
    pub fn train(
        &mut self,
        workers: &Workers,
        inputs: &Inputs<'_>,
        params: &mut Params,
        seed: StepSeed,
        row_grads: &mut [&mut [f32]],
    ) -> Result<()> {
        self.run_training(workers, inputs, params, seed, row_grads)?;
        for &(param, node) in &self.program.lowered.updates {
            if let Some(value) = constant(&self.program, &self.consts, node) {
                params.value_mut(param).copy_from_slice(value);
            }
        }
        Ok(())
    }

    /// Computes the loss and all gradients, without a change of the running statistics.
    fn run_training(
        &mut self,
        workers: &Workers,
        inputs: &Inputs<'_>,
        params: &Params,
        seed: StepSeed,
        row_grads: &mut [&mut [f32]],
    ) -> Result<()> {
        self.program.lowered.check_row_grads(inputs, row_grads)?;
        self.run(workers, inputs, params, seed, &Watch::new(None))?;
        self.row_gradients(workers, inputs, row_grads);
        self.add_up_log();
        Ok(())
    }

    /// Runs an inference program.
    pub fn infer(&mut self, workers: &Workers, inputs: &Inputs<'_>, params: &Params) -> Result<()> {
        self.infer_unless(workers, inputs, params, None)
    }

    /// Runs an inference program, and stops the run if `is_late` returns `true`. The threads of the
    /// run call `is_late` before each tile.
    ///
    /// # Errors
    /// Returns [`Error::Late`] if the run was stopped. Its results are then unspecified. Returns an
    /// error if the inputs or the parameters do not fit the program.
    pub fn infer_unless(
        &mut self,
        workers: &Workers,
        inputs: &Inputs<'_>,
        params: &Params,
        is_late: Option<&(dyn Fn() -> bool + Sync)>,
    ) -> Result<()> {
        let ran = self.run(workers, inputs, params, StepSeed::default(), &Watch::new(is_late));
        if matches!(ran, Ok(()) | Err(Error::Late)) {
            self.add_up_log();
        }
        ran
    }

    /// Returns the number of bytes of the buffers that grow with a batch. Packed weights and the
    /// scratch memory of products are not included, because they depend only on the model.
    pub fn buffer_bytes(&self) -> usize {
        let floats = self.consts.iter().chain(&self.outputs).map(Vec::capacity).sum::<usize>()
            + self.lanes.iter().map(Lane::capacity).sum::<usize>()
            + self.tile_buffers.iter().map(TileBuffers::capacity).sum::<usize>();
        let lists: usize = self.lists.iter().map(ListColumn::bytes).sum();
        floats * size_of::<f32>() + self.locate.capacity() * size_of::<u32>() + lists
    }

    /// Drops the buffers and the results of the last run. The next run allocates what it needs.
    pub fn release(&mut self) {
        let packed = self.packing.take_packed();
        let mut fresh = Self::with_products(self.program.clone(), self.instructions());
        let Self { profile, log, is_recorded, logged, .. } = self;
        fresh.packing.set_packed(packed);
        *self = Self {
            profile: profile.take(),
            log: std::mem::take(log),
            is_recorded: *is_recorded,
            logged: *logged,
            ..fresh
        };
    }

    /// Returns a result of the last run, row after row. `node` is the node of the result in the
    /// graph from which the program was planned. Returns `None` if the result was not requested.
    pub fn output(&self, node: NodeId) -> Option<&[f32]> {
        let index = self.program.lowered.requested.iter().position(|&id| id == node)?;
        Some(&self.outputs[index])
    }

    /// Returns a result of the last run by its name in the graph, or `None` if it was not
    /// requested.
    pub fn named_output(&self, name: &str) -> Option<&[f32]> {
        let node = self.program.lowered.graph.output(name)?;
        let index = self.program.lowered.outputs.iter().position(|&id| id == node)?;
        Some(&self.outputs[index])
    }

    /// Returns the loss of the last run, or `None` if the program does not train.
    pub fn loss(&self) -> Option<f32> {
        let value = constant(&self.program, &self.consts, self.program.lowered.loss?)?;
        value.first().copied()
    }

    /// Returns the gradient of a parameter, in the parameter's shape. Returns `None` if the loss
    /// does not depend on the parameter.
    pub fn param_grad(&self, param: ParamId) -> Option<&[f32]> {
        let grads = &self.program.lowered.param_grads;
        let index = grads.binary_search_by_key(&param, |&(p, _)| p).ok()?;
        constant(&self.program, &self.consts, grads[index].1)
    }

    /// Returns the gradient of each parameter that has one, in the order of parameters.
    pub fn param_grads(&self) -> impl Iterator<Item = (ParamId, &[f32])> {
        self.program.lowered.param_grads.iter().filter_map(|&(param, node)| {
            constant(&self.program, &self.consts, node).map(|grad| (param, grad))
        })
    }

    fn run(
        &mut self,
        workers: &Workers,
        inputs: &Inputs<'_>,
        params: &Params,
        seed: StepSeed,
        watch: &Watch<'_>,
    ) -> Result<()> {
        let train = self.program.lowered.loss.is_some();
        self.program.lowered.check(inputs, params)?;
        self.share_rows(inputs, workers);
        self.prepare_lists(workers, inputs, train);
        self.packing.pack(workers, params, inputs.rows, &self.log);
        if let Some(narrow) = &mut self.narrow {
            narrow.pack(workers, params, &self.log);
        }
        for phase in 0..self.program.phases.len() {
            self.globals(phase, inputs, params, seed);
            self.pass(workers, phase, inputs, params, seed, watch);
            if watch.has_stopped() {
                return Err(Error::Late);
            }
            self.sums(workers, phase, inputs);
            self.collect(phase);
        }
        let begun = self.log.begin();
        self.collect_outputs(inputs, params);
        self.log.end(begun, Work::Collect);
        if let Some(profile) = &mut self.profile {
            profile.runs += 1;
            for lane in &mut self.lanes {
                for (total, nanos) in profile.nanos.iter_mut().zip(&mut lane.nanos) {
                    *total += std::mem::take(nanos);
                }
            }
        }
        Ok(())
    }

    /// Adds the times of the events without a lane to the profile, after a run.
    fn add_up_log(&mut self) {
        let mut events = self.log.events();
        if let Some(profile) = &mut self.profile {
            for event in &events[self.logged..] {
                if let Work::Node(id) = event.work {
                    profile.nanos[id.0 as usize] += (event.end - event.begin).as_nanos() as u64;
                }
            }
        }
        if !self.is_recorded {
            events.clear();
        }
    }

    /// Returns whether the times of nodes are measured, for a profile or a recording.
    fn is_timed(&self) -> bool {
        self.profile.is_some() || self.is_recorded
    }

    /// Divides the rows of the batch among the lanes, and grows the buffers to the size of the
    /// batch.
    fn share_rows(&mut self, inputs: &Inputs<'_>, workers: &Workers) {
        let Settings { lanes, tile_rows, .. } = self.program.lowered.settings;
        let rows = inputs.rows;
        let share = self.program.lowered.share_rows(rows, workers.free_threads());
        let timed = self.is_timed();
        self.log.is_on = timed;
        self.logged = self.log.events().len();
        self.locate.clear();
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            let of_lane = self.program.lowered.lane_rows(index, rows, share);
            let lane_bits = (index as u32) << 24;
            self.locate.extend((0..of_lane.len() as u32).map(|local| lane_bits | local));
            lane.set_rows(of_lane, &self.program.placement, inputs);
            lane.is_recorded = self.is_recorded;
            if timed {
                lane.nanos.clear();
                lane.nanos.resize(self.program.lowered.graph.nodes.len(), 0);
            }
            if self.is_recorded {
                let mut tiles = 0;
                let mut first = lane.rows.start;
                while first < lane.rows.end {
                    first = self.program.lowered.tile(inputs, first, lane.rows.end).end;
                    tiles += 1;
                }
                let steps = self.program.phases.iter().map(|phase| tiles * phase.tile.len() + 1);
                lane.events.reserve(steps.sum());
            }
        }
        let buffers = &self.program.placement.tile_buffers;
        let needed = workers.threads().min(lanes);
        while self.tile_buffers.len() < needed {
            self.tile_buffers.push(TileBuffers::new(buffers.len()));
        }
        let mut values = std::mem::take(&mut self.longest);
        self.longest_tiles(inputs, &mut values);
        let buffers = &self.program.placement.tile_buffers;
        for tile in &mut self.tile_buffers {
            tile.fit(buffers, tile_rows, &values);
        }
        self.longest = values;
    }

    /// Computes the largest number of values in a tile, for each column.
    fn longest_tiles(&self, inputs: &Inputs<'_>, longest: &mut Vec<usize>) {
        longest.clear();
        longest.resize(inputs.columns.len(), 0);
        if self.program.lowered.value_columns.is_empty() {
            return;
        }
        for lane in &self.lanes {
            let mut first = lane.rows.start;
            while first < lane.rows.end {
                let tile = self.program.lowered.tile(inputs, first, lane.rows.end);
                for &column in &self.program.lowered.value_columns {
                    let values = inputs.span(Dim::Values(column), &tile).len();
                    longest[column] = longest[column].max(values);
                }
                first = tile.end;
            }
        }
    }

    /// Computes the factors of the values in weighted and in averaged lists. For a backward pass,
    /// it also computes the row of each value.
    fn prepare_lists(&mut self, workers: &Workers, inputs: &Inputs<'_>, train: bool) {
        let graph = &self.program.lowered.graph;
        let read = &self.program.lowered.columns_read;
        let values = &self.program.lowered.value_columns;
        let lanes = &self.lanes;
        let log = &self.log;
        let plain = |c: &ColumnView<'_>| c.offsets.is_none() && c.weights.is_none();
        if inputs.columns.iter().all(plain) {
            self.lists.iter_mut().for_each(ListColumn::clear);
            return;
        }
        workers.for_each_mut(&mut self.lists, |index, list| {
            let column = &inputs.columns[index];
            list.clear();
            if !read[index] || plain(column) {
                return;
            }
            let begun = log.begin();
            if train {
                list.set_rows(column, inputs.rows);
                if values.contains(&index) {
                    list.set_places(column, lanes.iter().map(|lane| lane.rows.clone()));
                }
            }
            for gather in graph.nodes.iter().flat_map(|node| gathers_of(&node.op)) {
                if gather.column == index {
                    list.set_factors(column, factor_kind(gather.pooling), column.rows());
                }
            }
            log.end(begun, Work::Lists);
        });
    }

    /// Computes the constants of a phase that depend only on other constants. One thread computes
    /// them, because the work is too little for several threads.
    fn globals(&mut self, phase: usize, inputs: &Inputs<'_>, params: &Params, seed: StepSeed) {
        for &id in &self.program.phases[phase].globals {
            let Place::Const { slot, .. } = self.program.placement.places[id.0 as usize] else {
                continue;
            };
            let begun = self.log.begin();
            let mut out = std::mem::take(&mut self.consts[slot]);
            let shared = Shared {
                program: &self.program,
                consts: &self.consts,
                params,
                inputs,
                lists: &self.lists,
                packing: &self.packing,
                narrow: self.narrow.as_ref(),
                seed,
            };
            shared.global(id, &mut out);
            self.consts[slot] = out;
            self.log.end(begun, Work::Node(id));
        }
    }

    fn pass(
        &mut self,
        workers: &Workers,
        phase: usize,
        inputs: &Inputs<'_>,
        params: &Params,
        seed: StepSeed,
        watch: &Watch<'_>,
    ) {
        let timed = self.is_timed();
        let number = phase as u32;
        let phase = &self.program.phases[phase];
        if phase.tile.is_empty() {
            return;
        }
        let shared = Shared {
            program: &self.program,
            consts: &self.consts,
            params,
            inputs,
            lists: &self.lists,
            packing: &self.packing,
            narrow: self.narrow.as_ref(),
            seed,
        };
        let busy = self.lanes.iter().filter(|lane| !lane.rows.is_empty()).count();
        let tasks = busy.min(workers.threads()).max(1);
        let lanes = (0..).zip(self.lanes.iter_mut());
        let queue = Mutex::new(lanes.filter(|(_, lane)| !lane.rows.is_empty()));
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        workers.for_each_mut(&mut self.tile_buffers[..tasks], |_, buffers| {
            while let Some(lane) = next() {
                shared.lane_pass((number, phase), lane, buffers, timed, watch);
            }
        });
    }
}

#[cfg(test)]
mod tests;
