//! Benchmarks of the matrix products in a training step of DeepFM, on one thread, for our kernels
//! (with factors of f32, and of bf16 where the machine has the instructions) and for the `gemm`
//! crate. A tile has 256 rows and 429 inputs, and the hidden layers have 400
//! units. The throughput is the number of multiplications and additions per second. If the machine
//! does other work at the same time, the example `products` gives better ratios, because it
//! measures both alternately.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use zillion_device::matmul::{
    self, Epilogue, Int8Rows, Int8Weight, Panel, Right, Scratch, View, bf16,
};

const ROWS: usize = 256;

fn values(length: usize) -> Vec<f32> {
    (0..length).map(|i| (i % 17) as f32 * 0.1 - 0.8).collect()
}

fn packed(view: View<'_>, k: usize, n: usize) -> Vec<Panel> {
    let mut panels = Panel::list(k, n);
    panels.iter_mut().for_each(|panel| panel.fill(view));
    panels
}

fn products(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("matmul");
    let mut bench = |name: &str, flops: usize, product: &mut dyn FnMut()| {
        group.throughput(Throughput::Elements(flops as u64));
        group.bench_function(name, |bencher| bencher.iter(&mut *product));
    };
    for (k, n) in [(429, 400), (400, 400), (13, 512), (256, 16), (16, 16), (8, 400), (400, 8)] {
        let (x, g, w) = (values(ROWS * k), values(ROWS * n), values(k * n));
        let weight = View::packed(&w, k, n);
        let (plain, turned) = (packed(weight, k, n), packed(weight.transposed(), n, k));
        let rows = |values, columns| View::packed(values, ROWS, columns);
        let flops = 2 * ROWS * k * n;
        let (mut y, mut gx) = (vec![0.0f32; ROWS * n], vec![0.0f32; ROWS * k]);
        let mut gw = vec![0.0f32; k * n];
        let mut scratch = Scratch::default();
        let to = Epilogue::default();
        bench(&format!("forward {k}->{n}, ours"), flops, &mut || {
            matmul::linear(rows(&x, k), Right::Packed(&plain), to, &mut y, n);
            black_box(&mut y);
        });
        let eighth = Int8Weight::pack(weight).expect("a small weight");
        let mut quantised = Int8Rows::default();
        bench(&format!("forward {k}->{n}, int8 with quantisation"), flops, &mut || {
            quantised.quantize(rows(&x, k));
            matmul::linear_int8(&quantised, &eighth, to, &mut y, n);
            black_box(&mut y);
        });
        bench(&format!("forward {k}->{n}, gemm"), flops, &mut || {
            matmul::nn(ROWS, n, k, &x, &w, 0.0, &mut y);
            black_box(&mut y);
        });
        bench(&format!("input gradient {k}->{n}, ours"), flops, &mut || {
            matmul::linear(rows(&g, n), Right::Packed(&turned), to, &mut gx, k);
            black_box(&mut gx);
        });
        bench(&format!("input gradient {k}->{n}, gemm"), flops, &mut || {
            matmul::nt(ROWS, k, n, &g, &w, 0.0, &mut gx);
            black_box(&mut gx);
        });
        bench(&format!("weight gradient {k}->{n}, ours"), flops, &mut || {
            matmul::outer_product(rows(&x, k), rows(&g, n), true, &mut gw, n, &mut scratch);
            black_box(&mut gw);
        });
        bench(&format!("weight gradient {k}->{n}, gemm"), flops, &mut || {
            matmul::tn(k, n, ROWS, &x, &g, 1.0, &mut gw);
            black_box(&mut gw);
        });
    }
}

fn narrow_products(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("matmul of bf16");
    for set in bf16::Instructions::list() {
        for (k, n) in [(429, 400), (400, 400), (13, 512), (256, 16), (16, 16), (8, 400), (400, 8)] {
            let (x, g, w) = (values(ROWS * k), values(ROWS * n), values(k * n));
            let weight = View::packed(&w, k, n);
            let packed = |view: View<'_>, k, n| {
                let mut panels = bf16::Panel::list(k, n);
                panels.iter_mut().for_each(|panel| panel.fill(view));
                panels
            };
            let (plain, turned) = (packed(weight, k, n), packed(weight.transposed(), n, k));
            let (mut y, mut gx) = (vec![0.0f32; ROWS * n], vec![0.0f32; ROWS * k]);
            let (mut gw, mut scratch) = (vec![0.0f32; k * n], bf16::Scratch::default());
            let rows = |values, columns| View::packed(values, ROWS, columns);
            let to = Epilogue::default();
            let mut bench = |name: &str, product: &mut dyn FnMut()| {
                group.throughput(Throughput::Elements(2 * (ROWS * k * n) as u64));
                group.bench_function(format!("{name} {k}->{n}, {set}"), |bencher| {
                    bencher.iter(&mut *product);
                });
            };
            bench("forward", &mut || {
                bf16::linear(set, rows(&x, k), &plain, to, &mut y, n, &mut scratch);
                black_box(&mut y);
            });
            bench("input gradient", &mut || {
                bf16::linear(set, rows(&g, n), &turned, to, &mut gx, k, &mut scratch);
                black_box(&mut gx);
            });
            bench("weight gradient", &mut || {
                let (x, g) = (rows(&x, k), rows(&g, n));
                bf16::outer_product(set, x, g, true, &mut gw, n, &mut scratch);
                black_box(&mut gw);
            });
        }
    }
}

criterion_group!(benches, products, narrow_products);
criterion_main!(benches);
