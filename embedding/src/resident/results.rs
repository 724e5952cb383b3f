//! The counts of steps, which are read behind the steps.

use std::collections::VecDeque;

use zillion_device::gpu::{GpuError, Memory, Pinned};
use zillion_feature::Step;

use crate::resident::device::{OwnedEvent, ResidentOptions};
use crate::set::TableSet;
use crate::statistics::Counters;

/// The number of steps whose counts may wait to be read.
const AHEAD: usize = 64;

/// The events of one step on rows of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResidentReport {
    /// The number of the step.
    pub step: Step,
    /// Whether the step moved no weight, because the norm of its gradients was not finite.
    pub is_skipped: bool,
    /// The numbers of events of all tables that the push and the sweep of the step on the host
    /// would count.
    pub counters: Counters,
}

/// A step whose counts are on their way.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) step: Step,
    /// The events that the host has counted already.
    pub(super) counters: Counters,
    /// The number of rows of each table that got a gradient.
    pub(super) pushed: Vec<u64>,
}

/// The counts of the last steps.
#[derive(Debug)]
pub(super) struct Results {
    pinned: Pinned,
    /// The number of bytes of the results of a step.
    bytes: usize,
    events: Vec<OwnedEvent>,
    /// The number of steps so far. The results of a step are at its number in the ring.
    steps: usize,
    pending: VecDeque<Pending>,
    reports: VecDeque<ResidentReport>,
}

impl Results {
    /// Allocates the ring for steps with `bytes` bytes of results.
    pub(super) fn new(options: &ResidentOptions, bytes: usize) -> Result<Self, GpuError> {
        let events = (0..AHEAD).map(|_| OwnedEvent::new(options));
        Ok(Self {
            pinned: options.gpu.allocate_pinned(AHEAD * bytes)?,
            bytes,
            events: events.collect::<Result<_, _>>()?,
            steps: 0,
            pending: VecDeque::with_capacity(AHEAD),
            reports: VecDeque::new(),
        })
    }

    /// Enqueues the copy of the results of a step. If all places are taken, waits for the oldest
    /// step.
    pub(super) fn send(
        &mut self,
        options: &ResidentOptions,
        tables: &mut TableSet,
        from: Memory,
        step: Pending,
    ) -> Result<(), GpuError> {
        if self.pending.len() == AHEAD {
            self.read_oldest(options, tables, true)?;
        }
        let at = self.steps % AHEAD;
        options.gpu.copy_out(options.stream, &self.pinned, at * self.bytes, from)?;
        options.gpu.record(self.events[at].handle(), options.stream)?;
        self.steps += 1;
        self.pending.push_back(step);
        Ok(())
    }

    /// Returns the oldest report that was not returned yet. Returns `None` if there is none, or if
    /// its step has not run and `wait` is false.
    pub(super) fn next(
        &mut self,
        options: &ResidentOptions,
        tables: &mut TableSet,
        wait: bool,
    ) -> Result<Option<ResidentReport>, GpuError> {
        if self.reports.is_empty() {
            self.read_oldest(options, tables, wait)?;
        }
        Ok(self.reports.pop_front())
    }

    /// Reads the results of all steps that have run, or of all steps.
    pub(super) fn read(
        &mut self,
        options: &ResidentOptions,
        tables: &mut TableSet,
        wait: bool,
    ) -> Result<(), GpuError> {
        while self.read_oldest(options, tables, wait)? {}
        Ok(())
    }

    /// Reads the results of the oldest step that were not read yet, and adds them to the counters
    /// of the tables. Returns whether there were any.
    fn read_oldest(
        &mut self,
        options: &ResidentOptions,
        tables: &mut TableSet,
        wait: bool,
    ) -> Result<bool, GpuError> {
        if self.pending.is_empty() {
            return Ok(false);
        }
        let at = (self.steps - self.pending.len()) % AHEAD;
        let event = self.events[at].handle();
        if !options.gpu.is_done(event)? {
            if !wait {
                return Ok(false);
            }
            options.gpu.synchronize_event(event)?;
        }
        let mut words = vec![0u32; self.bytes / size_of::<u32>()];
        self.pinned.read(at * self.bytes, &mut words)?;
        let Some(Pending { step, mut counters, pushed }) = self.pending.pop_front() else {
            return Ok(false);
        };
        let is_skipped = words[0] != 0;
        let counts = words[1..].as_chunks::<2>().0;
        for (index, (pushed, &[nonfinite, saturated])) in pushed.into_iter().zip(counts).enumerate()
        {
            let nonfinite = if is_skipped { pushed } else { u64::from(nonfinite) };
            let counted = Counters {
                pushed: pushed - nonfinite,
                nonfinite,
                saturated: u64::from(saturated),
                ..Counters::default()
            };
            counters.add(counted);
            // The counters of a table are summed over its shards.
            tables.shards[0].tables[index].counters.add(counted);
        }
        self.reports.push_back(ResidentReport { step, is_skipped, counters });
        Ok(true)
    }
}
