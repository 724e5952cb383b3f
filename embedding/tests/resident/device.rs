//! Tables whose rows are on an emulated device, driven as a trainer drives them: the launches of a
//! step are recorded once and replayed, and the host runs ahead of the device.

use std::num::NonZeroUsize;
use std::sync::Arc;

use zillion_device::Workers;
use zillion_device::gpu::emulated::{Emulated, EmulatedOptions};
use zillion_device::gpu::kernels::{CLIP, Clip, Geometry};
use zillion_device::gpu::{Gpu, Graph, Memory, Param, Pinned, Stream};
use zillion_embedding::{ResidentOptions, ResidentTables, TableSet, Update};
use zillion_feature::{LookupPlan, RowBuffer};

/// The largest number of unique keys of a table in a batch.
pub(crate) const MOST_KEYS: usize = 64;

/// The memory that the executor of a model would have.
struct Model {
    rows: Vec<Option<Memory>>,
    grads: Vec<Option<Memory>>,
    /// The squared norm of the dense gradients, then that of the rows.
    norms: Memory,
    scale: Memory,
    skip: Memory,
}

/// The results of a step, which are compared later.
pub(crate) struct Left {
    rows: Vec<Memory>,
    norm: Memory,
    /// The gradients, which the device may not have read yet.
    _gradients: Vec<Pinned>,
}

/// The rows of a set on a device.
pub(crate) struct OnDevice {
    pub(crate) gpu: Arc<dyn Gpu>,
    pub(crate) tables: ResidentTables,
    stream: Stream,
    model: Model,
    clip: Option<f64>,
    recorded: Option<(u64, Graph)>,
}

impl OnDevice {
    pub(crate) fn new(set: &TableSet, options: EmulatedOptions, clip: Option<f64>) -> Self {
        Self::with_cache(set, options, clip, None)
    }

    /// Moves the rows of a set to a device with a cache of `cache_rows` rows of each table, or with
    /// all rows.
    pub(crate) fn with_cache(
        set: &TableSet,
        options: EmulatedOptions,
        clip: Option<f64>,
        cache_rows: Option<usize>,
    ) -> Self {
        let gpu: Arc<dyn Gpu> = Arc::new(Emulated::new(options));
        let stream = gpu.create_stream().unwrap();
        let rows = || {
            let layouts = set.layouts().iter();
            let bytes = layouts.map(|layout| 4 * MOST_KEYS * layout.stride);
            bytes.map(|bytes| Some(gpu.allocate(bytes).unwrap())).collect()
        };
        let model = Model {
            rows: rows(),
            grads: rows(),
            norms: gpu.allocate(16).unwrap(),
            scale: gpu.allocate(4).unwrap(),
            skip: gpu.allocate(4).unwrap(),
        };
        let options = ResidentOptions::new(Arc::clone(&gpu), stream);
        let options = ResidentOptions { clips: clip.is_some(), cache_rows, ..options };
        let tables = ResidentTables::new(set, options).unwrap();
        Self { gpu, tables, stream, model, clip, recorded: None }
    }

    /// Does a step. `dense` is the squared norm of the dense gradients. Returns the reason if there
    /// is no room for the step, which has not begun then.
    pub(crate) fn step(
        &mut self,
        set: &mut TableSet,
        workers: &Workers,
        plan: &LookupPlan,
        gradients: &RowBuffer,
        (dense, update): (f64, Update),
    ) -> Result<Left, String> {
        let mut notes = notes(plan);
        for (notes, given) in notes.tables.iter_mut().zip(&gradients.tables) {
            notes.uses.clone_from(&given.uses);
            notes.counts = Some(Vec::new());
        }
        let refused = self.tables.begin(set, workers, plan, &mut notes, update).unwrap();
        if let Some(reason) = refused {
            return Err(reason);
        }
        for (table, counts) in notes.tables.iter().zip(&gradients.tables) {
            assert_eq!(table.counts, counts.counts, "numbers of pushes before the step");
        }
        let mut pinned = Vec::new();
        let mut send = |to: Memory, bytes: &[u8]| {
            let mut block = self.gpu.allocate_pinned(bytes.len().max(1)).unwrap();
            block.write(0, bytes).unwrap();
            self.gpu.copy_in(self.stream, to.part(0, bytes.len()).unwrap(), &block, 0).unwrap();
            pinned.push(block);
        };
        for (to, table) in self.model.grads.iter().zip(&gradients.tables) {
            send(to.unwrap(), bytemuck::cast_slice(&table.values));
        }
        send(self.model.norms, bytemuck::bytes_of(&dense));
        self.launch();
        self.tables.end(set).unwrap();
        let copy = |from: Memory| {
            let to = self.gpu.allocate(from.bytes()).unwrap();
            self.gpu.copy(self.stream, to, from).unwrap();
            to
        };
        let rows = self
            .model
            .rows
            .iter()
            .zip(&gradients.tables)
            .map(|(from, table)| copy(from.unwrap().part(0, 4 * table.values.len()).unwrap()));
        let rows = rows.collect();
        Ok(Left { rows, norm: copy(self.model.norms), _gradients: pinned })
    }

    /// Does a step with the gradients that the device has. Returns the text of an error, or the
    /// reason for which the step has not begun.
    pub(crate) fn step_again(
        &mut self,
        set: &mut TableSet,
        workers: &Workers,
        plan: &LookupPlan,
        update: Update,
    ) -> Result<(), String> {
        let begun = self.tables.begin(set, workers, plan, &mut notes(plan), update);
        if let Some(reason) = begun.map_err(|error| error.to_string())? {
            return Err(reason);
        }
        self.launch();
        self.tables.end(set).map(|_| ()).map_err(|error| error.to_string())
    }

    /// Copies the rows to the set, and gives back what they have on the device.
    pub(crate) fn leave(mut self, set: &mut TableSet) -> Arc<dyn Gpu> {
        self.tables.settle(set).unwrap();
        let Self { gpu, tables, .. } = self;
        drop(tables);
        gpu
    }

    /// Sets all gradients and the norm of the dense gradients to zero.
    pub(crate) fn zero_gradients(&self) {
        for memory in self.model.grads.iter().flatten().chain([&self.model.norms]) {
            self.gpu.fill(self.stream, *memory, 0).unwrap();
        }
    }

    fn launch(&mut self) {
        let generation = self.tables.generation();
        let recorded = match self.recorded.filter(|(of, _)| *of == generation) {
            Some((_, graph)) => graph,
            None => {
                if let Some((_, old)) = self.recorded.take() {
                    self.gpu.synchronize(self.stream).unwrap();
                    self.gpu.free_graph(old).unwrap();
                }
                self.gpu.begin_capture(self.stream).unwrap();
                self.enqueue();
                let graph = self.gpu.end_capture(self.stream).unwrap();
                self.recorded = Some((generation, graph));
                graph
            }
        };
        self.gpu.replay(self.stream, recorded).unwrap();
    }

    fn enqueue(&self) {
        let Self { gpu, tables, stream, model, .. } = self;
        let Model { rows, grads, norms, scale, skip } = model;
        let (gpu, stream) = (&**gpu, *stream);
        tables.pull(gpu, stream, rows).unwrap();
        let of_rows = norms.part(8, 8).unwrap();
        if self.clip.is_some() {
            tables.sq_norm(gpu, stream, grads, of_rows).unwrap();
        }
        let parameters = Clip {
            dense: norms.address(),
            rows: of_rows.address(),
            scale: scale.address(),
            skip: skip.address(),
            skips: 0,
            most: self.clip.unwrap_or(0.0),
            clips: u32::from(self.clip.is_some()),
            unused: 0,
        };
        let params = [Param::new(&parameters)];
        let geometry = Geometry::line(1, 32);
        gpu.launch(stream, &geometry.launch(&CLIP, &params, &[])).unwrap();
        tables.update(gpu, stream, grads, *scale, *skip).unwrap();
    }

    /// Returns the rows that a step has pulled, and the squared norm of its row gradients.
    pub(crate) fn read(&self, left: Left) -> (Vec<Vec<f32>>, f64) {
        let rows = left.rows.iter().map(|&from| {
            let mut rows = vec![0f32; from.bytes() / 4];
            self.gpu.download(self.stream, bytemuck::cast_slice_mut(&mut rows), from).unwrap();
            self.gpu.free(from).unwrap();
            rows
        });
        let rows = rows.collect();
        let mut norms = [0f64; 2];
        self.gpu.download(self.stream, bytemuck::cast_slice_mut(&mut norms), left.norm).unwrap();
        self.gpu.free(left.norm).unwrap();
        (rows, norms[1])
    }
}

/// Returns what a step without statistics of use notes about a plan.
pub(crate) fn notes(plan: &LookupPlan) -> RowBuffer {
    let mut notes = RowBuffer::default();
    notes.reshape(plan.tables.iter().map(|_| (0, 1)));
    notes
}

pub(crate) fn workers(threads: usize) -> Workers {
    Workers::new(NonZeroUsize::new(threads).unwrap()).unwrap()
}
