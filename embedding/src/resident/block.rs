//! The block of a step on the device, and the pinned memory from which it is filled. The host is a
//! few steps ahead of the device, so there are several pinned blocks, which are used in turn.

use zillion_device::gpu::{GpuError, Pinned};

use crate::resident::device::{Owned, OwnedEvent, ResidentOptions};
use crate::resident::layout::Layout;

/// The number of steps whose blocks may wait for their copies.
const AHEAD: usize = 8;

/// The block of a step.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) layout: Layout,
    device: Owned,
    ring: Vec<Staging>,
    /// The position in the ring of the block that the present step fills.
    present: usize,
}

/// A pinned block, and the event behind the copies from it.
#[derive(Debug)]
struct Staging {
    pinned: Pinned,
    copied: OwnedEvent,
}

impl Block {
    pub(super) fn new(options: &ResidentOptions, layout: Layout) -> Result<Self, GpuError> {
        let device = Owned::new(options, layout.bytes)?;
        // What a step does not write is copied all the same, so it must be defined.
        options.gpu.fill(options.stream, device.memory(), 0)?;
        let staging = |_| {
            let pinned = options.gpu.allocate_pinned(layout.bytes)?;
            Ok(Staging { pinned, copied: OwnedEvent::new(options)? })
        };
        let ring = (0..AHEAD).map(staging).collect::<Result<_, GpuError>>()?;
        Ok(Self { layout, device, ring, present: 0 })
    }

    /// Begins to fill the next pinned block. Waits if the device is too far behind.
    pub(super) fn begin(&mut self, options: &ResidentOptions) -> Result<(), GpuError> {
        self.present = (self.present + 1) % AHEAD;
        let event = self.ring[self.present].copied.handle();
        if !options.gpu.is_done(event)? {
            options.gpu.synchronize_event(event)?;
        }
        let results = self.layout.results.clone();
        self.write(results.start, &vec![0u8; results.len()])
    }

    /// Writes values at an offset of the block.
    pub(super) fn write<T: bytemuck::NoUninit>(
        &mut self,
        offset: usize,
        values: &[T],
    ) -> Result<(), GpuError> {
        self.ring[self.present].pinned.write(offset, values)
    }

    /// Enqueues the copy of the block. New rows are copied only if there are any.
    pub(super) fn send(&self, options: &ResidentOptions, has_new: bool) -> Result<(), GpuError> {
        let ResidentOptions { gpu, stream, .. } = options;
        let Staging { pinned, copied } = &self.ring[self.present];
        let bytes = if has_new { self.layout.bytes } else { self.layout.main };
        gpu.copy_in(*stream, self.device.memory().part(0, bytes)?, pinned, 0)?;
        gpu.record(copied.handle(), *stream)
    }

    /// Returns the bytes of the device's memory that the block takes.
    pub(super) fn bytes(&self) -> usize {
        self.device.bytes()
    }

    /// Returns the address of an offset on the device.
    pub(super) fn at(&self, offset: usize) -> u64 {
        self.device.address() + offset as u64
    }

    /// Returns the memory of the results of a step.
    pub(super) fn results(&self) -> Result<zillion_device::gpu::Memory, GpuError> {
        let results = &self.layout.results;
        self.device.memory().part(results.start, results.len())
    }
}
