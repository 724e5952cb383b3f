//! The local client with rows on an emulated GPU against one with rows on the host. All calls
//! between steps return the same, and the steps end in the same bytes.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use zillion_device::gpu::emulated::{Emulated, EmulatedOptions};
use zillion_device::gpu::{Gpu, Memory, Pinned, Stream};
use zillion_device::{Files, Workers};
use zillion_embedding::Rates;
use zillion_feature::random::{combine, unit_f32};
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, Step, TableId, TablePlan};
use zillion_ps::{
    Checkpointing, LocalClient, Publishing, PullOptions, PushMode, Residency, Since, StepClient,
    StepReport, TableAccess,
};
use zillion_rows::conformance::plan_of;
use zillion_rows::{
    Admission, Dtype, Eviction, InitializerSpec, OptimizerSpec, SegmentSpec, TableParts, TableSpec,
};

fn table(name: &str, optimizer: OptimizerSpec) -> TableSpec {
    let normal = InitializerSpec::Normal { mean: 0.0, std: 0.1 };
    let segment = SegmentSpec { l2: 0.01, ..SegmentSpec::new("v", 9, normal, optimizer) };
    TableSpec { seed: 5, ..TableSpec::new(name, vec![segment]) }
}

fn specs() -> Vec<TableSpec> {
    let sgd = OptimizerSpec::Sgd { lr: 0.1 };
    let admission = Admission::Count { at_least: 3 };
    vec![
        table("plain", OptimizerSpec::adam(0.01)),
        TableSpec { admission, dtype: Dtype::F16, ..table("admits", sgd) },
        TableSpec { dense: true, ..table("swept", OptimizerSpec::adam(0.02)) },
    ]
}

fn client(specs: Vec<TableSpec>, shards: usize) -> LocalClient {
    let workers = Arc::new(Workers::new(NonZeroUsize::MIN).unwrap());
    LocalClient::new(specs, NonZeroUsize::new(shards).unwrap(), workers).unwrap()
}

/// A client whose rows are on a GPU, and one whose rows are on the host.
struct Pair {
    gpu: Arc<dyn Gpu>,
    stream: Stream,
    on_gpu: LocalClient,
    on_host: LocalClient,
    /// The memory of the gradients that the device may not have read yet.
    pinned: Vec<Pinned>,
    reports: Vec<StepReport>,
    step: u64,
}

impl Pair {
    fn new(seed: u64) -> Self {
        let gpu: Arc<dyn Gpu> = Arc::new(Emulated::new(EmulatedOptions::seeded(seed)));
        let stream = gpu.create_stream().unwrap();
        Self::on(gpu, stream)
    }

    /// Makes both clients, with the rows of one on this GPU.
    fn on(gpu: Arc<dyn Gpu>, stream: Stream) -> Self {
        let mut pair = Self {
            on_gpu: client(specs(), 3),
            on_host: client(specs(), 1),
            gpu,
            stream,
            pinned: Vec::new(),
            reports: Vec::new(),
            step: 0,
        };
        for client in [&mut pair.on_gpu, &mut pair.on_host] {
            client.track_changes(4).unwrap();
        }
        pair.fill(20);
        assert_eq!(pair.on_gpu.make_resident(&pair.gpu, pair.stream, false, None).unwrap(), None);
        pair
    }

    fn fill(&mut self, ids: u64) {
        let mut keys: Vec<FeatureKey> = (0..ids).map(FeatureKey::from_u64).collect();
        keys.sort_unstable();
        let [a, b] = [&mut self.on_gpu, &mut self.on_host]
            .map(|client| client.prefill(TableId(2), &keys).unwrap());
        assert_eq!(a, b);
    }

    fn plan(&self) -> Arc<LookupPlan> {
        let keys = |table| {
            let id = move |i| combine(combine(self.step, table), i) % 40;
            (0..25).map(id).map(FeatureKey::from_u64).collect()
        };
        Arc::new(plan_of(&[keys(0), keys(1), keys(2)]))
    }

    fn gradients(&self, rows: &mut RowBuffer) {
        for (table, rows) in rows.tables.iter_mut().enumerate() {
            for (unit, g) in rows.values.iter_mut().enumerate() {
                let bits = combine(combine(self.step, table as u64), unit as u64);
                *g = if bits.is_multiple_of(97) { f32::NAN } else { unit_f32(bits as u32) - 0.5 };
            }
        }
    }

    /// Does a step of one client on the host.
    fn step_on_host(&mut self, on_gpu: bool) -> StepReport {
        let plan = self.plan();
        let client = if on_gpu { &mut self.on_gpu } else { &mut self.on_host };
        client.begin_step(Step(self.step), Rates::default()).unwrap();
        let rows = client.pull(&plan, PullOptions::default(), RowBuffer::default()).unwrap();
        let mut gradients = rows;
        self.gradients(&mut gradients);
        let client = if on_gpu { &mut self.on_gpu } else { &mut self.on_host };
        client.push(&plan, gradients, PushMode::Apply).unwrap();
        client.sweep().unwrap()
    }

    fn upload(&mut self, bytes: &[u8]) -> Memory {
        let memory = self.gpu.allocate(bytes.len().max(4)).unwrap();
        let mut block = self.gpu.allocate_pinned(bytes.len().max(4)).unwrap();
        block.write(0, bytes).unwrap();
        let to = memory.part(0, bytes.len()).unwrap();
        self.gpu.copy_in(self.stream, to, &block, 0).unwrap();
        self.pinned.push(block);
        memory
    }

    /// Does a step of both clients.
    fn step(&mut self) {
        self.step += 1;
        let report = self.step_on_host(false);
        self.reports.push(report);
        let plan = self.plan();
        let mut gradients = RowBuffer::default();
        let stride = |table: &TablePlan| (table.keys.len(), 12);
        gradients.reshape(plan.tables.iter().map(stride));
        self.gradients(&mut gradients);
        self.on_gpu.begin_step(Step(self.step), Rates::default()).unwrap();
        let refused = self.on_gpu.begin_resident_step(&plan, &mut gradients.clone()).unwrap();
        assert_eq!(refused, None);
        let refused = self.on_gpu.lookup(&plan, RowBuffer::default()).unwrap_err().to_string();
        assert!(refused.contains("on the GPU; call `end_resident_step`"), "{refused}");
        let values = gradients.tables.iter().map(|table| bytemuck::cast_slice(&table.values));
        let grads: Vec<Option<Memory>> = values.map(|bytes| Some(self.upload(bytes))).collect();
        let scale = self.upload(&1f32.to_le_bytes());
        let skip = self.upload(&0u32.to_le_bytes());
        let (gpu, stream) = (&*self.gpu, self.stream);
        let resident = self.on_gpu.resident().unwrap();
        resident.pull(gpu, stream, &[None; 3]).unwrap();
        resident.update(gpu, stream, &grads, scale, skip).unwrap();
        self.on_gpu.end_resident_step().unwrap();
    }

    /// Compares the reports of the steps, lookups, statistics and a whole version.
    fn compare(&mut self, folder: &Path) {
        let plan = self.plan();
        let mut rows = Vec::new();
        for client in [&mut self.on_gpu, &mut self.on_host] {
            let (found, report) = client.lookup(&plan, RowBuffer::default()).unwrap();
            let bits = found.tables.iter().flat_map(|table| &table.values).map(|x| x.to_bits());
            rows.push((bits.collect::<Vec<u32>>(), report));
        }
        assert_eq!(rows[0], rows[1], "step {}", self.step);
        let mut reports = Vec::new();
        while let Some(step) = self.on_gpu.collect_resident_step(false).unwrap() {
            assert!(!step.is_skipped);
            reports.push(step.report);
        }
        assert_eq!(reports, std::mem::take(&mut self.reports));
        let mut layers = Vec::new();
        for (name, client) in [("gpu", &mut self.on_gpu), ("host", &mut self.on_host)] {
            let folder = folder.join(format!("{name}{}", self.step));
            std::fs::create_dir(&folder).unwrap();
            layers.push(client.write_layer(Since::Base, &folder, &Files::new().scratch()).unwrap());
        }
        assert_eq!(layers[0], layers[1]);
        let counters = |client: &mut LocalClient| {
            client.stats().unwrap().into_iter().map(|table| table.counters).collect::<Vec<_>>()
        };
        assert_eq!(counters(&mut self.on_gpu), counters(&mut self.on_host));
    }

    /// Writes a checkpoint of both clients beside three steps, and returns its folder.
    fn checkpoint(&mut self, folder: &Path) -> (PathBuf, Vec<TableParts>) {
        let folders = ["gpu", "host"].map(|name| folder.join(format!("{name}-{}", self.step)));
        let files = Files::new().scratch();
        let tickets = [
            self.on_gpu.begin_checkpoint(&folders[0], &files).unwrap(),
            self.on_host.begin_checkpoint(&folders[1], &files).unwrap(),
        ];
        (0..3).for_each(|_| self.step());
        // A lookup in the middle copies rows to the host, which the checkpoint must not see.
        self.on_gpu.lookup(&self.plan(), RowBuffer::default()).unwrap();
        self.step();
        let [a, b] = tickets;
        let parts = self.on_gpu.finish_checkpoint(a).unwrap();
        assert_eq!(parts, self.on_host.finish_checkpoint(b).unwrap());
        let [_, folder] = folders;
        (folder, parts)
    }
}

#[test]
fn a_client_with_rows_on_a_gpu_is_that_of_the_host() {
    for seed in 0..4 {
        let root = tempfile::tempdir().unwrap();
        let mut pair = Pair::new(seed);
        (0..5).for_each(|_| pair.step());
        pair.compare(root.path());
        let (folder, parts) = pair.checkpoint(root.path());
        pair.compare(root.path());
        // A step on the host between steps on the GPU, and more keys.
        pair.step += 1;
        assert_eq!(pair.step_on_host(true), pair.step_on_host(false));
        pair.fill(33);
        (0..3).for_each(|_| pair.step());
        pair.compare(root.path());
        for client in [&mut pair.on_gpu, &mut pair.on_host] {
            client.restore(&folder, &parts).unwrap();
        }
        (0..3).for_each(|_| pair.step());
        pair.compare(root.path());
        pair.on_gpu.leave_gpu().unwrap();
        assert!(pair.on_gpu.resident().is_none());
        pair.step += 1;
        assert_eq!(pair.step_on_host(true), pair.step_on_host(false));
        pair.compare(root.path());
    }
}

#[test]
fn a_step_without_memory_is_done_on_the_host_instead() {
    let options = EmulatedOptions { memory_bytes: 6_500_000, ..EmulatedOptions::seeded(3) };
    let gpu: Arc<dyn Gpu> = Arc::new(Emulated::new(options));
    let stream = gpu.create_stream().unwrap();
    let mut pair = Pair::on(gpu, stream);
    (0..4).for_each(|_| pair.step());
    pair.step += 1;
    let keys: Vec<FeatureKey> = (0..20_000).map(FeatureKey::from_u64).collect();
    let large = Arc::new(plan_of(&[keys, Vec::new(), Vec::new()]));
    let mut notes = RowBuffer::default();
    notes.reshape(large.tables.iter().map(|_| (0, 1)));
    pair.on_gpu.begin_step(Step(pair.step), Rates::default()).unwrap();
    let refused = pair.on_gpu.begin_resident_step(&large, &mut notes).unwrap().unwrap();
    assert!(refused.contains("the memory of the GPU"), "{refused}");
    // The same step may be done on the host.
    pair.on_gpu.leave_gpu().unwrap();
    pair.on_gpu.discard().unwrap();
    assert_eq!(pair.step_on_host(true), pair.step_on_host(false));
    pair.reports.clear();
    pair.compare(tempfile::tempdir().unwrap().path());
}

#[test]
fn a_checkpoint_heals_a_client_after_a_failed_step_and_without_its_gpu() {
    let root = tempfile::tempdir().unwrap();
    for fails in [false, true] {
        // The kernel that fails runs after the checkpoint.
        let fail_launch = fails.then_some(150);
        let options = EmulatedOptions { fail_launch, ..EmulatedOptions::seeded(3) };
        let gpu: Arc<dyn Gpu> = Arc::new(Emulated::new(options));
        let stream = gpu.create_stream().unwrap();
        let mut pair = Pair::on(gpu, stream);
        pair.step();
        let folder = root.path().join(format!("fails-{fails}"));
        std::fs::create_dir(&folder).unwrap();
        let (folder, parts) = pair.checkpoint(&folder);
        pair.reports.clear();
        // A step begins on the GPU, and its launches are never enqueued.
        let plan = pair.plan();
        let mut notes = RowBuffer::default();
        notes.reshape(plan.tables.iter().map(|_| (0, 1)));
        pair.step += 1;
        pair.on_gpu.begin_step(Step(pair.step), Rates::default()).unwrap();
        pair.on_gpu.begin_resident_step(&plan, &mut notes).unwrap();
        if fails {
            // All launches until the device fails.
            let pull = || {
                let resident = pair.on_gpu.resident().unwrap();
                resident.pull(&*pair.gpu, pair.stream, &[None; 3])?;
                Ok::<_, zillion_embedding::Error>(pair.gpu.synchronize(pair.stream)?)
            };
            assert!((0..200).any(|_| pull().is_err()), "the device never fails");
        }
        for client in [&mut pair.on_gpu, &mut pair.on_host] {
            client.restore(&folder, &parts).unwrap();
        }
        assert_eq!(pair.on_gpu.resident().is_none(), fails);
        if !fails {
            (0..3).for_each(|_| pair.step());
        }
        pair.on_gpu.leave_gpu().unwrap();
        pair.step += 1;
        assert_eq!(pair.step_on_host(true), pair.step_on_host(false));
        pair.reports.clear();
        let found = [&mut pair.on_gpu, &mut pair.on_host].map(|client| {
            let (rows, _) = client.lookup(&plan, RowBuffer::default()).unwrap();
            let values = rows.tables.into_iter().flat_map(|table| table.values);
            values.map(f32::to_bits).collect::<Vec<u32>>()
        });
        assert_eq!(found[0], found[1]);
    }
}

#[test]
fn tables_that_stay_on_the_host_say_why() {
    let gpu: Arc<dyn Gpu> = Arc::new(Emulated::new(EmulatedOptions::seeded(1)));
    let stream = gpu.create_stream().unwrap();
    let eviction = Eviction::L2 { below: None, every: None };
    let few = table("few", OptimizerSpec::Sgd { lr: 0.1 });
    let by_weights = TableSpec { max_rows: Some(10), eviction, ..few };
    let mut local = client(vec![by_weights], 1);
    let reason = local.make_resident(&gpu, stream, false, None).unwrap();
    assert!(reason.as_ref().unwrap().contains("`tables.few.eviction` is set"), "{reason:?}");
    assert!(local.resident().is_none());
    local.begin_step(Step(1), Rates::default()).unwrap();
    let plan = Arc::new(plan_of(&[vec![FeatureKey(1)]]));
    let refused = local.begin_resident_step(&plan, &mut RowBuffer::default()).unwrap_err();
    assert!(refused.to_string().contains("the rows are on the host"), "{refused}");
    let options = EmulatedOptions { memory_bytes: 10_000, ..EmulatedOptions::seeded(1) };
    let small: Arc<dyn Gpu> = Arc::new(Emulated::new(options));
    let stream = small.create_stream().unwrap();
    let mut pair = Pair::new(2);
    (0..2).for_each(|_| pair.step());
    let reason = pair.on_gpu.make_resident(&small, stream, false, None).unwrap().unwrap();
    assert!(reason.contains("bytes of the memory of the GPU"), "{reason}");
    // The rows are on the host now, and nothing is lost.
    pair.reports.clear();
    pair.compare(tempfile::tempdir().unwrap().path());
}
