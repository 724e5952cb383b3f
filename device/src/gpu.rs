//! The GPU: one trait for a device, its implementation by CUDA, and an emulated device for tests.
//!
//! A program talks to a GPU through [`Gpu`]: it allocates memory, enqueues copies, kernels and
//! matrix products on streams, orders the streams by events, and replays a captured graph of all
//! of them. There are two implementations:
//!
//! * `cuda`: a real device by the CUDA driver. The libraries are opened at run time, so one binary
//!   runs on machines with and without a GPU.
//! * `emulated` (behind the feature `emulated-gpu`): the same kernels compiled as C++, streams that
//!   run lazily in random legal orders, and counted waits. It is for tests of the code that drives
//!   a GPU.
//!
//! [`conformance`] is one body of checks for both. [`kernels`] lists the kernels and their sources.

mod budget;
pub mod check;
pub mod compile;
pub mod conformance;
pub mod cuda;
mod device;
#[cfg(feature = "emulated-gpu")]
pub mod emulated;
mod error;
mod info;
pub mod kernels;
mod launch;
mod libraries;
mod memory;
mod open;
mod product;
mod ranges;
pub mod rates;
pub mod report;

pub use budget::Budgeted;
pub use device::{Event, Gpu, Graph, Stream};
pub use error::GpuError;
pub use info::{Counters, Info, Kind, LibraryInfo};
pub use launch::{Kernel, Launch, Param, ParamKind, Shape, Unit};
pub use memory::{Memory, Pinned, PinnedOwner};
pub use open::open;
pub use product::{Algorithm, Element, Epilogue, Precision, Product};
