//! Benchmarks of loops at each level of the instruction set, of a phase of the pool, and of random
//! access to the rows of a slab.

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use zillion_device::Workers;
use zillion_device::probe::RowProbe;
use zillion_device::simd::{Level, level, math, vectorised_at};

const LENGTH: usize = 4096;

fn loops(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("loops");
    group.throughput(Throughput::Elements(LENGTH as u64));
    let inputs: Vec<f32> = (0..LENGTH).map(|i| i as f32 * 0.005 - 10.0).collect();
    let mut outputs = vec![0.0f32; LENGTH];
    for wanted in Level::ALL.into_iter().filter(|wanted| *wanted <= level()) {
        // The loop is in the macro, because a function pointer would not be inlined.
        macro_rules! bench {
            ($name:literal, $body:expr) => {
                group.bench_function(format!("{} {wanted:?}", $name), |bencher| {
                    bencher.iter(|| {
                        vectorised_at(
                            wanted,
                            #[inline(always)]
                            || {
                                for (output, input) in outputs.iter_mut().zip(&inputs) {
                                    $body(output, *input);
                                }
                            },
                        );
                        black_box(&mut outputs);
                    });
                });
            };
        }
        bench!("subtract scaled", |output: &mut f32, input: f32| *output -= 0.01 * input);
        bench!("exp", |output: &mut f32, input: f32| *output = math::exp(input));
        bench!("ln", |output: &mut f32, input: f32| *output = math::ln(input));
        bench!("sigmoid", |output: &mut f32, input: f32| *output = math::sigmoid(input));
        bench!("log1p_exp", |output: &mut f32, input: f32| *output = math::log1p_exp(input));
        bench!("tanh", |output: &mut f32, input: f32| *output = math::tanh(input));
    }
    group.finish();
}

fn phases(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("phases");
    for threads in 1..=zillion_device::machine::cpus().get().min(8) {
        let workers =
            Workers::new(NonZeroUsize::new(threads).expect("from one up")).expect("threads");
        for (name, work) in [("empty", 0), ("8 tasks of 20 us", 20), ("8 tasks of 100 us", 100)] {
            let work = Duration::from_micros(work);
            group.bench_function(format!("{name}, {threads} threads"), |bencher| {
                bencher.iter(|| {
                    workers.for_each(8, |_| {
                        let start = Instant::now();
                        while start.elapsed() < work {
                            std::hint::spin_loop();
                        }
                    });
                });
            });
        }
    }
    group.finish();
}

/// Measures the rates of random access to rows, and prints them in rows per second. Each rate is
/// measured in one long run, without criterion.
fn rows(_: &mut Criterion) {
    let mut probe = RowProbe::new(10_000_000).expect("640 MB");
    let duration = Duration::from_secs(1);
    eprintln!("random rows of 64 bytes, 10 million, one thread:");
    eprintln!("  read   {:.1} M/s", probe.reads_per_second(duration) / 1e6);
    eprintln!("  update {:.1} M/s", probe.updates_per_second(duration) / 1e6);
}

criterion_group!(benches, loops, phases, rows);
criterion_main!(benches);
