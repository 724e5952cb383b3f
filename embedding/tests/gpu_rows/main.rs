//! The kernels of table rows on the emulated GPU against a set of tables on the processor: the rows
//! of every type, narrow rows, rows that grow, sweeps and new rows have the same bits after each
//! step.

mod mirror;
mod settings;

use std::num::NonZeroUsize;

use zillion_device::Workers;
use zillion_device::gpu::Gpu;
use zillion_device::gpu::emulated::{Emulated, EmulatedOptions};
use zillion_embedding::{Rates, TableSet, Update};
use zillion_feature::random::{combine, unit_f32};
use zillion_feature::{FeatureKey, RowBuffer, Step, TableId};
use zillion_rows::conformance::plan_of;
use zillion_rows::{
    Bounds, ClipSpec, Dtype, Growth, InitializerSpec, OptimizerSpec, Scope, SegmentSpec, TableSpec,
};

use crate::mirror::{Device, Mirror};
use crate::settings::width;

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
    let growing =
        |table: TableSpec, from| TableSpec { grow: Some(Growth { at: 3, from }), ..table };
    let mut tables = Vec::new();
    for dtype in Dtype::ALL {
        let name = |name: &str| format!("{name}_{}", dtype.name());
        let vector = segment("v", 16, normal, rowwise, 0.01);
        let linear = segment("linear", 1, uniform, ftrl, 0.0);
        tables.push(table(&name("wide"), dtype, false, vec![vector, linear.clone()]));
        let lazy = vec![segment("a", 9, uniform, adam, 0.0), guarded.clone()];
        tables.push(table(&name("lazy"), dtype, false, lazy));
        let groups =
            vec![segment("f", 8, normal, group, 0.0), segment("m", 3, normal, momentum, 0.0)];
        tables.push(table(&name("groups"), dtype, false, groups));
        let exact = vec![segment("v", 10, normal, adam, 0.05), touched.clone(), guarded.clone()];
        tables.push(table(&name("dense_exact"), dtype, true, exact));
        let decay =
            vec![segment("a", 3, normal, sgd, 0.1), segment("b", 5, truncated, adagrad, 0.0)];
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
    let mut grown = 0;
    for step in 1..=6u64 {
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
                    grown += mirror.grow(&device);
                }
            }
            if round == 0 {
                set.push(&workers, &plan, &all, update).expect("a push");
                set.sweep(&workers, update).expect("a sweep");
                set.pull(&workers, &plan, false, &mut rows).expect("rows");
            }
        }
    }
    let counters = set.statistics();
    assert_eq!(counters.iter().map(|table| table.counters.grown).sum::<u64>(), grown as u64);
    assert!(grown > 20, "{grown} rows have grown");
}
