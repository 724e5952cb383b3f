//! A program that compares our kernels with the `gemm` crate on one thread. It measures both
//! alternately, and prints the GFLOP/s of each and their ratio for the products of dense layers on
//! a tile of rows.
//!
//! ```text
//! cargo run --release -p zillion-device --example products -- 256   # rows of a tile
//! ```
#![expect(clippy::print_stdout, reason = "printing is what this program does")]

use std::cell::RefCell;
use std::hint::black_box;
use std::time::Instant;

use zillion_device::matmul::{self, Epilogue, Panel, Right, Scratch, View, gemm};
use zillion_device::simd::Level;

/// The number of rounds. The median of the rounds is printed.
const ROUNDS: usize = 15;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rows: usize = arguments.first().and_then(|rows| rows.parse().ok()).unwrap_or(256);
    let level = match arguments.get(1).map(String::as_str) {
        Some("avx2") => Level::Avx2,
        Some("scalar") => Level::Scalar,
        _ => Level::Avx512,
    };
    println!("tiles of {rows} rows; GFLOP/s on one thread, median of {ROUNDS}: ours, gemm, ratio");
    let shapes = [
        (429, 400),
        (400, 400),
        (429, 429),
        (429, 512),
        (512, 256),
        (256, 128),
        (256, 16),
        (13, 512),
        (367, 512),
        (1024, 1024),
        (32, 4),
    ];
    for (k, n) in shapes {
        layer(level, rows, k, n);
    }
}

fn values(length: usize) -> Vec<f32> {
    (0..length).map(|i| (i % 17) as f32 * 0.1 - 0.8).collect()
}

/// Measures the products of one layer of `k` inputs and `n` outputs.
fn layer(level: Level, rows: usize, k: usize, n: usize) {
    let (x, g, w, bias) = (values(rows * k), values(rows * n), values(k * n), values(n));
    let (mut y, mut gx, mut gw) = (vec![0.0; rows * n], vec![0.0; rows * k], vec![0.0; k * n]);
    let weight = View::packed(&w, k, n);
    let pack = |view: View<'_>, k, n| {
        let mut panels = Panel::list_at(level, k, n);
        panels.iter_mut().for_each(|panel| panel.fill(view));
        panels
    };
    let (packed, turned) = (pack(weight, k, n), pack(weight.transposed(), n, k));
    let epilogue = Epilogue { bias: Some(&bias), ..Epilogue::default() };
    let copy_bias = |y: &mut [f32]| {
        for y in y.chunks_exact_mut(n) {
            y.copy_from_slice(&bias);
        }
    };
    let flops = (2 * rows * k * n) as f64;
    let view = |values, columns| View::packed(values, rows, columns);
    report(
        &format!("forward {k}->{n}"),
        flops,
        &mut y,
        |y| matmul::linear_at(level, view(&x, k), Right::Packed(&packed), epilogue, y, n),
        |y| {
            copy_bias(y);
            gemm(rows, n, k, 1.0, &x, k, 1, &w, n, 1, 1.0, y, n);
        },
    );
    report(
        &format!("forward, unpacked {k}->{n}"),
        flops,
        &mut y,
        |y| matmul::linear_at(level, view(&x, k), Right::Plain(weight), epilogue, y, n),
        |y| {
            copy_bias(y);
            gemm(rows, n, k, 1.0, &x, k, 1, &w, n, 1, 1.0, y, n);
        },
    );
    report(
        &format!("input gradient {k}->{n}"),
        flops,
        &mut gx,
        |gx| {
            let epilogue = Epilogue::default();
            matmul::linear_at(level, view(&g, n), Right::Packed(&turned), epilogue, gx, k);
        },
        |gx| gemm(rows, k, n, 1.0, &g, n, 1, &w, 1, n, 0.0, gx, k),
    );
    let scratch = RefCell::new(Scratch::default());
    report(
        &format!("weight gradient {k}->{n}"),
        flops,
        &mut gw,
        |gw| {
            matmul::outer_product_at(
                level,
                view(&x, k),
                view(&g, n),
                true,
                gw,
                n,
                &mut scratch.borrow_mut(),
            )
        },
        |gw| gemm(k, n, rows, 1.0, &x, 1, k, &g, n, 1, 1.0, gw, n),
    );
    let mut panels = [packed, turned];
    let per_row = flops / rows as f64;
    report(
        &format!("packing {k}x{n}, both ways (rows' worth)"),
        per_row,
        &mut panels,
        |panels| panels[0].iter_mut().for_each(|panel| panel.fill(weight)),
        |panels| panels[1].iter_mut().for_each(|panel| panel.fill(weight.transposed())),
    );
}

/// Measures two functions alternately, and prints their rates.
fn report<T: ?Sized>(
    name: &str,
    flops: f64,
    out: &mut T,
    ours: impl Fn(&mut T),
    theirs: impl Fn(&mut T),
) {
    let repeat = ((2e7 / flops) as usize).clamp(1, 2000);
    let time = |out: &mut T, product: &dyn Fn(&mut T)| {
        let begun = Instant::now();
        for _ in 0..repeat {
            product(&mut *out);
        }
        black_box(&mut *out);
        begun.elapsed().as_secs_f64() / repeat as f64
    };
    time(out, &ours);
    time(out, &theirs);
    let (mut own, mut other) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        own.push(time(out, &ours));
        other.push(time(out, &theirs));
    }
    own.sort_by(f64::total_cmp);
    other.sort_by(f64::total_cmp);
    let (own, other) = (own[ROUNDS / 2], other[ROUNDS / 2]);
    println!(
        "{name:42} {:7.1} {:7.1}  {:5.2}",
        flops / own / 1e9,
        flops / other / 1e9,
        other / own
    );
}
