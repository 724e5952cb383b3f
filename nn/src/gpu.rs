//! The GPU: the plan of a lowered graph as a list of launches, and the executor that runs the list.
//!
//! A value of the batch has a place in an arena with all of its rows, and each operation is one or
//! a few launches over all rows. The lanes and tiles of [`Lowered`](crate::lowered::Lowered) are
//! uploaded with the batch, so that sums over the batch have the order of the CPU. Therefore the
//! results have the bits of the CPU.
//!
//! The list of launches is made once for a capacity: the largest sizes of a batch so far. It reads
//! the sizes of the batch from the device's memory, so a smaller batch runs the same list.
//!
//! With a precision other than `f32`, the products of layers are those of the GPU's library
//! ([`library`]). Their bits are those of a model of GPU and a version of the library.

mod algorithms;
mod arena;
mod batch;
mod bind;
mod binder;
mod cut;
pub(crate) mod device_params;
pub(crate) mod device_rows;
mod downloads;
mod elementwise;
pub(crate) mod executor;
mod fixed;
mod in_batch;
pub(crate) mod library;
mod library_sums;
mod loaded;
mod lookup;
mod measured;
mod norms;
mod products;
mod replayed;
pub(crate) mod resident;
pub(crate) mod results;
mod ring;
mod row_plan;
pub(crate) mod scoring;
mod side;
mod sizes;
mod sources;
pub(crate) mod staging;
mod step;
mod sums;
mod values;
