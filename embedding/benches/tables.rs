//! A benchmark of whole tables with 10 million rows of 16 weights and rowwise AdaGrad. It measures
//! the rows that are pulled and pushed per second, and the bytes that a row takes.

use std::hint::black_box;
use std::num::NonZeroUsize;

mod common;

use common::{gradients, plan_of_range, random_plan, rowwise, spec, update};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use zillion_device::Workers;
use zillion_embedding::TableSet;
use zillion_feature::{LookupPlan, RowBuffer};
use zillion_rows::{DEFAULT_SHARDS, Dtype};

const ROWS: u64 = 10_000_000;
/// The number of unique keys of a step. A batch of 4,096 rows and 26 features has about this
/// number.
const KEYS: u64 = 65_536;

fn tables(criterion: &mut Criterion) {
    let workers = |n| Workers::new(NonZeroUsize::new(n).expect("positive")).expect("threads");
    let two = workers(2);
    let mut set =
        TableSet::new(vec![spec(rowwise(), Dtype::F32)], DEFAULT_SHARDS).expect("a valid spec");

    let start = std::time::Instant::now();
    let mut worst = 0.0f64;
    let mut planning = std::time::Duration::ZERO;
    for first in (0..ROWS).step_by(KEYS as usize) {
        let begun = std::time::Instant::now();
        let plan = plan_of_range(first..(first + KEYS).min(ROWS));
        let gradients = gradients(&plan);
        planning += begun.elapsed();
        set.push(&two, &plan, &gradients, update(1)).expect("memory");
        let table = &set.statistics()[0];
        if table.rows >= ROWS / 2 {
            worst = worst.max(table.total_bytes() as f64 / table.rows as f64);
        }
    }
    let table = &set.statistics()[0];
    eprintln!(
        "created {:.1} M rows/s on two threads; {:.1} bytes a row now, {worst:.1} at worst; {table:?}",
        ROWS as f64 / (start.elapsed() - planning).as_secs_f64() / 1e6,
        table.total_bytes() as f64 / table.rows as f64,
    );

    // There are so many plans that no row of a plan is in a cache when the plan is used again.
    let plans: Vec<LookupPlan> = (0..64).map(|p| random_plan(p, KEYS, ROWS)).collect();
    let gradients: Vec<RowBuffer> = plans.iter().map(gradients).collect();
    let mut group = criterion.benchmark_group("10 M x 16");
    group.throughput(Throughput::Elements(KEYS));
    for threads in [1, 2] {
        let workers = workers(threads);
        let mut rows = RowBuffer::default();
        let mut next = (0..plans.len()).cycle();
        group.bench_function(format!("pull, {threads} threads"), |bencher| {
            bencher.iter(|| {
                let plan = &plans[next.next().expect("endless")];
                set.pull(&workers, plan, false, &mut rows).expect("a valid plan");
                black_box(&mut rows);
            });
        });
        let mut next = (0..plans.len()).cycle();
        group.bench_function(format!("push, {threads} threads"), |bencher| {
            bencher.iter(|| {
                let i = next.next().expect("endless");
                set.push(&workers, &plans[i], &gradients[i], update(2)).expect("a valid plan");
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = tables
}
criterion_main!(benches);
