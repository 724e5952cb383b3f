//! Measurements of the best rates of the machine. Benchmarks compare their own rates with them.

mod disk;

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::error::DeviceError;
use crate::slab::Slab;
use crate::{matmul, simd};

pub use disk::{DiskSpeed, measure_disk};

/// The number of elements in a probed row. A row fills one cache line.
const STRIDE: usize = 16;
/// The distance in rows at which a row is prefetched before its use.
const AHEAD: u64 = 16;
/// The number of rows after which the clock is read.
const ROWS: u64 = 4096;

/// A probe of random access to a large slab of 64-byte rows. This is the access pattern of an
/// embedding table. For several threads, make one probe per thread, and run the probes at the same
/// time.
#[derive(Debug)]
pub struct RowProbe {
    slab: Slab<f32>,
    rows: u64,
}

impl RowProbe {
    /// Creates a slab of `rows` rows and touches all of them.
    ///
    /// # Errors
    ///
    /// Returns an error if there is not enough memory.
    pub fn new(rows: u32) -> Result<Self, DeviceError> {
        let mut slab = Slab::new(STRIDE)?;
        for _ in 0..rows.max(1) {
            let row = slab.alloc()?;
            slab.row_mut(row).fill(1.0);
        }
        Ok(Self { slab, rows: u64::from(rows.max(1)) })
    }

    /// Measures the number of random rows that this thread reads per second, with prefetch.
    pub fn reads_per_second(&self, duration: Duration) -> f64 {
        let mut sums = [0.0f32; STRIDE];
        let rate = measure_rate(duration, ROWS, |number| {
            self.slab.prefetch(self.random_row(number + AHEAD));
            let row = self.slab.row(self.random_row(number));
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += value;
            }
        });
        black_box(sums);
        rate
    }

    /// Measures the number of random rows that this thread reads, changes and writes back per
    /// second, with prefetch.
    pub fn updates_per_second(&mut self, duration: Duration) -> f64 {
        measure_rate(duration, ROWS, |number| {
            self.slab.prefetch_mut(self.random_row(number + AHEAD));
            let row = self.random_row(number);
            for value in self.slab.row_mut(row) {
                *value *= 0.999;
            }
        })
    }

    /// Returns a pseudo-random row index that depends only on `number`.
    #[inline(always)]
    fn random_row(&self, number: u64) -> u32 {
        let mixed = (number ^ (number >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (((mixed >> 32) * self.rows) >> 32) as u32
    }
}

/// Measures the number of multiplications and additions per second of a large product on this
/// thread.
pub fn gemm_flops_per_second(duration: Duration) -> f64 {
    const SIZE: usize = 768;
    let left = vec![0.5f32; SIZE * SIZE];
    let right = vec![0.25f32; SIZE * SIZE];
    let mut out = vec![0.0f32; SIZE * SIZE];
    let products = measure_rate(duration, 1, |_| {
        matmul::nn(SIZE, SIZE, SIZE, &left, &right, 0.0, &mut out);
    });
    black_box(&out);
    products * 2.0 * (SIZE * SIZE * SIZE) as f64
}

/// Measures the bytes per second that this thread moves between its registers and its first-level
/// cache. The measured loop reads two arrays and writes one of them.
pub fn cached_bytes_per_second(duration: Duration) -> f64 {
    const FLOATS: usize = 8192;
    let from = vec![0.5f32; FLOATS];
    let mut to = vec![0.25f32; FLOATS];
    let rounds = measure_rate(duration, 64, |_| {
        let (from, to) = (black_box(&from), black_box(&mut to));
        simd::vectorised(
            #[inline(always)]
            || to.iter_mut().zip(from).for_each(|(to, from)| *to = *to * 0.5 + from),
        );
    });
    rounds * (3 * size_of::<f32>() * FLOATS) as f64
}

/// Measures the number of calls of `body` per second. The argument of the first call is 0, and each
/// further call has the next number. The clock is read after every `batch` calls.
#[inline(always)]
fn measure_rate(duration: Duration, batch: u64, mut body: impl FnMut(u64)) -> f64 {
    let start = Instant::now();
    let mut number = 0;
    loop {
        for _ in 0..batch {
            body(number);
            number += 1;
        }
        let elapsed = start.elapsed();
        if elapsed >= duration {
            return number as f64 / elapsed.as_secs_f64();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probes_measure_something() {
        let moment = Duration::from_millis(5);
        let mut rows = RowProbe::new(10_000).unwrap();
        assert!(rows.reads_per_second(moment) > 1e5);
        assert!(rows.updates_per_second(moment) > 1e5);
        assert!(gemm_flops_per_second(moment) > 1e7);
        assert!(cached_bytes_per_second(moment) > 1e7);
    }

    #[test]
    fn random_rows_cover_the_slab() {
        let rows = RowProbe::new(100).unwrap();
        let mut seen = [false; 100];
        for number in 0..2_000 {
            seen[rows.random_row(number) as usize] = true;
        }
        assert!(seen.iter().all(|seen| *seen));
    }
}
