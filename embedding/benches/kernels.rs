//! Benchmarks of the single parts of a table: the order of the stages of a lookup, the index,
//! copies of rows, pulls by number type, pushes by rule, inserts, and the part of a checkpoint that
//! is written after a push. They use one thread and a million rows of 16 weights. So many rows fit
//! into no cache.
//!
//! The index is compared with the map of `std`, which is hashbrown. The keys are already mixed and
//! need no hash. `cargo bench -p zillion-embedding --bench kernels -- push` runs only the
//! benchmarks with `push` in their names.

mod common;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use common::{DIM, gradients, plan_of_range, random_plan, rowwise, spec, update};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use zillion_device::prefetch::prefetch_read;
use zillion_device::{Files, Slab, Workers};
use zillion_embedding::TableSet;
use zillion_embedding::testing::IndexAlone;
use zillion_feature::random::mix64;
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer};
use zillion_rows::{DEFAULT_SHARDS, Dtype, OptimizerSpec};

const ROWS: u64 = 1_000_000;
/// The number of unique keys of a step.
const KEYS: u64 = 16_384;
/// The number of different plans, which are used in turn. With so many plans, no plan finds its
/// rows in a cache.
const PLANS: u64 = 64;
/// The number of rows that are copied to the checkpoint after each push.
const COPIED: usize = 1024;

/// A hasher for keys that are already mixed: the hash of a key is the key itself.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, &byte| hash << 8 | u64::from(byte));
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

type Hashbrown = HashMap<u64, u32, BuildHasherDefault<AsItIs>>;

fn one() -> Workers {
    Workers::new(NonZeroUsize::MIN).expect("a pool of one has no threads of its own")
}

fn plans() -> Vec<LookupPlan> {
    (0..PLANS).map(|number| random_plan(number, KEYS, ROWS)).collect()
}

/// Returns a table that has a row for each of the [`ROWS`] keys.
fn filled(optimizer: OptimizerSpec, dtype: Dtype) -> TableSet {
    let workers = one();
    let mut set =
        TableSet::new(vec![spec(optimizer, dtype)], DEFAULT_SHARDS).expect("a valid spec");
    for first in (0..ROWS).step_by(KEYS as usize) {
        let plan = plan_of_range(first..(first + KEYS).min(ROWS));
        set.push(&workers, &plan, &gradients(&plan), update(1)).expect("memory");
    }
    set
}

fn index(criterion: &mut Criterion) {
    let keys: Vec<FeatureKey> = (0..ROWS).map(FeatureKey::from_u64).collect();
    let ours = IndexAlone::of(&keys).expect("memory");
    let theirs: Hashbrown = keys.iter().map(|key| key.0).zip(0..).collect();
    let plans = plans();
    let mut group = criterion.benchmark_group("index");
    group.throughput(Throughput::Elements(KEYS));
    let mut rows = vec![0u32; KEYS as usize];
    let mut next = plans.iter().cycle();
    group.bench_function("ours", |bencher| {
        bencher.iter(|| {
            let keys = &next.next().expect("endless").tables[0].keys;
            black_box(ours.find(keys, &mut rows[..keys.len()]))
        });
    });
    let mut next = plans.iter().cycle();
    group.bench_function("hashbrown", |bencher| {
        bencher.iter(|| {
            let keys = &next.next().expect("endless").tables[0].keys;
            let mut found = 0;
            for (key, row) in keys.iter().zip(&mut rows) {
                let place = theirs.get(&key.0);
                found += usize::from(place.is_some());
                *row = place.copied().unwrap_or(u32::MAX);
            }
            black_box(found)
        });
    });
    group.finish();
}

fn copies(criterion: &mut Criterion) {
    let mut slab = Slab::<f32>::new(DIM).expect("a row of a usual size");
    let rows: Vec<u32> = (0..ROWS).map(|_| slab.alloc().expect("memory")).collect();
    let chosen: Vec<u32> = (0..KEYS * PLANS).map(|i| rows[(mix64(i) % ROWS) as usize]).collect();
    let mut out = vec![0.0f32; KEYS as usize * DIM];
    let mut next = chosen.chunks_exact(KEYS as usize).cycle();
    let mut group = criterion.benchmark_group("row copies");
    group.throughput(Throughput::Elements(KEYS));
    group.bench_function("16 x f32", |bencher| {
        bencher.iter(|| {
            let rows = next.next().expect("endless");
            for (i, (to, &row)) in out.chunks_exact_mut(DIM).zip(rows).enumerate() {
                if let Some(&later) = rows.get(i + 16) {
                    slab.prefetch(later);
                }
                to.copy_from_slice(slab.row(row));
            }
            black_box(&mut out);
        });
    });
    group.finish();
}

fn pulls(criterion: &mut Criterion) {
    let (workers, plans) = (one(), plans());
    let mut group = criterion.benchmark_group("pull");
    group.throughput(Throughput::Elements(KEYS));
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
        let mut set = filled(rowwise(), dtype);
        let (mut next, mut rows) = (plans.iter().cycle(), RowBuffer::default());
        group.bench_function(BenchmarkId::from_parameter(dtype.name()), |bencher| {
            bencher.iter(|| {
                let plan = next.next().expect("endless");
                set.pull(&workers, plan, false, &mut rows).expect("a valid plan");
                black_box(&mut rows);
            });
        });
    }
    group.finish();
}

fn pushes(criterion: &mut Criterion) {
    let (workers, plans) = (one(), plans());
    let raw: Vec<RowBuffer> = plans.iter().map(gradients).collect();
    let rules = [
        ("sgd", OptimizerSpec::Sgd { lr: 0.01 }),
        (
            "momentum",
            OptimizerSpec::Momentum { lr: 0.01, momentum: 0.9, nesterov: false, scope: None },
        ),
        ("adagrad", OptimizerSpec::Adagrad { lr: 0.01, initial_accumulator: 0.1, eps: 1e-8 }),
        ("rowwise adagrad", rowwise()),
        ("adam", OptimizerSpec::adam(0.01)),
        ("ftrl", OptimizerSpec::Ftrl { lr: 0.01, beta: 1.0, l1: 1e-3, l2: 0.0, l21: 0.0 }),
        ("group ftrl", OptimizerSpec::Ftrl { lr: 0.01, beta: 1.0, l1: 1e-3, l2: 0.0, l21: 1e-3 }),
    ];
    let types = [Dtype::F32, Dtype::Bf16];
    let mut group = criterion.benchmark_group("push");
    group.throughput(Throughput::Elements(KEYS));
    for (name, rule) in rules {
        for dtype in types {
            let mut set = filled(rule, dtype);
            let mut next = (0..plans.len()).cycle();
            group.bench_function(BenchmarkId::new(name, dtype.name()), |bencher| {
                bencher.iter(|| {
                    let i = next.next().expect("endless");
                    set.push(&workers, &plans[i], &raw[i], update(2)).expect("a valid plan");
                });
            });
        }
    }
    group.finish();
}

/// Measures the creation of rows. The tables grow from empty to [`ROWS`] rows and are then dropped,
/// so every measured push has only new keys.
fn inserts(criterion: &mut Criterion) {
    let workers = one();
    let plans: Vec<LookupPlan> =
        (0..ROWS / KEYS).map(|number| plan_of_range(number * KEYS..(number + 1) * KEYS)).collect();
    let raw = gradients(&plans[0]);
    let mut group = criterion.benchmark_group("insert");
    group.throughput(Throughput::Elements(KEYS));
    group.bench_function("0 to a million rows", |bencher| {
        bencher.iter_custom(|times| {
            let mut busy = Duration::ZERO;
            let mut set = None;
            for time in 0..times as usize {
                let at = time % plans.len();
                if at == 0 {
                    let spec = spec(rowwise(), Dtype::F32);
                    set = Some(TableSet::new(vec![spec], DEFAULT_SHARDS).expect("a valid spec"));
                }
                let set = set.as_mut().expect("it was just made");
                let began = Instant::now();
                set.push(&workers, &plans[at], &raw, update(1)).expect("memory");
                busy += began.elapsed();
            }
            busy
        });
    });
    group.finish();
}

/// Measures [`TableSet::advance_snapshot`] after a push. The beginning and the end of checkpoints
/// are not measured.
fn slices(criterion: &mut Criterion) {
    // A second thread of the pool writes the parts.
    let workers = Workers::new(NonZeroUsize::MIN.saturating_add(1)).expect("threads");
    let mut set = filled(rowwise(), Dtype::F32);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut number = 0;
    let mut group = criterion.benchmark_group("snapshot");
    group.throughput(Throughput::Elements(COPIED as u64));
    group.sample_size(10);
    group.bench_function("a slice", |bencher| {
        bencher.iter_custom(|times| {
            let mut busy = Duration::ZERO;
            let mut is_open = false;
            for time in 0..times {
                // Another checkpoint begins after a quarter of the rows has been copied, so no
                // checkpoint is ever complete.
                if time % (ROWS / 4 / COPIED as u64) == 0 {
                    if is_open {
                        set.abandon_snapshot();
                    }
                    number += 1;
                    let place = folder.path().join(number.to_string());
                    std::fs::create_dir(&place).expect("a folder");
                    set.begin_snapshot(&workers, &place, &Files::new()).expect("a checkpoint");
                    is_open = true;
                }
                let began = Instant::now();
                set.advance_snapshot(&workers, COPIED);
                busy += began.elapsed();
            }
            set.abandon_snapshot();
            busy
        });
    });
    group.finish();
}

/// A cache line, with the alignment of a cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([f32; 16]);

/// Measures the reading of three random cache lines and some work for each key, as in a push. It
/// compares two orders of the prefetches: one key after another, and a block of sixteen keys for
/// each stage. The work is a chain of multiplications of a given length.
fn orders(c: &mut Criterion) {
    const LINES: usize = 1 << 20;
    const AHEAD: usize = 16;
    let memory: [Vec<Line>; 3] = std::array::from_fn(|_| vec![Line([1.0; 16]); LINES]);
    let keys: Vec<[usize; 3]> = (0..1 << 20)
        .map(|i| std::array::from_fn(|of| mix64(3 * i + of as u64) as usize % LINES))
        .collect();
    let ask = |of: usize, key: &[usize; 3]| prefetch_read(&memory[of], key[of]);
    let work = |key: &[usize; 3], length: u32| {
        let at = key[0] % 16;
        let start: f32 = (0..3).map(|of| memory[of][key[of]].0[at]).sum();
        (0..length).fold(start, |x, _| x * black_box(0.999))
    };
    let mut group = c.benchmark_group("order");
    group.throughput(Throughput::Elements((keys.len() - 2 * AHEAD) as u64));
    for length in [0, 4, 16] {
        group.bench_function(BenchmarkId::new("key by key", length), |b| {
            b.iter(|| {
                let mut sum = 0.0;
                for window in keys.windows(2 * AHEAD + 1) {
                    ask(0, &window[2 * AHEAD]);
                    ask(1, &window[AHEAD]);
                    ask(2, &window[AHEAD]);
                    sum += work(&window[0], length);
                }
                sum
            });
        });
        group.bench_function(BenchmarkId::new("in blocks", length), |b| {
            b.iter(|| {
                let mut sum = 0.0;
                for block in keys.windows(3 * AHEAD).step_by(AHEAD) {
                    block[2 * AHEAD..].iter().for_each(|key| ask(0, key));
                    block[AHEAD..2 * AHEAD].iter().for_each(|key| ask(1, key));
                    block[AHEAD..2 * AHEAD].iter().for_each(|key| ask(2, key));
                    sum += block[..AHEAD].iter().map(|key| work(key, length)).sum::<f32>();
                }
                sum
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(Duration::from_secs(2));
    targets = orders, index, copies, pulls, pushes, inserts, slices
}
criterion_main!(benches);
