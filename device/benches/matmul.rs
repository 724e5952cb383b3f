//! Matrix products of a DeepFM step on a tile of 256 rows (429 inputs, hidden layers of 400), on one thread.
//! Read the throughput as multiplications and additions a second.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use zillion_device::matmul;

const ROWS: usize = 256;

fn values(length: usize) -> Vec<f32> {
    (0..length).map(|i| (i % 17) as f32 * 0.1 - 0.8).collect()
}

fn products(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("matmul");
    let mut shape = |name: &str, kind: Kind, m: usize, n: usize, k: usize| {
        let (a, b) = (values(m * k), values(k * n));
        let mut c = vec![0.0f32; m * n];
        group.throughput(Throughput::Elements(2 * (m * n * k) as u64));
        group.bench_function(format!("{name} {m}x{n}x{k}"), |bencher| {
            bencher.iter(|| {
                match kind {
                    Kind::Forward => matmul::nn(m, n, k, &a, &b, 0.0, &mut c),
                    Kind::Input => matmul::nt(m, n, k, &a, &b, 0.0, &mut c),
                    Kind::Weight => matmul::tn(m, n, k, &a, &b, 1.0, &mut c),
                }
                black_box(&mut c);
            });
        });
    };
    for (inputs, outputs) in [(429, 400), (400, 400), (400, 1)] {
        shape("forward", Kind::Forward, ROWS, outputs, inputs);
        shape("input gradient", Kind::Input, ROWS, inputs, outputs);
        shape("weight gradient", Kind::Weight, inputs, outputs, ROWS);
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Forward,
    Input,
    Weight,
}

criterion_group!(benches, products);
criterion_main!(benches);
