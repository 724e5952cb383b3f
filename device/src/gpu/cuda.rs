//! A real device by the CUDA driver.
//!
//! The libraries are opened at run time. Before the first call, [`libraries`] checks that each is
//! there and has a version that the bindings know: a missing library or function would end the
//! program. Streams, events and memory are our own handles, and the order of operations is only
//! what events say: the bindings' own tracking of memory does not go together with the capture of
//! graphs, and is not used.

mod context;
mod cublaslt;
mod errors;
mod modules;
mod pinned;
mod state;
mod transfers;

use std::ffi::c_void;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use cudarc::driver::sys::{
    CUdevice_attribute, CUevent_flags, CUevent_wait_flags, CUgraphInstantiate_flags, CUresult,
    CUstreamCaptureMode,
};
use cudarc::driver::{DriverError, result};

use super::compile;
use super::device::{Event, Gpu, Graph, Stream};
use super::error::GpuError;
use super::info::{Counters, Info, Kind};
use super::launch::Launch;
pub use super::libraries::libraries;
use super::libraries::{compiler_library, driver_library, product_library};
use super::memory::{Memory, Pinned};
use super::product::{Algorithm, Product};
use context::Context;
use cublaslt::Products;
use modules::Modules;
use state::{GraphEntry, State};

/// The options for opening a device.
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// The number of the device.
    pub ordinal: usize,
    /// The folder of compiled kernels; `None` for the usual one.
    pub kernel_folder: Option<PathBuf>,
    /// The number of threads that compile kernels; 0 for one per processor.
    pub threads: usize,
}

/// A real device, opened by the CUDA driver.
pub struct Cuda {
    info: Info,
    state: Mutex<State>,
    products: Mutex<Option<Products>>,
    context: Arc<Context>,
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cuda").field("name", &self.info.name).finish_non_exhaustive()
    }
}

impl Cuda {
    /// Opens a device: checks the libraries, makes a context, and loads the kernels, which are
    /// compiled if the folder does not have them.
    ///
    /// # Errors
    ///
    /// Returns an error if a library or the device is missing, or if a kernel cannot be compiled or
    /// loaded.
    pub fn open(options: &CudaOptions) -> Result<Self, GpuError> {
        let context = Arc::new(Context::open(options.ordinal)?);
        use CUdevice_attribute as At;
        let major = context.attribute(At::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
        let minor = context.attribute(At::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
        let arch = format!("sm_{major}{minor}");
        let count = |which| usize::try_from(context.attribute(which)).unwrap_or_default();

        let started = Instant::now();
        let folder = compile::kernel_folder(options.kernel_folder.as_deref())?;
        let threads = match options.threads {
            0 => crate::machine::cpus().get(),
            threads => threads,
        };
        let binaries = compile::binaries(&arch, &folder, threads)?;
        let modules = Modules::load(&binaries, &arch)?;
        let kernel_seconds = started.elapsed().as_secs_f64();

        let product_library = product_library();
        let products = match product_library.problem {
            None => Some(Products::new()?),
            Some(_) => None,
        };
        let info = Info {
            kind: Kind::Cuda,
            name: context.name(),
            ordinal: options.ordinal,
            arch,
            multiprocessors: count(At::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
            memory_bytes: context.memory_bytes(),
            cache_bytes: count(At::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE) as u64,
            shared_bytes: count(At::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
            driver: crate::machine::gpus().map(|gpus| gpus.driver).unwrap_or_default(),
            libraries: vec![driver_library(), compiler_library(), product_library],
            kernels: binaries.iter().map(|one| (one.unit.to_owned(), one.hash.clone())).collect(),
            kernel_seconds,
            compiled_units: binaries.iter().filter(|one| one.is_compiled).count(),
        };
        let state = Mutex::new(State::new(modules));
        Ok(Self { info, state, products: Mutex::new(products), context })
    }

    /// Makes the context current and returns the state, unless the device has failed.
    fn enter(&self) -> Result<MutexGuard<'_, State>, GpuError> {
        let state = self.lock();
        if let Some(error) = &state.lost {
            return Err(error.clone());
        }
        self.context.bind().map_err(|error| driver("be used by this thread", error))?;
        Ok(state)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the state was locked leaves only counts behind that may be wrong.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_products(&self) -> MutexGuard<'_, Option<Products>> {
        self.products.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the error of a call that has nothing to do with a kernel.
fn driver(action: &'static str, error: DriverError) -> GpuError {
    GpuError::Driver { action, problem: errors::describe(error) }
}

impl Gpu for Cuda {
    fn info(&self) -> &Info {
        &self.info
    }

    fn counters(&self) -> Counters {
        self.lock().counters()
    }

    fn launches(&self) -> Vec<(&'static str, u64)> {
        self.lock().modules.launches()
    }

    fn free_bytes(&self) -> Result<u64, GpuError> {
        let mut state = self.enter()?;
        let outcome = result::mem_get_info();
        let (free, _) = state.note("tell its free memory", outcome)?;
        Ok(free as u64)
    }

    fn allocate(&self, bytes: usize) -> Result<Memory, GpuError> {
        let mut state = self.enter()?;
        state.refuse_in_capture("memory is allocated")?;
        state.allocate(bytes)
    }

    fn free(&self, memory: Memory) -> Result<(), GpuError> {
        let mut state = self.enter()?;
        state.refuse_in_capture("memory is freed")?;
        state.free(memory)
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<Pinned, GpuError> {
        let mut state = self.enter()?;
        state.refuse_in_capture("pinned memory is allocated")?;
        state.counters.pinned_allocations += 1;
        pinned::allocate(&self.context, bytes)
    }

    fn create_stream(&self) -> Result<Stream, GpuError> {
        let mut state = self.enter()?;
        let outcome = result::stream::create(result::stream::StreamKind::NonBlocking);
        let stream = state.note("create a stream", outcome)?;
        state.add_stream(stream)
    }

    fn free_stream(&self, stream: Stream) -> Result<(), GpuError> {
        let mut state = self.enter()?;
        state.refuse_in_capture("a stream is freed")?;
        let handle = state.remove_stream(stream)?;
        state.counters.host_waits += 1;
        state.note("finish its work", result::ctx::synchronize())?;
        if let Some(products) = self.lock_products().as_mut() {
            products.release(&mut state, stream)?;
        }
        // SAFETY: the stream was live, is gone from the table, and its operations have run.
        let outcome = unsafe { result::stream::destroy(handle) };
        state.note("free a stream", outcome)
    }

    fn create_event(&self, is_timed: bool) -> Result<Event, GpuError> {
        let mut state = self.enter()?;
        let flags = match is_timed {
            true => CUevent_flags::CU_EVENT_DEFAULT,
            false => CUevent_flags::CU_EVENT_DISABLE_TIMING,
        };
        let outcome = result::event::create(flags);
        let event = state.note("create an event", outcome)?;
        state.add_event(event)
    }

    fn free_event(&self, event: Event) -> Result<(), GpuError> {
        let mut state = self.enter()?;
        let handle = state.remove_event(event)?;
        // SAFETY: the event was live and is gone from the table. The driver lets operations that
        // still wait for it end.
        let outcome = unsafe { result::event::destroy(handle) };
        state.note("free an event", outcome)
    }

    fn record(&self, event: Event, stream: Stream) -> Result<(), GpuError> {
        let mut state = self.enter()?;
        let (event, stream) = (state.event(event)?, state.stream(stream)?);
        // SAFETY: both handles are live, because they are in the tables.
        let outcome = unsafe { result::event::record(event, stream) };
        state.note("record an event", outcome)
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<(), GpuError> {
        let mut state = self.enter()?;
        let (event, stream) = (state.event(event)?, state.stream(stream)?);
        let flags = CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: as in `record`.
        let outcome = unsafe { result::stream::wait_event(stream, event, flags) };
        state.note("let a stream wait for an event", outcome)
    }

    fn is_done(&self, event: Event) -> Result<bool, GpuError> {
        let mut state = self.enter()?;
        let event = state.event(event)?;
        // SAFETY: as in `record`.
        match unsafe { result::event::query(event) } {
            Err(DriverError(CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            outcome => state.note("ask for an event", outcome).map(|()| true),
        }
    }

    fn synchronize_event(&self, event: Event) -> Result<(), GpuError> {
        let event = {
            let mut state = self.enter()?;
            state.refuse_in_capture("the host waits")?;
            state.counters.host_waits += 1;
            state.event(event)?
        };
        // SAFETY: as in `record`. The lock is not held, so that other threads can enqueue.
        let outcome = unsafe { result::event::synchronize(event) };
        self.lock().note("wait for an event", outcome)
    }

    fn elapsed(&self, from: Event, to: Event) -> Result<f64, GpuError> {
        let mut state = self.enter()?;
        let (from, to) = (state.event(from)?, state.event(to)?);
        // SAFETY: as in `record`.
        let outcome = unsafe { result::event::elapsed(from, to) };
        let milliseconds = state.note("measure the time between two events", outcome)?;
        Ok(f64::from(milliseconds) / 1e3)
    }

    fn synchronize(&self, stream: Stream) -> Result<(), GpuError> {
        let stream = {
            let mut state = self.enter()?;
            state.refuse_in_capture("the host waits")?;
            state.counters.host_waits += 1;
            state.stream(stream)?
        };
        // SAFETY: as in `synchronize_event`.
        let outcome = unsafe { result::stream::synchronize(stream) };
        self.lock().note("finish its work", outcome)
    }

    fn copy_in(
        &self,
        stream: Stream,
        to: Memory,
        from: &Pinned,
        offset: usize,
    ) -> Result<(), GpuError> {
        transfers::copy_in(&mut *self.enter()?, stream, to, from, offset)
    }

    fn copy_out(
        &self,
        stream: Stream,
        to: &Pinned,
        offset: usize,
        from: Memory,
    ) -> Result<(), GpuError> {
        transfers::copy_out(&mut *self.enter()?, stream, to, offset, from)
    }

    fn copy(&self, stream: Stream, to: Memory, from: Memory) -> Result<(), GpuError> {
        transfers::copy(&mut *self.enter()?, stream, to, from)
    }

    fn fill(&self, stream: Stream, to: Memory, byte: u8) -> Result<(), GpuError> {
        transfers::fill(&mut *self.enter()?, stream, to, byte)
    }

    fn upload(&self, stream: Stream, to: Memory, from: &[u8]) -> Result<(), GpuError> {
        transfers::upload(&mut *self.enter()?, stream, to, from)
    }

    fn download(&self, stream: Stream, to: &mut [u8], from: Memory) -> Result<(), GpuError> {
        transfers::download(&mut *self.enter()?, stream, to, from)
    }

    fn launch(&self, stream: Stream, launch: &Launch<'_>) -> Result<(), GpuError> {
        let mut state = self.enter()?;
        let label = launch.label();
        if let Some(problem) = launch.problem() {
            return Err(launch.refuse(problem));
        }
        let stream = state.stream(stream)?;
        let function = state.modules.function(launch)?;
        let mut params = [std::ptr::null_mut::<c_void>(); MOST_PARAMS];
        if launch.params.len() > MOST_PARAMS {
            return Err(launch.refuse(format!("a launch has at most {MOST_PARAMS} parameters")));
        }
        for (place, param) in params.iter_mut().zip(launch.params) {
            *place = param.as_bytes().as_ptr().cast_mut().cast::<c_void>();
        }
        let ([gx, gy, gz], [bx, by, bz]) = (launch.grid, launch.block);
        let (count, shared) = (launch.params.len(), launch.shared_bytes);
        let params = &mut params[..count];
        // SAFETY: the function and the stream are live. The parameters are as many and as large as
        // the table of kernels says, and the driver reads them before it returns. What the kernel
        // does with addresses stays in the memory of the device, or ends with an error.
        let outcome = unsafe {
            result::launch_kernel(function, (gx, gy, gz), (bx, by, bz), shared, stream, params)
        };
        match outcome {
            Ok(()) => {
                state.note_launch(label);
                Ok(())
            }
            Err(error) if errors::is_fatal(error) => state.note("launch a kernel", Err(error)),
            Err(error) => Err(launch.refuse(errors::describe(error))),
        }
    }

    fn prepare(&self, stream: Stream, product: &Product) -> Result<(), GpuError> {
        let mut state = self.enter()?;
        state.refuse_in_capture("a product is prepared")?;
        Products::of(&mut self.lock_products())?.prepare(&mut state, stream, product)
    }

    fn algorithm(&self, product: &Product) -> Option<Algorithm> {
        self.lock_products().as_ref()?.algorithm(product)
    }

    fn set_algorithm(&self, product: &Product, algorithm: Algorithm) -> Result<(), GpuError> {
        let _state = self.enter()?;
        Products::of(&mut self.lock_products())?.set_algorithm(product, algorithm)
    }

    fn multiply(&self, stream: Stream, product: &Product) -> Result<(), GpuError> {
        let mut state = self.enter()?;
        Products::of(&mut self.lock_products())?.multiply(&mut state, stream, product)
    }

    fn begin_capture(&self, stream: Stream) -> Result<(), GpuError> {
        let mut state = self.enter()?;
        if state.capture.is_some() {
            return Err(GpuError::Capture("another stream records already".into()));
        }
        let handle = state.stream(stream)?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is live.
        let outcome = unsafe { result::stream::begin_capture(handle, mode) };
        state.note("begin to record a graph", outcome)?;
        state.capture = Some((stream, Vec::new()));
        Ok(())
    }

    fn end_capture(&self, stream: Stream) -> Result<Graph, GpuError> {
        let mut state = self.enter()?;
        match &state.capture {
            Some((origin, _)) if *origin == stream => {}
            _ => return Err(GpuError::Capture("this stream does not record".into())),
        }
        let handle = state.stream(stream)?;
        let keeps = state.capture.take().map(|(_, keeps)| keeps).unwrap_or_default();
        let capture = |error: DriverError| GpuError::Capture(errors::describe(error));
        // SAFETY: the stream is live and records.
        let graph = unsafe { result::stream::end_capture(handle) }.map_err(capture)?;
        if graph.is_null() {
            return Err(GpuError::Capture("the driver made no graph".into()));
        }
        // SAFETY: the graph is live; it is destroyed once, and what was made of it stays.
        let made = unsafe { result::graph::instantiate(graph, CUgraphInstantiate_flags(0)) };
        // SAFETY: as above. A failure cannot be acted on.
        let _ = unsafe { result::graph::destroy(graph) };
        let exec = made.map_err(capture)?;
        // SAFETY: both handles are live.
        let outcome = unsafe { result::graph::upload(exec, handle) };
        state.note("prepare a graph", outcome)?;
        state.add_graph(GraphEntry { exec, _keeps: keeps })
    }

    fn replay(&self, stream: Stream, graph: Graph) -> Result<(), GpuError> {
        let mut state = self.enter()?;
        let (handle, exec) = (state.stream(stream)?, state.graph(graph)?);
        // SAFETY: both handles are live.
        let outcome = unsafe { result::graph::launch(exec, handle) };
        state.note("replay a graph", outcome)?;
        state.counters.replays += 1;
        state.note_replay(graph);
        Ok(())
    }

    fn free_graph(&self, graph: Graph) -> Result<(), GpuError> {
        let mut state = self.enter()?;
        state.refuse_in_capture("a graph is freed")?;
        let entry = state.remove_graph(graph)?;
        state.counters.host_waits += 1;
        state.note("finish its work", result::ctx::synchronize())?;
        // SAFETY: the graph was live, is gone from the table, and its replays have run.
        let outcome = unsafe { result::graph::exec_destroy(entry.exec) };
        state.note("free a graph", outcome)
    }
}

/// The largest number of parameters of a launch.
const MOST_PARAMS: usize = 32;

impl Drop for Cuda {
    fn drop(&mut self) {
        if self.context.bind().is_err() {
            return;
        }
        // What fails from here on cannot be acted on: the end of the process frees the rest.
        let _ = result::ctx::synchronize();
        if let Some(products) = self.lock_products().take() {
            products.destroy();
        }
        self.lock().destroy();
    }
}
