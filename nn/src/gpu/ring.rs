//! The pinned memory of steps for which the host does not wait.
//!
//! Each step takes the next slot of batches and the next slot of results. So the host is at most
//! [`BATCHES`] batches ahead of the copies, and [`RESULTS`] steps ahead of the results.
//!
//! # Invariants
//! * The pinned memory of a slot of batches is written only after the copy from it has run, which
//!   an event says. The memory on the device is written only after the step before has taken the
//!   batch from it, for which the stream of copies waits.
//! * A slot of results is read only after the copies to it have run, which its event says. It is
//!   given to another step only after it was read.
//! * Results are read in the order of steps.

use std::collections::VecDeque;

use zillion_device::gpu::{Event, Gpu, Memory, Pinned, Stream};

use crate::error::Result;
use crate::gpu::results::{BATCHES, RESULTS, Record, StepResults, Ticket};

/// A batch and the rules of its step on their way to the device.
#[derive(Debug)]
pub(crate) struct BatchSlot {
    pub(crate) pinned: Pinned,
    /// The memory on the device to which the batch is copied from the host.
    pub(crate) staging: Memory,
    /// The event behind the copy from the host.
    pub(crate) copied: Event,
    /// The event behind the copies to the place at which the launches read the batch.
    pub(crate) taken: Event,
}

/// The results of a step on their way to the host: the record, then the outputs.
#[derive(Debug)]
pub(crate) struct ResultSlot {
    pub(crate) pinned: Pinned,
    /// The event behind the copies to the memory.
    pub(crate) event: Event,
    /// The number of floats of each output.
    pub(crate) lens: Vec<usize>,
}

/// The slots of all steps, and the results that nothing has taken yet.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    /// The stream of copies from the host.
    copies: Option<Stream>,
    batches: Vec<BatchSlot>,
    results: Vec<ResultSlot>,
    /// The number of steps that were enqueued.
    enqueued: u64,
    /// The number of steps whose slot was read.
    read: u64,
    /// The results that were read and that nothing has taken yet, in order, with the outputs.
    pub(crate) finished: VecDeque<(StepResults, Vec<Vec<f32>>)>,
    /// The buffers of outputs that were given back.
    free: Vec<Vec<Vec<f32>>>,
    /// The number of times that the host waited because it was too far ahead.
    pub(crate) stalls: u64,
}

impl Ring {
    /// Makes slots of at least these numbers of bytes. All slots must be free.
    pub(crate) fn fit(&mut self, gpu: &dyn Gpu, batch: usize, results: usize) -> Result<()> {
        debug_assert_eq!(self.in_flight(), 0);
        for index in 0..BATCHES {
            if self.batches.len() == index {
                let pinned = gpu.allocate_pinned(batch)?;
                let [copied, taken] = [gpu.create_event(false)?, gpu.create_event(false)?];
                let staging = gpu.allocate(batch)?;
                self.batches.push(BatchSlot { pinned, staging, copied, taken });
            } else if self.batches[index].pinned.bytes() < batch {
                let slot = &mut self.batches[index];
                gpu.free(std::mem::replace(&mut slot.staging, Memory::NULL))?;
                slot.staging = gpu.allocate(batch)?;
                slot.pinned = gpu.allocate_pinned(batch)?;
            }
        }
        for index in 0..RESULTS {
            if self.results.len() == index {
                let (pinned, event) = (gpu.allocate_pinned(results)?, gpu.create_event(false)?);
                self.results.push(ResultSlot { pinned, event, lens: Vec::new() });
            } else if self.results[index].pinned.bytes() < results {
                self.results[index].pinned = gpu.allocate_pinned(results)?;
            }
        }
        Ok(())
    }

    /// Returns whether all slots have at least these numbers of bytes.
    pub(crate) fn fits(&self, batch: usize, results: usize) -> bool {
        let has = |slot: Option<&Pinned>, bytes: usize| slot.is_some_and(|p| p.bytes() >= bytes);
        has(self.batches.last().map(|slot| &slot.pinned), batch)
            && has(self.results.last().map(|slot| &slot.pinned), results)
    }

    /// Returns the number of bytes of the pinned memory of a batch, which is 0 before the first
    /// step.
    pub(crate) fn batch_bytes(&self) -> usize {
        self.batches.iter().map(|slot| slot.pinned.bytes()).min().unwrap_or(0)
    }

    /// Returns the number of steps whose results were not read.
    pub(crate) fn in_flight(&self) -> usize {
        (self.enqueued - self.read) as usize
    }

    /// Returns the ticket of the next step.
    pub(crate) fn next_ticket(&self) -> Ticket {
        Ticket(self.enqueued)
    }

    /// Returns the stream of copies and the slots of the next step. Waits if the copy from the slot
    /// of the batch has not run.
    pub(crate) fn next(
        &mut self,
        gpu: &dyn Gpu,
    ) -> Result<(Stream, &mut BatchSlot, &mut ResultSlot)> {
        let copies = match self.copies {
            Some(copies) => copies,
            None => *self.copies.insert(gpu.create_stream()?),
        };
        let batch = &mut self.batches[self.enqueued as usize % BATCHES];
        if !gpu.is_done(batch.copied)? {
            self.stalls += 1;
            gpu.synchronize_event(batch.copied)?;
        }
        Ok((copies, batch, &mut self.results[self.enqueued as usize % RESULTS]))
    }

    /// Frees the memory on the device, the stream and the events. All steps have ended.
    pub(crate) fn free(&mut self, gpu: &dyn Gpu) -> Result<()> {
        if let Some(copies) = self.copies.take() {
            gpu.synchronize(copies)?;
            gpu.free_stream(copies)?;
        }
        for BatchSlot { staging, copied, taken, .. } in self.batches.drain(..) {
            if staging != Memory::NULL {
                gpu.free(staging)?;
            }
            gpu.free_event(copied)?;
            gpu.free_event(taken)?;
        }
        Ok(self.results.drain(..).try_for_each(|slot| gpu.free_event(slot.event))?)
    }

    /// Returns the slot of the results of the next step.
    pub(crate) fn next_results(&self) -> &ResultSlot {
        &self.results[self.enqueued as usize % RESULTS]
    }

    /// Gives the slots of the next step to the operations that were enqueued.
    pub(crate) fn take(&mut self) {
        self.enqueued += 1;
    }

    /// Reads the results of the oldest step that was not read, and keeps them. Returns `None` if
    /// there is no such step. Returns `None` too if the step has not ended, unless the host may
    /// wait for it.
    pub(crate) fn read(&mut self, gpu: &dyn Gpu, wait: bool) -> Result<Option<StepResults>> {
        if self.in_flight() == 0 {
            return Ok(None);
        }
        let ticket = Ticket(self.read);
        let slot = &self.results[self.read as usize % RESULTS];
        if !gpu.is_done(slot.event)? {
            if !wait {
                return Ok(None);
            }
            gpu.synchronize_event(slot.event)?;
        }
        let mut record = [Record::default()];
        slot.pinned.read(0, &mut record)?;
        let [Record { dense_sq_norm, skip, loss, .. }] = record;
        let mut at = size_of::<Record>();
        let mut outputs = self.free.pop().unwrap_or_default();
        outputs.resize(slot.lens.len(), Vec::new());
        for (values, &len) in outputs.iter_mut().zip(&slot.lens) {
            values.resize(len, 0.0);
            slot.pinned.read(at, values)?;
            at += 4 * len;
        }
        self.read += 1;
        let results = StepResults { ticket, loss, dense_sq_norm, is_skipped: skip != 0 };
        self.finished.push_back((results, outputs));
        Ok(Some(results))
    }

    /// Takes the buffers of outputs back, to use them again.
    pub(crate) fn give_back(&mut self, outputs: Vec<Vec<f32>>) {
        if self.free.len() < RESULTS {
            self.free.push(outputs);
        }
    }
}

#[cfg(test)]
impl Ring {
    /// Forgets which copies of batches, or of results, have not run, as a mistaken program would.
    pub(crate) fn forget_copies(&mut self, gpu: &dyn Gpu, (batches, results): (bool, bool)) {
        let fresh = || gpu.create_event(false).unwrap();
        let Self { batches: from_host, results: to_host, .. } = self;
        from_host.iter_mut().filter(|_| batches).for_each(|slot| slot.copied = fresh());
        to_host.iter_mut().filter(|_| results).for_each(|slot| slot.event = fresh());
    }
}
