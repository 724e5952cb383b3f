//! A GPU that this process emulates, for tests of kernels and of the code that drives a GPU.
//!
//! The kernels are the same sources as those of a real device, compiled as C++. The rest is made to
//! be unkind: operations run late and in random legal orders, fresh memory is poisoned, freed
//! memory cannot be accessed, pinned memory is read when a copy runs, and what the host does with
//! pinned memory is checked against the copies that have not run. Host waits and allocations are
//! counted, and an allocation or a launch can be made to fail.

mod capture;
mod memory;
mod operation;
mod pinned;
mod product;
mod state;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::device::{Event, Gpu, Graph, Stream};
use super::error::GpuError;
use super::info::{Counters, Info, Kind};
use super::kernels;
use super::launch::Launch;
use super::memory::{Memory, Pinned};
use super::product::{Algorithm, Epilogue, Product};
use capture::Capture;
use operation::{Action, HostRange};
pub use state::Pace;
use state::State;

/// The dynamic shared memory of a block, as on an H100.
const SHARED_BYTES: u32 = 227 << 10;
/// The algorithms that the stand-in for the library of products proposes. They add up in ascending
/// and in descending order.
const ALGORITHMS: [Algorithm; 2] = [[1; 64], [2; 64]];

/// The bytes that the stand-in for the library of products takes for each stream. It leaves them
/// alone; they are there so that a program that keeps them is seen.
const WORKSPACE: usize = 4 << 10;

/// The behaviour of an emulated device.
#[derive(Clone, Debug)]
pub struct EmulatedOptions {
    /// The seed of all random choices.
    pub seed: u64,
    /// The time at which operations run.
    pub pace: Pace,
    /// The fastest algorithm of products: 0 for sums in ascending order, and 1 for sums in
    /// descending order, whose bits differ.
    pub fastest: usize,
    /// The bytes of the device's memory.
    pub memory_bytes: u64,
    /// The number of the allocation that fails, counted from 1.
    pub fail_allocation: Option<u64>,
    /// The number of the kernel that fails when it runs, counted from 1.
    pub fail_launch: Option<u64>,
}

impl EmulatedOptions {
    /// Chooses the pace by the seed, and the fastest algorithm by its hundreds. So devices with
    /// seeds below 100 give products the same bits, and those from 100 to 199 other ones.
    pub fn seeded(seed: u64) -> Self {
        let pace = match seed % 4 {
            0 | 1 => Pace::Lazy,
            2 => Pace::Mixed,
            _ => Pace::Eager,
        };
        let fastest = (seed / 100 % 2) as usize;
        Self {
            seed,
            pace,
            fastest,
            memory_bytes: 4 << 30,
            fail_allocation: None,
            fail_launch: None,
        }
    }
}

/// A device that this process emulates.
pub struct Emulated {
    info: Info,
    options: EmulatedOptions,
    state: Arc<Mutex<State>>,
}

impl fmt::Debug for Emulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Emulated").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Emulated {
    /// Creates a device without memory in use.
    pub fn new(options: EmulatedOptions) -> Self {
        let info = Info {
            kind: Kind::Emulated,
            name: "emulated device".into(),
            ordinal: 0,
            arch: "emulated".into(),
            multiprocessors: 4,
            memory_bytes: options.memory_bytes,
            cache_bytes: 0,
            shared_bytes: SHARED_BYTES as usize,
            driver: String::new(),
            libraries: Vec::new(),
            kernels: Vec::new(),
            kernel_seconds: 0.0,
            compiled_units: 0,
        };
        let state = State::new(options.seed, options.pace, options.fail_launch);
        Self { info, options, state: Arc::new(Mutex::new(state)) }
    }

    /// Returns the number of kernels that have run, with those of replays. The next one has the
    /// number above, by which it can be made to fail.
    pub fn kernels_run(&self) -> u64 {
        self.lock().kernels_run
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state, unless the device has failed.
    fn enter(&self) -> Result<MutexGuard<'_, State>, GpuError> {
        let state = self.lock();
        state.check_failed()?;
        Ok(state)
    }

    /// Returns the state for a host wait, which is counted.
    fn enter_to_wait(&self) -> Result<MutexGuard<'_, State>, GpuError> {
        let mut state = self.enter()?;
        refuse_in_capture(&state, "the host waits")?;
        state.counters.host_waits += 1;
        Ok(state)
    }

    fn allocate_in(&self, state: &mut State, bytes: usize) -> Result<Memory, GpuError> {
        let free = self.options.memory_bytes.saturating_sub(state.ranges.live_bytes());
        state.counters.allocations += 1;
        let number = state.counters.allocations;
        if bytes as u64 > free || self.options.fail_allocation == Some(number) {
            return Err(GpuError::OutOfMemory { bytes, free });
        }
        let address =
            state.store.allocate(bytes).map_err(|_| GpuError::OutOfMemory { bytes, free })?;
        let memory = Memory::new(address, bytes);
        state.ranges.insert(memory);
        Ok(memory)
    }
}

fn refuse_in_capture(state: &State, what: &str) -> Result<(), GpuError> {
    match &state.capture {
        Some(_) => Err(GpuError::Capture(format!("{what} while a stream records"))),
        None => Ok(()),
    }
}

fn free_in(state: &mut State, memory: Memory) -> Result<(), GpuError> {
    state.ranges.remove(memory)?;
    if let Some(label) = state.find_user(memory.address()) {
        state.note_mistake(format!("memory was freed before {label} had run"));
    }
    if let Err(text) = state.store.free(memory.address()) {
        state.note_mistake(text);
    }
    state.check_failed()
}

fn refuse(product: &Product, problem: String) -> GpuError {
    GpuError::Product { product: product.label(), problem }
}

fn check_product(state: &State, product: &Product) -> Result<(), GpuError> {
    if let Some(problem) = product.problem() {
        return Err(refuse(product, problem));
    }
    for memory in [product.a, product.b, product.c] {
        state.ranges.check(memory)?;
    }
    match product.epilogue {
        Epilogue::None => Ok(()),
        Epilogue::Bias | Epilogue::BiasRelu => state.ranges.check(product.bias),
    }
}

impl Gpu for Emulated {
    fn info(&self) -> &Info {
        &self.info
    }

    fn counters(&self) -> Counters {
        self.lock().counters()
    }

    fn launches(&self) -> Vec<(&'static str, u64)> {
        self.lock().launches.iter().map(|(name, count)| (*name, *count)).collect()
    }

    fn free_bytes(&self) -> Result<u64, GpuError> {
        Ok(self.options.memory_bytes.saturating_sub(self.enter()?.ranges.live_bytes()))
    }

    fn allocate(&self, bytes: usize) -> Result<Memory, GpuError> {
        let mut state = self.enter()?;
        refuse_in_capture(&state, "memory is allocated")?;
        self.allocate_in(&mut state, bytes)
    }

    fn free(&self, memory: Memory) -> Result<(), GpuError> {
        let mut state = self.enter()?;
        refuse_in_capture(&state, "memory is freed")?;
        state.counters.host_waits += 1;
        free_in(&mut state, memory)
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<Pinned, GpuError> {
        let mut state = self.enter()?;
        refuse_in_capture(&state, "pinned memory is allocated")?;
        state.counters.pinned_allocations += 1;
        state.next_pinned += 1;
        pinned::allocate(&self.state, state.next_pinned, bytes)
    }

    fn create_stream(&self) -> Result<Stream, GpuError> {
        Ok(self.enter()?.add_stream())
    }

    fn free_stream(&self, stream: Stream) -> Result<(), GpuError> {
        let mut state = self.enter()?;
        refuse_in_capture(&state, "a stream is freed")?;
        state.counters.host_waits += 1;
        state.remove_stream(stream)?;
        let workspace = state.workspaces.remove(&stream);
        workspace.map_or(Ok(()), |memory| free_in(&mut state, memory))
    }

    fn create_event(&self, is_timed: bool) -> Result<Event, GpuError> {
        Ok(self.enter()?.add_event(is_timed))
    }

    fn free_event(&self, event: Event) -> Result<(), GpuError> {
        self.enter()?.remove_event(event)
    }

    fn record(&self, event: Event, stream: Stream) -> Result<(), GpuError> {
        self.enter()?.record(event, stream)
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<(), GpuError> {
        self.enter()?.wait(stream, event)
    }

    fn is_done(&self, event: Event) -> Result<bool, GpuError> {
        let mut state = self.enter()?;
        // Some progress at each question, so that a program that asks again and again ends.
        state.run_next()?;
        state.is_done(event)
    }

    fn synchronize_event(&self, event: Event) -> Result<(), GpuError> {
        self.enter_to_wait()?.finish_event(event)
    }

    fn elapsed(&self, from: Event, to: Event) -> Result<f64, GpuError> {
        Ok(self.enter()?.elapsed(from, to)? as f64 * 1e-6)
    }

    fn synchronize(&self, stream: Stream) -> Result<(), GpuError> {
        self.enter_to_wait()?.finish(stream)
    }

    fn copy_in(
        &self,
        stream: Stream,
        to: Memory,
        from: &Pinned,
        offset: usize,
    ) -> Result<(), GpuError> {
        let mut state = self.enter()?;
        let place = from.place(offset, to.bytes())?;
        state.ranges.check(to)?;
        let from = HostRange::new(from.owner().number(), offset, place, from.owner());
        state.enqueue(stream, Action::CopyIn { to, from })
    }

    fn copy_out(
        &self,
        stream: Stream,
        to: &Pinned,
        offset: usize,
        from: Memory,
    ) -> Result<(), GpuError> {
        let mut state = self.enter()?;
        let place = to.place(offset, from.bytes())?;
        state.ranges.check(from)?;
        let to = HostRange::new(to.owner().number(), offset, place, to.owner());
        state.enqueue(stream, Action::CopyOut { to, from })
    }

    fn copy(&self, stream: Stream, to: Memory, from: Memory) -> Result<(), GpuError> {
        let mut state = self.enter()?;
        let to = to.part(0, from.bytes())?;
        state.ranges.check(from)?;
        state.ranges.check(to)?;
        state.enqueue(stream, Action::Copy { to, from })
    }

    fn fill(&self, stream: Stream, to: Memory, byte: u8) -> Result<(), GpuError> {
        let mut state = self.enter()?;
        state.ranges.check(to)?;
        state.enqueue(stream, Action::Fill { to, byte })
    }

    fn upload(&self, stream: Stream, to: Memory, from: &[u8]) -> Result<(), GpuError> {
        let mut state = self.enter_to_wait()?;
        let to = to.part(0, from.len())?;
        state.ranges.check(to)?;
        state.finish(stream)?;
        // SAFETY: the range is live, as the check says, and apart from the host's memory.
        unsafe {
            std::ptr::copy_nonoverlapping(from.as_ptr(), to.address() as *mut u8, from.len());
        }
        Ok(())
    }

    fn download(&self, stream: Stream, to: &mut [u8], from: Memory) -> Result<(), GpuError> {
        let mut state = self.enter_to_wait()?;
        let from = from.part(0, to.len())?;
        state.ranges.check(from)?;
        state.finish(stream)?;
        // SAFETY: as in `upload`.
        unsafe {
            std::ptr::copy_nonoverlapping(from.address() as *const u8, to.as_mut_ptr(), to.len());
        }
        Ok(())
    }

    fn launch(&self, stream: Stream, launch: &Launch<'_>) -> Result<(), GpuError> {
        let mut state = self.enter()?;
        if !kernels::KERNELS.iter().any(|kernel| kernel.name == launch.kernel.name) {
            return Err(launch.unknown_kernel());
        }
        if let Some(problem) = launch.problem() {
            return Err(launch.refuse(problem));
        }
        if launch.shared_bytes > SHARED_BYTES {
            let bytes = launch.shared_bytes;
            return Err(launch.refuse(format!("{bytes} bytes of shared memory are too many")));
        }
        let action = Action::launch(launch).map_err(|problem| launch.refuse(problem))?;
        state.enqueue(stream, action)?;
        state.counters.launches += 1;
        *state.launches.entry(launch.kernel.name).or_default() += 1;
        Ok(())
    }

    fn prepare(&self, stream: Stream, product: &Product) -> Result<(), GpuError> {
        let mut state = self.enter_to_wait()?;
        check_product(&state, product)?;
        state.finish(stream)?;
        let fastest = ALGORITHMS[self.options.fastest % ALGORITHMS.len()];
        state.prepared.entry(product.key()).or_insert(fastest);
        if !state.workspaces.contains_key(&stream) {
            let memory = self.allocate_in(&mut state, WORKSPACE)?;
            state.workspaces.insert(stream, memory);
        }
        Ok(())
    }

    fn algorithm(&self, product: &Product) -> Option<Algorithm> {
        self.lock().prepared.get(&product.key()).copied()
    }

    fn set_algorithm(&self, product: &Product, algorithm: Algorithm) -> Result<(), GpuError> {
        let mut state = self.enter()?;
        if let Some(problem) = product.problem() {
            return Err(refuse(product, problem));
        }
        if !ALGORITHMS.contains(&algorithm) {
            return Err(refuse(product, "the kept algorithm does not fit this device".into()));
        }
        state.prepared.insert(product.key(), algorithm);
        Ok(())
    }

    fn multiply(&self, stream: Stream, product: &Product) -> Result<(), GpuError> {
        let mut state = self.enter()?;
        check_product(&state, product)?;
        let algorithm = state.prepared.get(&product.key());
        let (Some(algorithm), true) = (algorithm, state.workspaces.contains_key(&stream)) else {
            return Err(refuse(product, "it was not prepared on this stream".into()));
        };
        let is_descending = *algorithm == ALGORITHMS[1];
        state.enqueue(stream, Action::Multiply { product: *product, is_descending })?;
        state.counters.products += 1;
        Ok(())
    }

    fn begin_capture(&self, stream: Stream) -> Result<(), GpuError> {
        let mut state = self.enter()?;
        refuse_in_capture(&state, "another stream records")?;
        state.capture = Some(Capture::new(stream));
        Ok(())
    }

    fn end_capture(&self, stream: Stream) -> Result<Graph, GpuError> {
        let mut state = self.enter()?;
        let Some(capture) = state.capture.take_if(|capture| capture.origin == stream) else {
            return Err(GpuError::Capture("this stream does not record".into()));
        };
        let nodes = capture.finish()?;
        Ok(state.add_graph(nodes))
    }

    fn replay(&self, stream: Stream, graph: Graph) -> Result<(), GpuError> {
        let mut state = self.enter()?;
        refuse_in_capture(&state, "a graph is replayed")?;
        state.enqueue_replay(stream, graph)?;
        state.counters.replays += 1;
        Ok(())
    }

    fn free_graph(&self, graph: Graph) -> Result<(), GpuError> {
        let mut state = self.enter()?;
        refuse_in_capture(&state, "a graph is freed")?;
        state.counters.host_waits += 1;
        state.remove_graph(graph)
    }
}
