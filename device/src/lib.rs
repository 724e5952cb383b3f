//! The machine: memory, SIMD, matrix products, a pool of threads, durable writes and clocks.
//!
//! This crate is the lowest layer of the system, and the only crate with `unsafe` code. Its whole
//! interface is safe to call. It does not know models, tables or the network.
//!
//! ```
//! use std::num::NonZeroUsize;
//! use zillion_device::{Slab, Workers};
//!
//! # fn main() -> Result<(), zillion_device::DeviceError> {
//! let workers = Workers::new(NonZeroUsize::MIN.saturating_add(1))?;
//! let mut shards = vec![Slab::<f32>::new(16)?, Slab::<f32>::new(16)?];
//! let outcome = workers.map(shards.len(), |shard| shard * 2);
//! assert_eq!(outcome, [0, 2]);
//!
//! workers.for_each_mut(&mut shards, |shard, slab| {
//!     let row = slab.alloc().expect("two rows fit any machine");
//!     slab.row_mut(row).fill(shard as f32);
//! });
//! assert_eq!(shards[1].row(0), [1.0; 16]);
//! # Ok(())
//! # }
//! ```

#![expect(unsafe_code, reason = "the only crate that has it: every block carries its proof")]

mod error;

pub mod clock;
mod counting;
pub mod direct_io;
pub mod durable;
pub mod gpu;
pub mod lines;
pub mod machine;
pub mod matmul;
pub mod mmap;
pub mod prefetch;
pub mod probe;
pub mod simd;
pub mod slab;
mod sync;
pub mod workers;

pub use clock::{Clock, ManualClock, SystemClock, thread_time};
pub use counting::CountingAllocator;
pub use durable::{Failpoint, Failpoints, Files};
pub use error::DeviceError;
pub use slab::Slab;
pub use workers::{Activity, Stretch, Task, Workers};
