//! Matrix products by cuBLASLt.
//!
//! The library is column-major and our matrices are row-major, so it computes the transpose: C' =
//! B' · A', and a row-major matrix is the column-major one of its transpose without any copy. The
//! library's first proposal of an algorithm is often not the fastest. So the up to eight proposals
//! are timed once for each shape, and the fastest is kept; a product never looks for one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_void;
use std::mem;
use std::ptr;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use cudarc::driver::result as driver;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstream, CUstreamCaptureMode};

use super::errors::{describe, describe_products};
use super::state::State;
use crate::gpu::device::Stream;
use crate::gpu::error::GpuError;
use crate::gpu::libraries::{PRODUCTS, product_library};
use crate::gpu::memory::Memory;
use crate::gpu::product::{Algorithm, Element, Epilogue, Precision, Product, ProductKey};

use sys::cublasLtMatmulDescAttributes_t as Attribute;
use sys::cublasLtMatmulPreferenceAttributes_t as Preference;

/// The bytes of the workspace of a stream. The library may use less.
const WORKSPACE: usize = 64 << 20;
/// The number of proposals that the library is asked for. It never makes more.
const PROPOSALS: usize = 8;
/// The number of products in a timed graph, and how often the graph is timed.
const TIMED: (usize, usize) = (8, 3);

/// The description of a product for the library, with its algorithm.
struct Plan {
    description: sys::cublasLtMatmulDesc_t,
    /// The layouts of the library's first operand (our B), its second (our A), and its output.
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
}

/// The library of products on one device.
pub(super) struct Products {
    handle: sys::cublasLtHandle_t,
    plans: HashMap<ProductKey, Plan>,
    workspaces: HashMap<Stream, Memory>,
}

// SAFETY: the library may be used by every thread, and the value is behind a lock.
unsafe impl Send for Products {}

impl Products {
    /// Opens the library, which must be present. The context must be current.
    pub(super) fn new() -> Result<Self, GpuError> {
        let handle = result::create_handle().map_err(|error| GpuError::Library {
            library: PRODUCTS,
            problem: format!("does not start ({})", describe_products(error)),
        })?;
        Ok(Self { handle, plans: HashMap::new(), workspaces: HashMap::new() })
    }

    /// Returns the library, or the error of a machine without it.
    pub(super) fn of(products: &mut Option<Self>) -> Result<&mut Self, GpuError> {
        products.as_mut().ok_or_else(|| {
            let problem = product_library().problem.unwrap_or_default();
            GpuError::Library { library: PRODUCTS, problem }
        })
    }

    pub(super) fn prepare(
        &mut self,
        state: &mut State,
        stream: Stream,
        product: &Product,
    ) -> Result<(), GpuError> {
        check(state, product)?;
        let handle = state.stream(stream)?;
        if let Entry::Vacant(entry) = self.workspaces.entry(stream) {
            entry.insert(state.allocate(WORKSPACE)?);
        }
        let key = product.key();
        if self.plans.contains_key(&key) {
            return Ok(());
        }
        let mut plan = Plan::new(product)?;
        let outcome = self.choose(state, handle, stream, product, &mut plan);
        match outcome {
            Ok(()) => {
                self.plans.insert(key, plan);
                Ok(())
            }
            Err(error) => {
                plan.destroy();
                Err(error)
            }
        }
    }

    /// Times the library's proposals, and puts the fastest into the plan.
    fn choose(
        &self,
        state: &mut State,
        handle: CUstream,
        stream: Stream,
        product: &Product,
        plan: &mut Plan,
    ) -> Result<(), GpuError> {
        let proposals = self.proposals(product, plan)?;
        // The output goes elsewhere, so that C stays as it is.
        let scratch = state.allocate(product.c.bytes())?;
        let timed = Product { c: scratch, ..*product };
        let workspace = self.workspaces[&stream];
        let mut best: Option<(f64, usize)> = None;
        let mut problems = Vec::new();
        for (index, proposal) in proposals.iter().enumerate() {
            let run = || plan.run(self.handle, &timed, proposal, workspace, handle);
            match time(handle, run) {
                Ok(seconds) if best.is_none_or(|(least, _)| seconds < least) => {
                    best = Some((seconds, index));
                }
                Ok(_) => {}
                Err(problem) => problems.push(problem),
            }
        }
        state.free(scratch)?;
        let Some((_, index)) = best else {
            return Err(refuse(product, problems.join("; ")));
        };
        plan.algorithm = proposals[index];
        Ok(())
    }

    fn proposals(
        &self,
        product: &Product,
        plan: &Plan,
    ) -> Result<Vec<sys::cublasLtMatmulAlgo_t>, GpuError> {
        let fail = |error| refuse(product, describe_products(error));
        let preference = result::create_matmul_pref().map_err(fail)?;
        let set = |attribute: Preference, value: *const c_void, bytes: usize| {
            // SAFETY: the preference is live, and the value has as many bytes as the attribute.
            unsafe { result::set_matmul_pref_attribute(preference, attribute, value, bytes) }
        };
        let [a, b, c] = product.key().alignments();
        let workspace = WORKSPACE as u64;
        let ask = || -> Result<Vec<sys::cublasLtMatmulHeuristicResult_t>, CublasError> {
            let bytes = (&raw const workspace).cast();
            set(Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, bytes, 8)?;
            // The library's first operand is our B.
            let alignments = [
                (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b),
                (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a),
                (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c),
                (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, c),
            ];
            for (attribute, alignment) in alignments {
                set(attribute, (&raw const alignment).cast(), 4)?;
            }
            // SAFETY: a structure of numbers and of an enum that has a value for zero. Bytes that
            // the library leaves alone are then the same at each call.
            let empty: sys::cublasLtMatmulHeuristicResult_t = unsafe { mem::zeroed() };
            let mut found = vec![empty; PROPOSALS];
            let mut count = 0;
            let [first, second, output] = plan.layouts;
            // SAFETY: all handles are live, and the list has room for the proposals.
            let status = unsafe {
                sys::cublasLtMatmulAlgoGetHeuristic(
                    self.handle,
                    plan.description,
                    first,
                    second,
                    output,
                    output,
                    preference,
                    PROPOSALS as i32,
                    found.as_mut_ptr(),
                    &raw mut count,
                )
            };
            status.result()?;
            found.truncate(usize::try_from(count).unwrap_or_default());
            Ok(found)
        };
        let found: Result<Vec<sys::cublasLtMatmulHeuristicResult_t>, _> = ask();
        // SAFETY: the preference is destroyed once. A failure cannot be acted on.
        let _ = unsafe { result::destroy_matmul_pref(preference) };
        let found = found.map_err(fail)?;
        let good = sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS;
        let proposals: Vec<_> =
            found.iter().filter(|one| one.state == good).map(|one| one.algo).collect();
        if proposals.is_empty() {
            return Err(refuse(product, "the library proposes no algorithm".into()));
        }
        Ok(proposals)
    }

    pub(super) fn algorithm(&self, product: &Product) -> Option<Algorithm> {
        self.plans.get(&product.key()).map(|plan| bytes_of(&plan.algorithm))
    }

    pub(super) fn set_algorithm(
        &mut self,
        product: &Product,
        algorithm: Algorithm,
    ) -> Result<(), GpuError> {
        if let Some(problem) = product.problem() {
            return Err(refuse(product, problem));
        }
        let mut plan = Plan::new(product)?;
        // The library does not check arbitrary bytes safely. So the bytes must be one of its own
        // proposals, which depend on the shape, the GPU and the version only.
        let found = self.proposals(product, &plan).and_then(|proposals| {
            let problem = "the kept algorithm is not one that this GPU and library propose";
            let same = proposals.into_iter().find(|proposal| bytes_of(proposal) == algorithm);
            same.ok_or_else(|| refuse(product, problem.into()))
        });
        match found {
            Ok(found) => plan.algorithm = found,
            Err(error) => {
                plan.destroy();
                return Err(error);
            }
        }
        if let Some(old) = self.plans.insert(product.key(), plan) {
            old.destroy();
        }
        Ok(())
    }

    pub(super) fn multiply(
        &self,
        state: &mut State,
        stream: Stream,
        product: &Product,
    ) -> Result<(), GpuError> {
        check(state, product)?;
        let handle = state.stream(stream)?;
        let plan = self.plans.get(&product.key());
        let (Some(plan), Some(workspace)) = (plan, self.workspaces.get(&stream)) else {
            return Err(refuse(product, "it was not prepared on this stream".into()));
        };
        plan.run(self.handle, product, &plan.algorithm, *workspace, handle)
            .map_err(|problem| refuse(product, problem))?;
        state.counters.products += 1;
        Ok(())
    }

    /// Frees the workspace of a stream whose products have run. The context must be current.
    pub(super) fn release(&mut self, state: &mut State, stream: Stream) -> Result<(), GpuError> {
        self.workspaces.remove(&stream).map_or(Ok(()), |workspace| state.free(workspace))
    }

    /// Frees everything but the workspaces, which the device frees. The context must be current.
    pub(super) fn destroy(mut self) {
        for (_, plan) in self.plans.drain() {
            plan.destroy();
        }
        // SAFETY: the handle was created once and is not used again. A failure cannot be acted on.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

impl Plan {
    fn new(product: &Product) -> Result<Self, GpuError> {
        use sys::cublasComputeType_t as Compute;
        let fail = |error| refuse(product, describe_products(error));
        let compute = match product.precision {
            Precision::F32 | Precision::Bf16 => Compute::CUBLAS_COMPUTE_32F,
            Precision::Tf32 => Compute::CUBLAS_COMPUTE_32F_FAST_TF32,
        };
        let input = data_type(product.precision.element());
        let output = data_type(product.output);
        let description =
            result::create_matmul_desc(compute, sys::cudaDataType_t::CUDA_R_32F).map_err(fail)?;
        // SAFETY: a structure of numbers.
        let algorithm = unsafe { mem::zeroed() };
        let mut plan = Self { description, layouts: [ptr::null_mut(); 3], algorithm };
        let [a, b, c] = product.stored();
        let orders = [(b, product.ldb, input), (a, product.lda, input), (c, product.ldc, output)];
        for (place, ((rows, columns), leading, element)) in plan.layouts.iter_mut().zip(orders) {
            // The column-major matrix has as many rows as ours has columns.
            let made =
                result::create_matrix_layout(element, columns as u64, rows as u64, leading as i64);
            match made {
                Ok(layout) => *place = layout,
                Err(error) => {
                    plan.destroy();
                    return Err(fail(error));
                }
            }
        }
        // The library's numbers of "as stored" and "transposed".
        let turn = |flag: bool| u32::from(flag);
        let epilogue = match product.epilogue {
            Epilogue::None => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT,
            Epilogue::Bias => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
            Epilogue::BiasRelu => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU_BIAS,
        };
        let attributes = [
            (Attribute::CUBLASLT_MATMUL_DESC_TRANSA, turn(product.transpose_b)),
            (Attribute::CUBLASLT_MATMUL_DESC_TRANSB, turn(product.transpose_a)),
            (Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue as u32),
        ];
        for (attribute, value) in attributes {
            if let Err(error) = plan.set(attribute, &value) {
                plan.destroy();
                return Err(fail(error));
            }
        }
        if product.epilogue != Epilogue::None
            && let Err(error) = plan.set_bias(product)
        {
            plan.destroy();
            return Err(fail(error));
        }
        Ok(plan)
    }

    fn set<T>(&self, attribute: Attribute, value: &T) -> Result<(), CublasError> {
        let place = (&raw const *value).cast::<c_void>();
        // SAFETY: the description is live, and the callers give values of the attribute's size: the
        // library refuses others.
        unsafe {
            result::set_matmul_desc_attribute(self.description, attribute, place, size_of::<T>())
        }
    }

    fn set_bias(&self, product: &Product) -> Result<(), CublasError> {
        self.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &product.bias.address())
    }

    fn run(
        &self,
        handle: sys::cublasLtHandle_t,
        product: &Product,
        algorithm: &sys::cublasLtMatmulAlgo_t,
        workspace: Memory,
        stream: CUstream,
    ) -> Result<(), String> {
        if product.epilogue != Epilogue::None {
            self.set_bias(product).map_err(describe_products)?;
        }
        let one = 1.0f32;
        let beta = if product.accumulate { 1.0f32 } else { 0.0 };
        let place = |memory: Memory| memory.address() as *mut c_void;
        let [first, second, output] = self.layouts;
        // SAFETY: all handles are live. The matrices lie in live memory of the device, which
        // `check` has seen, and the sizes of the plan are those of the product.
        unsafe {
            result::matmul(
                handle,
                self.description,
                (&raw const one).cast(),
                (&raw const beta).cast(),
                place(product.b),
                first,
                place(product.a),
                second,
                place(product.c),
                output,
                place(product.c),
                output,
                &raw const *algorithm,
                place(workspace),
                workspace.bytes(),
                stream.cast(),
            )
        }
        .map_err(describe_products)
    }

    fn destroy(self) {
        // SAFETY: each handle was created once and is not used again; a null layout was never
        // created. A failure cannot be acted on.
        unsafe {
            for layout in self.layouts.into_iter().filter(|layout| !layout.is_null()) {
                let _ = result::destroy_matrix_layout(layout);
            }
            let _ = result::destroy_matmul_desc(self.description);
        }
    }
}

fn bytes_of(algorithm: &sys::cublasLtMatmulAlgo_t) -> Algorithm {
    let mut bytes = [0; 64];
    for (to, from) in bytes.chunks_exact_mut(8).zip(algorithm.data) {
        to.copy_from_slice(&from.to_le_bytes());
    }
    bytes
}

fn refuse(product: &Product, problem: String) -> GpuError {
    GpuError::Product { product: product.label(), problem }
}

/// Refuses a product whose sizes do not fit or whose matrices are not live memory.
fn check(state: &State, product: &Product) -> Result<(), GpuError> {
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

fn data_type(element: Element) -> sys::cudaDataType_t {
    match element {
        Element::F32 => sys::cudaDataType_t::CUDA_R_32F,
        Element::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
    }
}

/// Returns the seconds of one run: the least of several replays of a graph with several runs.
fn time(stream: CUstream, run: impl Fn() -> Result<(), String>) -> Result<f64, String> {
    let (count, repeats) = TIMED;
    // The first run loads the code of the algorithm.
    run()?;
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream is live. What is made here is destroyed here, after the stream has been
    // waited for.
    unsafe {
        driver::stream::synchronize(stream).map_err(describe)?;
        driver::stream::begin_capture(stream, mode).map_err(describe)?;
        let runs = (0..count).try_for_each(|_| run());
        let graph = driver::stream::end_capture(stream).map_err(describe)?;
        runs?;
        let made = driver::graph::instantiate(graph, CUgraphInstantiate_flags(0));
        let _ = driver::graph::destroy(graph);
        let exec = made.map_err(describe)?;
        let seconds = time_graph(stream, exec, repeats);
        let _ = driver::graph::exec_destroy(exec);
        Ok(seconds.map_err(describe)? / count as f64)
    }
}

/// # Safety
///
/// The stream and the graph must be live.
unsafe fn time_graph(
    stream: CUstream,
    graph: cudarc::driver::sys::CUgraphExec,
    repeats: usize,
) -> Result<f64, cudarc::driver::DriverError> {
    use cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT;
    let (from, to) =
        (driver::event::create(CU_EVENT_DEFAULT)?, driver::event::create(CU_EVENT_DEFAULT)?);
    let mut least = f64::MAX;
    let mut measure = || {
        // SAFETY: the caller's promise; the events were created above.
        unsafe {
            for _ in 0..=repeats {
                driver::event::record(from, stream)?;
                driver::graph::launch(graph, stream)?;
                driver::event::record(to, stream)?;
                driver::stream::synchronize(stream)?;
                least = least.min(f64::from(driver::event::elapsed(from, to)?) / 1e3);
            }
        }
        Ok(least)
    };
    let outcome = measure();
    // SAFETY: both events were created above, and are destroyed once.
    unsafe {
        let _ = driver::event::destroy(from);
        let _ = driver::event::destroy(to);
    }
    outcome
}
