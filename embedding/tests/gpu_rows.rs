//! The kernels of table rows on the emulated GPU against a set of tables on the processor: the rows
//! of every type, narrow rows, sweeps and new rows have the same bits after each step.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use zillion_device::Workers;
use zillion_device::gpu::emulated::{Emulated, EmulatedOptions};
use zillion_device::gpu::kernels::*;
use zillion_device::gpu::{Gpu, Kernel, Memory, Param, Stream};
use zillion_embedding::{Rates, TableSet, Update};
use zillion_feature::random::{combine, text_seed, unit_f32};
use zillion_feature::{FeatureKey, RowBuffer, Step, TableId};
use zillion_rows::conformance::plan_of;
use zillion_rows::{
    Bounds, ClipSpec, Dtype, Growth, InitializerSpec, OptimizerSpec, Scope, SegmentSpec, TableSpec,
};

/// The number of rows of a table on the device.
const ROWS: usize = 64;

/// A device with a stream.
struct Device {
    gpu: Emulated,
    stream: Stream,
}

impl Device {
    fn upload<T: bytemuck::NoUninit>(&self, values: &[T]) -> u64 {
        let memory = self.gpu.allocate(size_of_val(values).max(16)).expect("memory");
        self.gpu.upload(self.stream, memory, bytemuck::cast_slice(values)).expect("an upload");
        memory.address()
    }

    fn download<T: bytemuck::Pod>(&self, at: u64, count: usize) -> Vec<T> {
        let mut values = vec![T::zeroed(); count];
        let from = Memory::new(at, size_of_val(values.as_slice()));
        let to = bytemuck::cast_slice_mut(&mut values);
        self.gpu.download(self.stream, to, from).expect("a download");
        values
    }

    fn launch<T: bytemuck::NoUninit>(&self, kernel: &'static Kernel, by: Geometry, params: &T) {
        let params = [Param::new(params)];
        self.gpu.launch(self.stream, &by.launch(kernel, &params, &[])).expect("a launch");
    }
}

fn dtype(spec: &TableSpec) -> u32 {
    match spec.dtype {
        Dtype::F32 => TableRules::F32,
        Dtype::F16 => TableRules::F16,
        Dtype::Bf16 => TableRules::BF16,
    }
}

fn width(spec: &TableSpec) -> usize {
    spec.segments.iter().map(|segment| segment.dim).sum()
}

/// Returns the first float of the state in a row of the device.
fn state(spec: &TableSpec) -> usize {
    if spec.dtype.is_f32() { width(spec) } else { width(spec).div_ceil(2) }
}

fn stride(spec: &TableSpec) -> usize {
    (state(spec) + spec.state_width()).next_multiple_of(4)
}

/// Returns the first weight and the first float of the state of each segment.
fn places(spec: &TableSpec) -> Vec<(usize, usize)> {
    let (mut weight, mut at) = (0, state(spec));
    let place = |segment: &SegmentSpec| {
        let place = (weight, at);
        weight += segment.dim;
        at += segment.optimizer.state_len(segment.dim);
        place
    };
    spec.segments.iter().map(place).collect()
}

/// Returns the numbers of an optimizer in a step.
fn scalars(optimizer: &OptimizerSpec, step: u64) -> RowRule {
    let decimal = |x: f32| x.to_string().parse::<f64>().expect("a number");
    let flag = |set: bool| if set { 1.0 } else { 0.0 };
    let base = RowRule { lr: optimizer.lr(), ..RowRule::default() };
    match *optimizer {
        OptimizerSpec::Sgd { .. } => RowRule { kind: RowRule::SGD, ..base },
        OptimizerSpec::Momentum { momentum, nesterov, .. } => {
            RowRule { kind: RowRule::MOMENTUM, a: momentum, b: flag(nesterov), ..base }
        }
        OptimizerSpec::Adagrad { eps, .. } => RowRule { kind: RowRule::ADAGRAD, eps, ..base },
        OptimizerSpec::RowwiseAdagrad { eps, .. } => {
            RowRule { kind: RowRule::ROWWISE_ADAGRAD, eps, ..base }
        }
        OptimizerSpec::Adam { lr, beta1, beta2, eps, .. } => {
            let ([lr, beta1, beta2], t) = ([lr, beta1, beta2].map(decimal), step as f64);
            RowRule {
                kind: RowRule::ADAM,
                lr: (lr / (1.0 - beta1.powf(t))) as f32,
                eps,
                a: beta2 as f32,
                b: (1.0 - beta1) as f32,
                c: (1.0 - beta2) as f32,
                d: (1.0 - beta2.powf(t)).sqrt() as f32,
                ..base
            }
        }
        OptimizerSpec::Ftrl { lr, beta, l1, l2, l21 } => RowRule {
            kind: if l21 == 0.0 { RowRule::FTRL } else { RowRule::GROUP_FTRL },
            a: (1.0 / decimal(lr)) as f32,
            b: beta,
            c: l1,
            d: l2,
            l21,
            ..base
        },
    }
}

/// Returns the rules of the rows of `spec`, which are full or narrow rows of `full`.
fn rules(spec: &TableSpec, full: &TableSpec, step: u64) -> Vec<RowRule> {
    let full_places = places(full);
    let rule = |(segment, &(begin, state)): (&SegmentSpec, &(usize, usize))| {
        let wide = full.segments.iter().position(|wide| wide.name == segment.name).expect("same");
        let clip = segment.clip.map(|c| (c.norm.unwrap_or(f32::INFINITY), c.value.unwrap_or(f32::MAX)));
        let (clip_norm, clip_value) = clip.unwrap_or((f32::INFINITY, f32::INFINITY));
        let bounds = segment.bounds.map(|bounds| spec.dtype.inward(bounds));
        let swept = if full.moves_whole_table(segment) { RowRule::SWEPT } else { 0 };
        let whole = if full.l2_is_whole(segment) { RowRule::L2_WHOLE } else { 0 };
        RowRule {
            begin: begin as u32,
            end: (begin + segment.dim) as u32,
            state: state as u32,
            l2: segment.l2,
            guarded: u32::from(segment.clip.is_some() || segment.bounds.is_some()),
            clip_norm,
            clip_value,
            low: bounds.map_or(f32::NEG_INFINITY, |b| b.low),
            high: bounds.map_or(f32::INFINITY, |b| b.high),
            shift: (full_places[wide].0 - begin) as u32,
            flags: swept | whole,
            ..scalars(&segment.optimizer, step)
        }
    };
    spec.segments.iter().zip(&places(spec)).map(rule).collect()
}

/// Returns how the rows of a table begin.
fn initial(spec: &TableSpec) -> Vec<InitialSegment> {
    let segment = |(segment, &(begin, state)): (&SegmentSpec, &(usize, usize))| {
        let (kind, a, b) = match segment.initializer {
            InitializerSpec::Constant { value } => (InitialSegment::CONSTANT, value, 0.0),
            InitializerSpec::Uniform { low, high } => (InitialSegment::UNIFORM, low, high),
            InitializerSpec::Normal { mean, std } => (InitialSegment::NORMAL, mean, std),
            InitializerSpec::TruncatedNormal { mean, std } => (InitialSegment::TRUNCATED, mean, std),
        };
        let bounds = segment.bounds.map(|bounds| spec.dtype.inward(bounds));
        InitialSegment {
            seed: text_seed(spec.seed, &segment.name),
            kind,
            begin: begin as u32,
            end: (begin + segment.dim) as u32,
            a,
            b,
            low: bounds.map_or(f32::NEG_INFINITY, |b| b.low),
            high: bounds.map_or(f32::INFINITY, |b| b.high),
            state: state as u32,
            state_end: (state + segment.optimizer.state_len(segment.dim)) as u32,
            state_value: segment.optimizer.initial_state(),
        }
    };
    spec.segments.iter().zip(&places(spec)).map(segment).collect()
}

/// A table on the device. All rows of a table that grows are narrow here.
struct Mirror {
    spec: TableSpec,
    narrow: Option<TableSpec>,
    slabs: [u64; 2],
    segments: [u64; 2],
    parts: Vec<NarrowPart>,
    slots: BTreeMap<FeatureKey, u32>,
}

impl Mirror {
    fn new(device: &Device, spec: &TableSpec) -> Self {
        let narrow = spec.narrow_spec();
        let small = narrow.as_ref().unwrap_or(spec);
        let slab = |spec: &TableSpec| device.upload(&vec![u32::MAX; ROWS * stride(spec)]);
        let mut parts = Vec::new();
        let mut from = 0;
        for segment in spec.layout().narrow.iter().flatten() {
            let (to, n) = (segment.offset as u32, segment.dim as u32);
            parts.push(NarrowPart { from, to, n, unused: 0 });
            from += n;
        }
        Self {
            slabs: [slab(spec), slab(small)],
            segments: [device.upload(&initial(spec)), device.upload(&initial(small))],
            parts,
            slots: BTreeMap::new(),
            narrow,
            spec: spec.clone(),
        }
    }

    fn small(&self) -> &TableSpec {
        self.narrow.as_ref().unwrap_or(&self.spec)
    }

    /// Returns the slots of keys. Keys without a row get one, with its initial numbers.
    fn slots(&mut self, device: &Device, keys: &[FeatureKey]) -> Vec<u32> {
        let new: Vec<FeatureKey> =
            keys.iter().copied().filter(|key| !self.slots.contains_key(key)).collect();
        let first = self.slots.len() as u32;
        let rows: Vec<u32> = (first..first + new.len() as u32).collect();
        let is_narrow = self.narrow.is_some();
        if !new.is_empty() {
            let small = self.small();
            let words: Vec<u64> = new.iter().map(|key| key.0).collect();
            let parameters = InitialRows {
                slab: self.slabs[usize::from(is_narrow)],
                slots: device.upload(&rows),
                keys: device.upload(&words),
                segments: self.segments[usize::from(is_narrow)],
                count: Count::fixed(new.len() as u32),
                stride: stride(small) as u32,
                width: width(small) as u32,
                segment_count: small.segments.len() as u32,
                dtype: dtype(small),
            };
            device.launch(&INITIAL_ROWS, parameters.geometry(), &parameters);
        }
        self.slots.extend(new.into_iter().zip(rows));
        let bit = if is_narrow { TableRules::NARROW } else { 0 };
        keys.iter().map(|key| self.slots[key] | bit).collect()
    }

    /// Returns both widths of rows, with the rules of a step.
    fn stored(&self, device: &Device, step: u64) -> [StoredRows; 2] {
        [(&self.spec, 0), (self.small(), 1)].map(|(spec, at)| {
            let rules = rules(spec, &self.spec, step);
            StoredRows {
                slab: self.slabs[at],
                rules: device.upload(&rules),
                stride: stride(spec) as u32,
                width: width(spec) as u32,
                rule_count: rules.len() as u32,
                unused: 0,
            }
        })
    }

    /// Returns the rows of keys as a lookup has them.
    fn pull(&mut self, device: &Device, keys: &[FeatureKey]) -> Vec<f32> {
        let slots = self.slots(device, keys);
        let words: Vec<u64> = keys.iter().map(|key| key.0).collect();
        let out_stride = self.spec.layout().stride;
        let out = device.upload(&vec![f32::NAN; keys.len() * out_stride]);
        let parameters = PullRows {
            rows: self.stored(device, 1),
            slots: device.upload(&slots),
            keys: device.upload(&words),
            segments: self.segments[0],
            parts: device.upload(&self.parts),
            out,
            count: Count::fixed(keys.len() as u32),
            out_stride: out_stride as u32,
            segment_count: self.spec.segments.len() as u32,
            part_count: self.parts.len() as u32,
            dtype: dtype(&self.spec),
        };
        device.launch(&PULL_ROWS, parameters.geometry(), &parameters);
        device.download(out, keys.len() * out_stride)
    }

    /// Applies the gradients of keys, and the rules of rows without a gradient.
    fn step(&mut self, device: &Device, keys: &[FeatureKey], gradients: &[f32], update: Update) {
        let slots = self.slots(device, keys);
        let swept = self.spec.has_whole_table_rule();
        let mut words: Vec<u64> = keys.iter().map(|key| key.0).collect();
        let mut parameters = TableRules {
            rows: self.stored(device, update.step.0),
            slots: device.upload(&slots),
            sums: device.upload(gradients),
            rounding: device.upload(&[combine(
                text_seed(self.spec.seed, "rounding"),
                update.step.0,
            )]),
            scale: device.upload(&[update.scale]),
            count: Count::fixed(keys.len() as u32),
            width: width(&self.spec) as u32,
            sum_stride: self.spec.layout().stride as u32,
            dtype: dtype(&self.spec),
            scratch: TableRules::scratch(dtype(&self.spec), width(&self.spec) as u32),
            ..TableRules::default()
        };
        if swept {
            words = vec![0; self.slots.len()];
            self.slots.iter().for_each(|(key, &slot)| words[slot as usize] = key.0);
            let unique_of = device.upload(&vec![TableRules::NO_GRADIENT; words.len()]);
            let count = parameters.count;
            let mark = MarkRows { slots: parameters.slots, unique_of, count };
            device.launch(&MARK_ROWS, mark.geometry(), &mark);
            (parameters.slots, parameters.unique_of) = (0, unique_of);
            parameters.count = Count::fixed(words.len() as u32);
        }
        parameters.keys = device.upload(&words);
        device.launch(&TABLE_RULES, parameters.geometry(), &parameters);
    }
}

/// Returns tables of every type, rule and form.
fn tables() -> Vec<TableSpec> {
    let rowwise = OptimizerSpec::RowwiseAdagrad { lr: 0.1, initial_accumulator: 0.1, eps: 1e-8 };
    let adagrad = OptimizerSpec::Adagrad { lr: 0.1, initial_accumulator: 0.0, eps: 1e-8 };
    let ftrl = OptimizerSpec::Ftrl { lr: 0.1, beta: 1.0, l1: 0.001, l2: 0.01, l21: 0.0 };
    let group = OptimizerSpec::Ftrl { lr: 0.1, beta: 1.0, l1: 0.001, l2: 0.01, l21: 0.05 };
    let momentum = OptimizerSpec::Momentum { lr: 0.05, momentum: 0.9, nesterov: true, scope: None };
    let (sgd, adam) = (OptimizerSpec::Sgd { lr: 0.1 }, OptimizerSpec::adam(0.01));
    let normal = InitializerSpec::Normal { mean: 0.0, std: 0.1 };
    let uniform = InitializerSpec::Uniform { low: -0.3, high: 0.2 };
    let truncated = InitializerSpec::TruncatedNormal { mean: 0.1, std: 0.2 };
    let segment = |name: &str, dim, initializer, optimizer, l2| SegmentSpec {
        l2,
        ..SegmentSpec::new(name, dim, initializer, optimizer)
    };
    let table = |name: &str, dtype, dense, segments| TableSpec {
        dense,
        dtype,
        seed: 11,
        ..TableSpec::new(name, segments)
    };
    let mut guarded = segment("g", 5, truncated, rowwise, 0.02);
    guarded.clip = Some(ClipSpec { norm: Some(0.7), value: Some(0.5) });
    guarded.bounds = Some(Bounds { low: -0.15, high: 0.1 });
    let mut touched = segment("linear", 1, uniform, adam, 0.1);
    touched.l2_scope = Some(Scope::Touched);
    let growing = |table: TableSpec, from| TableSpec {
        grow: Some(Growth { at: 1000, from }),
        ..table
    };
    let mut tables = Vec::new();
    for dtype in Dtype::ALL {
        let name = |name: &str| format!("{name}_{}", dtype.name());
        let vector = segment("v", 16, normal, rowwise, 0.01);
        let linear = segment("linear", 1, uniform, ftrl, 0.0);
        tables.push(table(&name("wide"), dtype, false, vec![vector, linear.clone()]));
        let lazy = vec![segment("a", 9, uniform, adam, 0.0), guarded.clone()];
        tables.push(table(&name("lazy"), dtype, false, lazy));
        let groups = vec![segment("f", 8, normal, group, 0.0), segment("m", 3, normal, momentum, 0.0)];
        tables.push(table(&name("groups"), dtype, false, groups));
        let exact = vec![segment("v", 10, normal, adam, 0.05), touched.clone(), guarded.clone()];
        tables.push(table(&name("dense_exact"), dtype, true, exact));
        let decay = vec![segment("a", 3, normal, sgd, 0.1), segment("b", 5, truncated, adagrad, 0.0)];
        tables.push(table(&name("dense_decay"), dtype, true, decay));
        let parts = vec![segment("v", 10, normal, adam, 0.03), linear, guarded.clone()];
        tables.push(growing(table(&name("growing"), dtype, false, parts), None));
        let short = vec![segment("v", 7, truncated, rowwise, 0.01)];
        tables.push(growing(table(&name("short"), dtype, false, short), Some(2)));
    }
    tables
}

/// Returns gradients of which a few are not finite.
fn gradients(rows: &RowBuffer, tables: &[TableSpec], step: u64) -> RowBuffer {
    let mut gradients = rows.clone();
    for (index, table) in gradients.tables.iter_mut().enumerate() {
        let width = width(&tables[index]);
        for (row, floats) in table.values.chunks_exact_mut(table.stride).enumerate() {
            for (unit, g) in floats.iter_mut().enumerate() {
                let bits = combine(combine(step, (index * 1000 + row) as u64), unit as u64);
                *g = if unit < width { unit_f32(bits as u32) - 0.4 } else { f32::NAN };
            }
            if (row as u64 + step).is_multiple_of(11) {
                floats[0] = f32::INFINITY;
            }
        }
    }
    gradients
}

#[test]
fn rows_have_the_bits_of_the_processor_in_every_type_and_form() {
    let specs = tables();
    let workers = Workers::new(NonZeroUsize::MIN).expect("a pool");
    let mut set = TableSet::new(specs.clone(), NonZeroUsize::MIN).expect("tables");
    let options = EmulatedOptions::seeded(3);
    let gpu = Emulated::new(options);
    let stream = gpu.create_stream().expect("a stream");
    let device = Device { gpu, stream };
    let mut mirrors: Vec<Mirror> = specs.iter().map(|spec| Mirror::new(&device, spec)).collect();
    let mut vocabulary: Vec<FeatureKey> = (0..40).map(FeatureKey::from_u64).collect();
    vocabulary.sort_unstable();
    for (index, spec) in specs.iter().enumerate().filter(|(_, spec)| spec.dense) {
        set.prefill(&workers, TableId(index as u16), &vocabulary).expect("rows");
        mirrors[index].slots(&device, &vocabulary);
        assert!(spec.has_whole_table_rule(), "{}", spec.name);
    }
    for step in 1..=5u64 {
        let keys: Vec<Vec<FeatureKey>> = (0..specs.len() as u64)
            .map(|table| (0..25).map(|i| combine(combine(step, table), i) % 40).collect::<Vec<_>>())
            .map(|ids| ids.into_iter().map(FeatureKey::from_u64).collect())
            .collect();
        let plan = plan_of(&keys);
        let mut rows = RowBuffer::default();
        set.pull(&workers, &plan, false, &mut rows).expect("rows");
        let all = gradients(&rows, &specs, step);
        let scale = if step % 2 == 0 { 0.75 } else { 1.0 };
        let update = Update { step: Step(step), rates: Rates::default(), scale };
        for round in 0..2 {
            for (index, mirror) in mirrors.iter_mut().enumerate() {
                let keys = &plan.tables[index].keys;
                let got = mirror.pull(&device, keys);
                let expected = &rows.tables[index].values;
                let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
                let at = got.iter().zip(expected).position(differs);
                let name = &specs[index].name;
                let pair = at.map(|at| (at, got[at], expected[at]));
                assert_eq!(pair, None, "{name}, step {step}, round {round}");
                if round == 0 {
                    mirror.step(&device, keys, &all.tables[index].values, update);
                }
            }
            if round == 0 {
                set.push(&workers, &plan, &all, update).expect("a push");
                set.sweep(&workers, update).expect("a sweep");
                set.pull(&workers, &plan, false, &mut rows).expect("rows");
            }
        }
    }
}
