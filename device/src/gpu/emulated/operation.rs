//! Operations of the emulated device, and how one is run.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulong, c_ulonglong, c_void};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use super::memory::{Store, Use};
use super::product;
use crate::gpu::device::Event;
use crate::gpu::launch::{Label, Launch};
use crate::gpu::memory::{Memory, PinnedOwner};
use crate::gpu::product::Product;

unsafe extern "C" {
    /// Runs a kernel of the emulator. Returns 0, or leaves the text of an error in `error`.
    fn zn_emulated_launch(
        kernel: *const c_char,
        grid: *const c_uint,
        block: *const c_uint,
        shared_bytes: c_uint,
        params: *mut *mut c_void,
        seed: c_ulonglong,
        error: *mut c_char,
        error_len: c_ulong,
    ) -> c_int;
}

/// Sixteen bytes of a parameter. They have the largest alignment that a parameter needs.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
struct Word([u8; 16]);

/// A launch with its own copy of the parameters.
#[derive(Clone, Debug)]
pub(super) struct KernelRun {
    name: CString,
    pub(super) label: Label,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    params: Vec<Vec<Word>>,
}

/// A range of a block of pinned memory.
#[derive(Clone, Debug)]
pub(super) struct HostRange {
    /// The number of the block on its device.
    pub(super) number: u64,
    pub(super) offset: usize,
    place: NonNull<u8>,
    /// Keeps the block's memory.
    _owner: Arc<dyn PinnedOwner>,
}

// SAFETY: the range belongs to no thread; the owner keeps its memory.
unsafe impl Send for HostRange {}
// SAFETY: as above.
unsafe impl Sync for HostRange {}

impl HostRange {
    pub(super) fn new(
        number: u64,
        offset: usize,
        place: NonNull<u8>,
        owner: &Arc<dyn PinnedOwner>,
    ) -> Self {
        Self { number, offset, place, _owner: Arc::clone(owner) }
    }
}

/// The effect of an operation.
#[derive(Clone, Debug)]
pub(super) enum Action {
    CopyIn {
        to: Memory,
        from: HostRange,
    },
    CopyOut {
        to: HostRange,
        from: Memory,
    },
    Copy {
        to: Memory,
        from: Memory,
    },
    Fill {
        to: Memory,
        byte: u8,
    },
    Kernel(KernelRun),
    /// A product, whose terms are added up in ascending or in descending order.
    Multiply {
        product: Product,
        is_descending: bool,
    },
    /// Marks the generation of an event as done.
    Record {
        event: Event,
        generation: u64,
    },
    /// Holds the stream up until the generation of an event is done.
    Wait {
        event: Event,
        generation: u64,
    },
}

/// An operation, and the allocations that it used when it was enqueued.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) action: Action,
    pub(super) uses: Vec<Use>,
}

impl Action {
    /// Copies a launch. The parameters are those of this moment.
    pub(super) fn launch(launch: &Launch<'_>) -> Result<Self, String> {
        let name = CString::new(launch.kernel.name).map_err(|_| "a zero byte in the name")?;
        let params = launch.params.iter().map(|param| {
            let copy = |bytes: &[u8]| {
                let mut word = Word([0; 16]);
                word.0[..bytes.len()].copy_from_slice(bytes);
                word
            };
            param.as_bytes().chunks(16).map(copy).collect()
        });
        Ok(Self::Kernel(KernelRun {
            name,
            label: launch.label(),
            grid: launch.grid,
            block: launch.block,
            shared_bytes: launch.shared_bytes,
            params: params.collect(),
        }))
    }

    /// Returns the ranges of the device that a copy or a product uses.
    fn ranges(&self) -> Vec<Memory> {
        match self {
            Self::CopyIn { to, .. } | Self::Fill { to, .. } => vec![*to],
            Self::CopyOut { from, .. } => vec![*from],
            Self::Copy { to, from } => vec![*to, *from],
            Self::Multiply { product, .. } => vec![product.a, product.b, product.c, product.bias],
            Self::Kernel(_) | Self::Record { .. } | Self::Wait { .. } => Vec::new(),
        }
    }

    /// Returns the allocations that the operation uses. For a kernel, they are those whose
    /// addresses are in its parameters.
    pub(super) fn uses(&self, store: &Store) -> Vec<Use> {
        let mut uses = Vec::new();
        let mut add = |address: u64| {
            if let Some(used) = store.find(address)
                && !uses.contains(&used)
            {
                uses.push(used);
            }
        };
        self.ranges().iter().for_each(|memory| add(memory.address()));
        if let Self::Kernel(run) = self {
            for word in run.params.iter().flatten() {
                for half in word.0.chunks_exact(8) {
                    add(u64::from_ne_bytes(half.try_into().unwrap_or_default()));
                }
            }
        }
        uses
    }

    /// Returns the bytes of pinned memory that a copy uses, and whether the copy writes them.
    pub(super) fn pinned(&self) -> Option<(u64, Range<usize>, bool)> {
        match self {
            Self::CopyIn { to, from } => {
                Some((from.number, from.offset..from.offset + to.bytes(), false))
            }
            Self::CopyOut { to, from } => {
                Some((to.number, to.offset..to.offset + from.bytes(), true))
            }
            _ => None,
        }
    }

    /// Returns the event that the operation records, or for which it waits.
    pub(super) fn event(&self) -> Option<Event> {
        match self {
            Self::Record { event, .. } | Self::Wait { event, .. } => Some(*event),
            _ => None,
        }
    }

    /// Returns the text of the operation in errors.
    pub(super) fn label(&self) -> String {
        match self {
            Self::CopyIn { to, .. } => format!("a copy of {} bytes to the device", to.bytes()),
            Self::CopyOut { from, .. } => format!("a copy of {} bytes to the host", from.bytes()),
            Self::Copy { from, .. } => format!("a copy of {} bytes", from.bytes()),
            Self::Fill { to, .. } => format!("a fill of {} bytes", to.bytes()),
            Self::Kernel(run) => format!("the launch {}", run.label),
            Self::Multiply { product, .. } => format!("the {}", product.label()),
            Self::Record { event, .. } => format!("a record of event {}", event.0),
            Self::Wait { event, .. } => format!("a wait for event {}", event.0),
        }
    }

    /// Runs a copy, a fill, a kernel or a product. All ranges must be live.
    pub(super) fn run(&self, seed: u64) -> Result<(), String> {
        let place = |memory: Memory| memory.address() as *mut u8;
        match self {
            // SAFETY: the ranges were checked when the operation was enqueued, their allocations
            // still live, and the owner keeps the pinned block. Two live ranges of the device may
            // overlap, so the bytes are moved.
            Self::CopyIn { to, from } => unsafe {
                place(*to).copy_from_nonoverlapping(from.place.as_ptr(), to.bytes());
            },
            // SAFETY: as above.
            Self::CopyOut { to, from } => unsafe {
                to.place.as_ptr().copy_from_nonoverlapping(place(*from), from.bytes());
            },
            // SAFETY: as above.
            Self::Copy { to, from } => unsafe {
                place(*to).copy_from(place(*from), from.bytes());
            },
            // SAFETY: as above.
            Self::Fill { to, byte } => unsafe { place(*to).write_bytes(*byte, to.bytes()) },
            Self::Kernel(run) => return run.run(seed),
            Self::Multiply { product, is_descending } => {
                product::multiply(product, *is_descending);
            }
            Self::Record { .. } | Self::Wait { .. } => {}
        }
        Ok(())
    }
}

impl KernelRun {
    fn run(&self, seed: u64) -> Result<(), String> {
        let mut params: Vec<*mut c_void> =
            self.params.iter().map(|words| words.as_ptr().cast_mut().cast()).collect();
        let mut error = [0 as c_char; 512];
        // SAFETY: the name ends with a zero byte, the parameters are as many and as large as the
        // table of kernels says, and the buffer has the length that is passed. A kernel accesses
        // the addresses in its parameters; a wrong one is a fault, because pages that cannot be
        // accessed surround every allocation. So this device is for tests only.
        let status = unsafe {
            zn_emulated_launch(
                self.name.as_ptr(),
                self.grid.as_ptr(),
                self.block.as_ptr(),
                self.shared_bytes,
                params.as_mut_ptr(),
                seed,
                error.as_mut_ptr(),
                error.len() as c_ulong - 1,
            )
        };
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the last byte of the buffer is zero, because its length was given as one less.
        let text = unsafe { CStr::from_ptr(error.as_ptr()) };
        Err(text.to_string_lossy().into_owned())
    }
}
