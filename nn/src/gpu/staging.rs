//! Batches that other threads write to pinned memory before their steps.
//!
//! The block of a batch depends on its data and its lookup plan alone, but for the seed of its
//! step and the numeric columns that the step computes. So the threads that plan batches ahead
//! check it, list the occurrences of its rows, and write it where the device copies it from. The
//! thread of the steps then hands the block over instead of writing it.
//!
//! # Invariants
//! * A block is written for a layout that the executor had. If the executor has others by the time
//!   of the step, or if a batch has no block, the thread of the steps writes the batch itself. So
//!   a block changes the time of a step and no byte.
//! * Only the thread of the steps allocates and frees pinned memory, and only if a batch does not
//!   fit the capacity. A block goes back to the free ones when the batch is dropped, or when
//!   the copy from it has run (see [`Ring`](crate::gpu::ring::Ring)).
//!
//! # Concurrency
//! One mutex guards the free blocks. Each batch locks it a few times. No work on a batch is done
//! under the lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zillion_device::gpu::{Gpu, GpuError, Pinned};

use crate::error::Result;
use crate::gpu::batch::BatchPlaces;
use crate::gpu::measured::Measured;
use crate::gpu::row_plan::RowPlan;
use crate::gpu::sizes::{Form, Sizes};
use crate::gpu::sources::Sources;
use crate::inputs::Inputs;
use crate::lowered::Lowered;
use crate::ops::StepSeed;

/// The places of a batch in its block, for batches of one form that fit a capacity.
#[derive(Debug)]
pub(crate) struct BatchLayout {
    pub(crate) most: Sizes,
    pub(crate) form: Form,
    pub(crate) places: BatchPlaces,
}

impl BatchLayout {
    /// Returns whether a batch fits.
    pub(crate) fn fits(&self, sizes: &Sizes, form: &Form) -> bool {
        self.form == *form && sizes.fits(&self.most)
    }
}

/// A writer of blocks, which any thread may use.
#[derive(Clone, Debug)]
pub struct BatchStager {
    shared: Arc<Shared>,
}

/// The state that the threads share.
#[derive(Debug)]
struct Shared {
    lowered: Lowered,
    sources: Sources,
    plans: Vec<RowPlan>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The layouts of the executor.
    layouts: Vec<Arc<BatchLayout>>,
    /// The blocks that hold no batch.
    free: Vec<Pinned>,
    /// The number of bytes that a block needs. Smaller ones wait to be freed.
    bytes: usize,
    /// The buffers of the measures of batches that no thread uses.
    scratches: Vec<Measured>,
}

impl Shared {
    /// Locks the state. No code that can panic runs under this lock, so a poisoned lock is ignored.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BatchStager {
    /// Writes the block of a batch whose rows are on the device. Numeric columns that the step
    /// computes may be missing at the end of the list; the step then has them.
    ///
    /// Returns `None` if there is no layout for the batch or no free block yet, and if the batch
    /// does not fit the program. The step of the batch then does the work, and finds the error.
    pub fn stage(&self, inputs: &Inputs<'_>) -> Option<StagedBatch> {
        let Shared { lowered, sources, plans, .. } = &*self.shared;
        let late_from = inputs.numeric.len();
        let zeros = vec![0.0; inputs.rows];
        let mut inputs = inputs.clone();
        inputs.numeric.resize(lowered.graph.inputs.numeric.len().max(late_from), &zeros);
        lowered.check_inputs_on_device(&inputs).ok()?;
        let scratch = self.shared.lock().scratches.pop();
        let mut measured = scratch.unwrap_or_else(|| Measured::new(lowered, 0));
        measured.set(lowered, plans, &inputs);
        let staged = self.take_block(&measured, late_from).and_then(|mut staged| {
            let of = (lowered, sources, &plans[..]);
            let StagedBatch { pinned, layout, .. } = &mut staged;
            let to = pinned.as_mut()?;
            measured.write(to, &layout.places, of, &inputs, StepSeed::default()).ok()?;
            Some(staged)
        });
        self.shared.lock().scratches.push(measured);
        staged
    }

    /// Takes a free block for a batch.
    fn take_block(&self, measured: &Measured, late_from: usize) -> Option<StagedBatch> {
        let Measured { sizes, form, .. } = measured;
        let mut state = self.shared.lock();
        let layout = state.layouts.iter().find(|layout| layout.fits(sizes, form))?.clone();
        let bytes = state.bytes;
        let at = state.free.iter().position(|block| block.bytes() >= bytes)?;
        let pinned = Some(state.free.swap_remove(at));
        drop(state);
        let (sizes, shared) = (sizes.clone(), self.shared.clone());
        Some(StagedBatch { layout, sizes, late_from, pinned, shared })
    }
}

/// A batch in pinned memory, ready to be copied to the device.
#[derive(Debug)]
pub struct StagedBatch {
    pub(crate) layout: Arc<BatchLayout>,
    sizes: Sizes,
    /// The index of the first numeric column that the step computes.
    late_from: usize,
    pinned: Option<Pinned>,
    shared: Arc<Shared>,
}

impl StagedBatch {
    /// Returns whether the block is of these inputs, as far as their sizes say.
    pub(crate) fn is_of(&self, inputs: &Inputs<'_>) -> bool {
        let Self { sizes, layout, shared, .. } = self;
        let values = inputs.columns.iter().map(|column| column.inverse.len());
        let unique = inputs.tables.iter().map(|table| table.unique);
        let strides = inputs.tables.iter().map(|table| table.stride);
        sizes.rows == inputs.rows
            && values.eq(sizes.values.iter().copied())
            && unique.eq(sizes.unique.iter().copied())
            && strides.eq(layout.form.strides.iter().copied())
            && inputs.numeric.len() == shared.lowered.graph.inputs.numeric.len()
            && inputs.numeric.iter().all(|values| values.len() == inputs.rows)
    }

    /// Returns the number of bytes of the block.
    pub(crate) fn bytes(&self) -> usize {
        self.pinned.as_ref().map_or(0, Pinned::bytes)
    }

    /// Completes the block by what the step alone knows, and exchanges it for one from which no
    /// copy reads any more.
    pub(crate) fn hand_over(
        mut self,
        slot: &mut Pinned,
        inputs: &Inputs<'_>,
        seed: StepSeed,
    ) -> Result<()> {
        let Some(block) = &mut self.pinned else { return Ok(()) };
        let late = (self.late_from, &self.shared.sources);
        self.layout.places.write_late(block, late, inputs, seed)?;
        std::mem::swap(block, slot);
        Ok(())
    }
}

impl Drop for StagedBatch {
    fn drop(&mut self) {
        self.shared.lock().free.extend(self.pinned.take());
    }
}

/// The part of the executor in staged batches: it allocates the blocks.
#[derive(Debug)]
pub(crate) struct Staging {
    stager: BatchStager,
    /// The number of blocks.
    blocks: usize,
    /// The number of bytes of a block.
    bytes: usize,
}

impl Staging {
    /// Creates a stager without blocks, for `blocks` batches.
    pub(crate) fn new(
        lowered: &Lowered,
        sources: &Sources,
        plans: &[RowPlan],
        blocks: usize,
    ) -> Self {
        let shared = Shared {
            lowered: lowered.clone(),
            sources: sources.clone(),
            plans: plans.to_vec(),
            state: Mutex::default(),
        };
        Self { stager: BatchStager { shared: Arc::new(shared) }, blocks, bytes: 0 }
    }

    /// Returns a stager that shares the blocks of this one.
    pub(crate) fn stager(&self) -> BatchStager {
        self.stager.clone()
    }

    /// Sets the layouts for which blocks are written from now on.
    pub(crate) fn set_layouts(&self, layouts: Vec<Arc<BatchLayout>>) {
        self.stager.shared.lock().layouts = layouts;
    }

    /// Makes blocks of this number of bytes, unless there are. If the host has no pinned memory for
    /// all of them, there are fewer, and more batches are written in their steps.
    ///
    /// # Errors
    /// Returns an error of the GPU other than that of pinned memory.
    pub(crate) fn fit(&mut self, gpu: &dyn Gpu, bytes: usize) -> Result<()> {
        if self.bytes >= bytes {
            return Ok(());
        }
        self.bytes = bytes;
        let outgrown = std::mem::take(&mut self.stager.shared.lock().free);
        drop(outgrown);
        let mut blocks = Vec::with_capacity(self.blocks);
        while blocks.len() < self.blocks {
            match gpu.allocate_pinned(bytes) {
                Ok(block) => blocks.push(block),
                Err(GpuError::PinnedMemory { .. }) => break,
                Err(error) => return Err(error.into()),
            }
        }
        let mut state = self.stager.shared.lock();
        state.bytes = bytes;
        state.free.extend(blocks);
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let mut state = self.stager.shared.lock();
        state.layouts.clear();
        let free = std::mem::take(&mut state.free);
        drop(state);
        drop(free);
    }
}
