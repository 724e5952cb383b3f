//! A table whose rows are on a device.

use std::collections::BTreeMap;

use zillion_device::gpu::emulated::Emulated;
use zillion_device::gpu::kernels::*;
use zillion_device::gpu::{Gpu, Kernel, Memory, Param, Stream};
use zillion_embedding::Update;
use zillion_feature::FeatureKey;
use zillion_feature::random::{combine, text_seed};
use zillion_rows::TableSpec;

use crate::settings::{dtype, initial, rules, state_parts, stride, width};

/// The number of rows of a table on the device.
const ROWS: usize = 64;

/// A device with a stream.
pub(super) struct Device {
    pub(super) gpu: Emulated,
    pub(super) stream: Stream,
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

/// A table on the device.
pub(super) struct Mirror {
    spec: TableSpec,
    narrow: Option<TableSpec>,
    slabs: [u64; 2],
    segments: [u64; 2],
    parts: Vec<NarrowPart>,
    /// The row of each key, with the bit of narrow rows.
    slots: BTreeMap<FeatureKey, u32>,
    /// The number of pushes of each key.
    pushes: BTreeMap<FeatureKey, u32>,
    /// The numbers of full and of narrow rows that were given away.
    next: [u32; 2],
}

impl Mirror {
    pub(super) fn new(device: &Device, spec: &TableSpec) -> Self {
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
            pushes: BTreeMap::new(),
            next: [0, 0],
            narrow,
            spec: spec.clone(),
        }
    }

    fn small(&self) -> &TableSpec {
        self.narrow.as_ref().unwrap_or(&self.spec)
    }

    /// Returns rows with the initial numbers of keys.
    fn create(&mut self, device: &Device, keys: &[FeatureKey], is_narrow: bool) -> Vec<u32> {
        let of = usize::from(is_narrow);
        let first = self.next[of];
        self.next[of] += keys.len() as u32;
        let rows: Vec<u32> = (first..self.next[of]).collect();
        assert!(self.next[of] as usize <= ROWS, "{} has too many rows", self.spec.name);
        if !keys.is_empty() {
            let spec = if is_narrow { self.small() } else { &self.spec };
            let words: Vec<u64> = keys.iter().map(|key| key.0).collect();
            let parameters = InitialRows {
                slab: self.slabs[of],
                slots: device.upload(&rows),
                keys: device.upload(&words),
                segments: self.segments[of],
                count: Count::fixed(keys.len() as u32),
                stride: stride(spec) as u32,
                width: width(spec) as u32,
                segment_count: spec.segments.len() as u32,
                dtype: dtype(spec),
            };
            device.launch(&INITIAL_ROWS, parameters.geometry(), &parameters);
        }
        rows
    }

    /// Returns the slots of keys. Keys without a row get one, with its initial numbers.
    pub(super) fn slots(&mut self, device: &Device, keys: &[FeatureKey]) -> Vec<u32> {
        let new: Vec<FeatureKey> =
            keys.iter().copied().filter(|key| !self.slots.contains_key(key)).collect();
        let bit = if self.narrow.is_some() { TableRules::NARROW } else { 0 };
        let rows = self.create(device, &new, bit != 0);
        self.slots.extend(new.into_iter().zip(rows.into_iter().map(|row| row | bit)));
        keys.iter().map(|key| self.slots[key]).collect()
    }

    /// Makes the narrow rows full that have had enough pushes. Returns their number.
    pub(super) fn grow(&mut self, device: &Device) -> usize {
        let Some(growth) = self.spec.grow else { return 0 };
        let is_due = |key: &&FeatureKey| {
            self.slots[*key] >= TableRules::NARROW && self.pushes.get(*key) >= Some(&growth.at)
        };
        let due: Vec<FeatureKey> = self.slots.keys().filter(is_due).copied().collect();
        if due.is_empty() {
            return 0;
        }
        let to = self.create(device, &due, false);
        let from: Vec<u32> = due.iter().map(|key| self.slots[key] & !TableRules::NARROW).collect();
        let states = state_parts(&self.spec, self.small());
        let parameters = GrowRows {
            rows: self.stored(device, 1),
            from: device.upload(&from),
            to: device.upload(&to),
            weights: device.upload(&self.parts),
            states: device.upload(&states),
            count: Count::fixed(due.len() as u32),
            weight_parts: self.parts.len() as u32,
            state_parts: states.len() as u32,
            dtype: dtype(&self.spec),
            unused: 0,
        };
        device.launch(&GROW_ROWS, parameters.geometry(), &parameters);
        self.slots.extend(due.iter().copied().zip(to));
        due.len()
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
    pub(super) fn pull(&mut self, device: &Device, keys: &[FeatureKey]) -> Vec<f32> {
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
    pub(super) fn step(
        &mut self,
        device: &Device,
        keys: &[FeatureKey],
        gradients: &[f32],
        update: Update,
    ) {
        let slots = self.slots(device, keys);
        let swept = self.spec.has_whole_table_rule();
        let mut words: Vec<u64> = keys.iter().map(|key| key.0).collect();
        let mut parameters = TableRules {
            rows: self.stored(device, update.step.0),
            slots: device.upload(&slots),
            sums: device.upload(gradients),
            rounding: device
                .upload(&[combine(text_seed(self.spec.seed, "rounding"), update.step.0)]),
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
        keys.iter().for_each(|&key| *self.pushes.entry(key).or_default() += 1);
    }
}
