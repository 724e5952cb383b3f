//! The description of a device, and its counters.

use serde::Serialize;

use super::error::GpuError;
use super::libraries::PRODUCTS;

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A real device by the CUDA driver.
    Cuda,
    /// A device that this process emulates.
    Emulated,
}

/// A library of the GPU: whether it was found, where, and its version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LibraryInfo {
    /// The name of the file that is searched, such as `libcuda.so.1`.
    pub name: &'static str,
    /// The path from which the library was loaded; `None` if it was not found.
    pub path: Option<String>,
    /// The version that the library reports.
    pub version: Option<String>,
    /// The problem of the library and the remedy; `None` if it can be used.
    pub problem: Option<String>,
}

/// The properties of a device.
#[derive(Clone, Debug, Serialize)]
pub struct Info {
    /// The kind of the device.
    pub kind: Kind,
    /// The name, such as `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// The number of the device on this machine.
    pub ordinal: usize,
    /// The architecture, such as `sm_90`.
    pub arch: String,
    /// The number of multiprocessors.
    pub multiprocessors: usize,
    /// The bytes of the memory.
    pub memory_bytes: u64,
    /// The bytes of the level-2 cache.
    pub cache_bytes: u64,
    /// The largest dynamic shared memory of a block, in bytes.
    pub shared_bytes: usize,
    /// The version of the driver, such as `580.126.09`; empty if the system does not say.
    pub driver: String,
    /// The libraries in use.
    pub libraries: Vec<LibraryInfo>,
    /// The hash of all kernels in use: of their cubins, by unit.
    pub kernels: Vec<(String, String)>,
    /// The seconds that compiling or loading the kernels took.
    pub kernel_seconds: f64,
    /// The number of units that were compiled and not found in the cache.
    pub compiled_units: usize,
}

impl Info {
    /// Returns the version of the library of products and its problem. Both are `None` for an
    /// emulated device, whose products need no library.
    pub fn product_library(&self) -> (Option<&str>, Option<GpuError>) {
        let found = self.libraries.iter().find(|library| library.name == PRODUCTS);
        let problem = found.and_then(|library| library.problem.clone());
        let error = problem.map(|problem| GpuError::Library { library: PRODUCTS, problem });
        (found.and_then(|library| library.version.as_deref()), error)
    }
}

/// The counts of a device since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// The number of times that the host waited for the device.
    pub host_waits: u64,
    /// The number of allocations of device memory.
    pub allocations: u64,
    /// The number of allocations of pinned memory.
    pub pinned_allocations: u64,
    /// The number of enqueued kernels, without those of replays.
    pub launches: u64,
    /// The number of enqueued products, without those of replays.
    pub products: u64,
    /// The number of replays of graphs.
    pub replays: u64,
    /// The bytes of device memory that are allocated now, with those of the library of products.
    pub live_bytes: u64,
    /// The number of streams that exist now.
    pub live_streams: u64,
    /// The number of events that exist now.
    pub live_events: u64,
}
