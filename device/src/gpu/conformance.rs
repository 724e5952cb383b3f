//! One body of checks for every device: copies, orders by events, graphs, launches, errors, and
//! products.
//!
//! `zillion gpu check` runs it on a real device, and the tests run it on many seeds of the emulated
//! one. The kernels are small and compute with whole numbers, so that a wrong order changes the
//! result. The checks leave the device usable; only [`check_failure`] ends it.

mod copies;
mod graphs;
mod launches;
mod orders;
mod products;
#[cfg(all(test, feature = "emulated-gpu"))]
mod tests;
pub mod twins;

use std::time::Instant;

use super::device::{Gpu, Stream};
use super::error::GpuError;
use super::memory::Memory;

pub use launches::check_failure;

/// A check: its name, and the function that runs it.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// The name, as the command prints it.
    pub name: &'static str,
    /// Runs the check on a device.
    pub run: fn(&dyn Gpu) -> Result<(), GpuError>,
}

/// All checks, in the order in which they run.
pub const CHECKS: &[Check] = &[
    Check { name: "copies move bytes between host and device", run: copies::move_bytes },
    Check { name: "ranges outside of an allocation are refused", run: copies::refuse_ranges },
    Check { name: "memory that does not fit is refused", run: copies::refuse_too_much },
    Check { name: "a stream runs in order", run: orders::run_in_order },
    Check { name: "an event orders two streams", run: orders::order_two_streams },
    Check { name: "the host waits for an event", run: orders::wait_on_the_host },
    Check { name: "a question for an event ends", run: orders::ask_for_an_event },
    Check { name: "pinned memory is used again after its event", run: orders::use_pinned_again },
    Check { name: "timed events give a time", run: orders::measure_time },
    Check { name: "streams and events are given back", run: orders::give_back },
    Check { name: "a kernel uses all dynamic shared memory", run: launches::use_shared_memory },
    Check { name: "wrong launches are refused by name", run: launches::refuse_wrong_launches },
    Check { name: "launches are counted", run: launches::count_launches },
    Check { name: "a replay reads what changes from memory", run: graphs::read_header },
    Check { name: "a replay keeps the values of the capture", run: graphs::keep_scalars },
    Check { name: "a graph spans two streams", run: graphs::span_two_streams },
    Check { name: "a graph copies from pinned memory at its replay", run: graphs::copy_at_replay },
    Check { name: "a replay neither waits nor allocates", run: graphs::replay_without_waits },
    Check { name: "what cannot be recorded is refused", run: graphs::refuse_in_capture },
    Check { name: "products agree with the host", run: products::agree_with_host },
    Check { name: "products repeat their bits", run: products::repeat_bits },
    Check { name: "wrong products are refused", run: products::refuse_wrong_products },
    Check { name: "the algorithm of a product can be kept", run: products::keep_algorithm },
    Check { name: "a freed stream has no memory of products", run: products::give_back_memory },
];

/// The name of the question that [`tell_relu_of_nan`] answers.
pub const RELU_OF_NAN: &str = "relu of NaN in products";

/// Returns a text that says what the relu in the library's products makes of NaN, in each
/// precision. Devices may differ, because nothing documents it.
///
/// # Errors
/// Returns an error if the relu makes something else than NaN or 0 of NaN, or an error of the
/// device.
pub fn tell_relu_of_nan(gpu: &dyn Gpu) -> Result<String, GpuError> {
    products::tell_relu_of_nan(gpu)
}

/// The outcome of one check.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The name of the check.
    pub name: &'static str,
    /// The error, if the check failed.
    pub error: Option<GpuError>,
    /// The time that the check took, in seconds.
    pub seconds: f64,
}

/// Runs all checks on a device.
pub fn run(gpu: &dyn Gpu) -> Vec<Outcome> {
    let run = |check: &Check| {
        let started = Instant::now();
        let error = (check.run)(gpu).err();
        Outcome { name: check.name, error, seconds: started.elapsed().as_secs_f64() }
    };
    CHECKS.iter().map(run).collect()
}

/// Returns an error of `check` unless the values are equal.
fn expect_equal<T: PartialEq + std::fmt::Debug>(
    check: &'static str,
    found: &[T],
    wanted: &[T],
) -> Result<(), GpuError> {
    if found.len() != wanted.len() {
        let (found, wanted) = (found.len(), wanted.len());
        return fail(check, format!("{found} values instead of {wanted}"));
    }
    match found.iter().zip(wanted).position(|(found, wanted)| found != wanted) {
        None => Ok(()),
        Some(index) => {
            let (found, wanted) = (&found[index], &wanted[index]);
            fail(check, format!("value {index} is {found:?} instead of {wanted:?}"))
        }
    }
}

fn fail<T>(check: &'static str, problem: String) -> Result<T, GpuError> {
    Err(GpuError::Check { check, problem })
}

/// Returns the error that a call must give.
fn expect_error<T>(
    check: &'static str,
    outcome: Result<T, GpuError>,
) -> Result<GpuError, GpuError> {
    match outcome {
        Ok(_) => fail(check, "a wrong call was accepted".into()),
        Err(error @ (GpuError::Lost { .. } | GpuError::Mistake(_))) => Err(error),
        Err(error) => Ok(error),
    }
}

/// Downloads memory as whole numbers.
fn download(gpu: &dyn Gpu, stream: Stream, from: Memory) -> Result<Vec<u32>, GpuError> {
    let mut values = vec![0u32; from.bytes() / 4];
    gpu.download(stream, bytemuck::cast_slice_mut(&mut values), from)?;
    Ok(values)
}

/// Allocates memory for `count` numbers and uploads them.
fn upload(gpu: &dyn Gpu, stream: Stream, values: &[u32]) -> Result<Memory, GpuError> {
    let memory = gpu.allocate(values.len() * 4)?;
    gpu.upload(stream, memory, bytemuck::cast_slice(values))?;
    Ok(memory)
}

/// Frees several allocations, one after the other.
fn free_all(gpu: &dyn Gpu, all: &[Memory]) -> Result<(), GpuError> {
    all.iter().try_for_each(|memory| gpu.free(*memory))
}
