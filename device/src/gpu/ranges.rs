//! The live allocations of a device, by address.

use std::collections::BTreeMap;

use super::error::GpuError;
use super::memory::Memory;

/// The live allocations. Copies are checked against them, so that a wrong address cannot reach
/// memory that does not belong to the device.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    by_address: BTreeMap<u64, usize>,
    live_bytes: u64,
}

impl Ranges {
    pub(super) fn insert(&mut self, memory: Memory) {
        self.live_bytes += memory.bytes() as u64;
        self.by_address.insert(memory.address(), memory.bytes());
    }

    /// Removes an allocation. `memory` must be what was inserted.
    pub(super) fn remove(&mut self, memory: Memory) -> Result<(), GpuError> {
        match self.by_address.get(&memory.address()) {
            Some(&bytes) if bytes == memory.bytes() => {
                self.by_address.remove(&memory.address());
                self.live_bytes -= bytes as u64;
                Ok(())
            }
            _ => Err(GpuError::Handle { what: "memory at", number: memory.address() }),
        }
    }

    /// Returns the allocation that has the byte at `address`.
    pub(super) fn find(&self, address: u64) -> Option<Memory> {
        let (&start, &bytes) = self.by_address.range(..=address).next_back()?;
        (address - start < bytes.max(1) as u64).then_some(Memory::new(start, bytes))
    }

    /// Refuses a range that does not lie in one live allocation. A range without a byte is always
    /// right.
    pub(super) fn check(&self, memory: Memory) -> Result<(), GpuError> {
        if memory.bytes() == 0 {
            return Ok(());
        }
        let unknown = GpuError::Handle { what: "memory at", number: memory.address() };
        let whole = self.find(memory.address()).ok_or(unknown)?;
        let offset = (memory.address() - whole.address()) as usize;
        whole.part(offset, memory.bytes()).map(|_| ())
    }

    pub(super) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    pub(super) fn all(&self) -> impl Iterator<Item = Memory> {
        self.by_address.iter().map(|(&address, &bytes)| Memory::new(address, bytes))
    }
}
