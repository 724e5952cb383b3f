//! Memory of a device, and pinned memory of the host.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::error::GpuError;

/// A range of a device's memory: its address on the device, and its length in bytes.
///
/// A value is a plain handle. It can be copied, and it does not free the memory: the device does
/// this by [`Gpu::free`](super::Gpu::free).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Memory {
    address: u64,
    bytes: usize,
}

impl Memory {
    /// The range without a byte, whose address is zero.
    pub const NULL: Self = Self { address: 0, bytes: 0 };

    /// Describes the range of `bytes` bytes at `address`.
    pub const fn new(address: u64, bytes: usize) -> Self {
        Self { address, bytes }
    }

    /// Returns the address of the first byte on the device.
    pub const fn address(self) -> u64 {
        self.address
    }

    /// Returns the number of bytes.
    pub const fn bytes(self) -> usize {
        self.bytes
    }

    /// Returns the part of `bytes` bytes that begins `offset` bytes after the start.
    ///
    /// # Errors
    ///
    /// Returns an error if the part does not lie within the range.
    pub fn part(self, offset: usize, bytes: usize) -> Result<Self, GpuError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => {
                Ok(Self { address: self.address + offset as u64, bytes })
            }
            _ => Err(GpuError::Range { offset, bytes, whole: self.bytes }),
        }
    }

    /// Returns the parameter of a launch that passes the address.
    pub fn param(&self) -> super::Param<'_> {
        super::Param::new(&self.address)
    }
}

/// Receives the accesses of the host to a block of pinned memory, and frees the block when it is
/// dropped.
pub trait PinnedOwner: fmt::Debug + Send + Sync {
    /// Returns the number of the block on its device.
    fn number(&self) -> u64;

    /// Learns that the host is about to read (`is_write` is false) or to write a range of the
    /// block. An emulated device records an error if an operation that has not run yet uses the
    /// same bytes.
    fn note_access(&self, offset: usize, bytes: usize, is_write: bool);

    /// Learns that the host has dropped the block. Graphs that copy from or to the block still keep
    /// its memory.
    fn note_release(&self);
}

/// A block of pinned memory of the host. Copies between it and a device run while the host works.
///
/// A copy reads or writes the block when it *runs*, which can be long after it was enqueued. Until
/// then, the host must neither change the bytes that the copy reads nor use those that it writes.
/// The host knows by an event that a copy has run. The bytes are accessed by copying, so that no
/// reference to memory exists that a device may write.
#[derive(Debug)]
pub struct Pinned {
    start: NonNull<u8>,
    bytes: usize,
    owner: Arc<dyn PinnedOwner>,
}

// SAFETY: the block is ordinary memory that no thread owns. The owner is `Send` and `Sync`. All
// accesses copy bytes, writes need `&mut self`, and so two threads of the host cannot race.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Wraps a block of memory.
    ///
    /// # Safety
    ///
    /// `start` must point to `bytes` bytes that are initialised, that can be read and written until
    /// `owner` is dropped, and that no reference points to.
    pub(crate) unsafe fn from_raw(
        start: NonNull<u8>,
        bytes: usize,
        owner: Arc<dyn PinnedOwner>,
    ) -> Self {
        Self { start, bytes, owner }
    }

    /// Replaces the owner by one that keeps it.
    pub(crate) fn with_owner(
        mut self,
        wrap: impl FnOnce(Arc<dyn PinnedOwner>) -> Arc<dyn PinnedOwner>,
    ) -> Self {
        self.owner = wrap(Arc::clone(&self.owner));
        self
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the owner, which keeps the memory of the block while it lives.
    pub(crate) fn owner(&self) -> &Arc<dyn PinnedOwner> {
        &self.owner
    }

    /// Returns the address of the byte at `offset` if `bytes` bytes from there lie in the block.
    ///
    /// # Errors
    ///
    /// Returns an error if they do not.
    pub(crate) fn place(&self, offset: usize, bytes: usize) -> Result<NonNull<u8>, GpuError> {
        match offset.checked_add(bytes) {
            // SAFETY: the offset is at most the length of the block.
            Some(end) if end <= self.bytes => Ok(unsafe { self.start.add(offset) }),
            _ => Err(GpuError::Range { offset, bytes, whole: self.bytes }),
        }
    }

    /// Writes `values` at the byte `offset`.
    ///
    /// # Errors
    ///
    /// Returns an error if the values do not fit.
    pub fn write<T: bytemuck::NoUninit>(
        &mut self,
        offset: usize,
        values: &[T],
    ) -> Result<(), GpuError> {
        let from: &[u8] = bytemuck::cast_slice(values);
        let place = self.place(offset, from.len())?;
        self.owner.note_access(offset, from.len(), true);
        // SAFETY: the range lies in the block, and no reference points into the block, so the two
        // ranges do not overlap. A copy of the device that reads the same bytes meanwhile gets old
        // or new ones, which is the caller's mistake, but does not break the host's memory.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), place.as_ptr(), from.len()) };
        Ok(())
    }

    /// Reads `values` from the byte `offset`.
    ///
    /// # Errors
    ///
    /// Returns an error if the values do not lie in the block.
    pub fn read<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(
        &self,
        offset: usize,
        values: &mut [T],
    ) -> Result<(), GpuError> {
        let to: &mut [u8] = bytemuck::cast_slice_mut(values);
        let place = self.place(offset, to.len())?;
        self.owner.note_access(offset, to.len(), false);
        // SAFETY: as in `write`; any bytes are a value of the type.
        unsafe { std::ptr::copy_nonoverlapping(place.as_ptr(), to.as_mut_ptr(), to.len()) };
        Ok(())
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.owner.note_release();
    }
}
