//! The elementary functions against `simd::math`: edges and samples by value, and all 2^32 inputs
//! by checksums of chunks.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::kernels::{Geometry, MATH_CHECKSUMS, MATH_VALUES, MathChecksums, MathValues};
use super::super::{Gpu, GpuError};
use super::session::{Random, Session};
use super::{Outcome, Size};
use crate::simd::{math, vectorised};

/// The functions, in the order of their numbers in `math.cu`.
const FUNCTIONS: [&str; 12] = [
    "exp",
    "ln",
    "ln_1p",
    "sigmoid",
    "log1p_exp",
    "tanh",
    "sine of turns",
    "cosine of turns",
    "erf_inv",
    "sqrt",
    "1 / x",
    "3 / (x + 1)",
];

/// The logarithm of the number of inputs of a chunk when all inputs are checked.
const LOG_CHUNK: u32 = 20;

/// Computes a function of consecutive values by the processor.
fn compute(function: usize, values: &mut [f32]) {
    #[inline(always)]
    fn each(values: &mut [f32], f: impl Fn(f32) -> f32) {
        for value in values {
            *value = f(*value);
        }
    }
    macro_rules! run {
        ($f:expr) => {
            vectorised(
                #[inline(always)]
                || each(values, $f),
            )
        };
    }
    match function {
        0 => run!(math::exp),
        1 => run!(math::ln),
        2 => run!(math::ln_1p),
        3 => run!(math::sigmoid),
        4 => run!(math::log1p_exp),
        5 => run!(math::tanh),
        6 => run!(|x| math::sin_cos_2pi(x).0),
        7 => run!(|x| math::sin_cos_2pi(x).1),
        8 => run!(math::erf_inv),
        9 => run!(f32::sqrt),
        10 => run!(|x| 1.0 / x),
        _ => run!(|x| 3.0 / (x + 1.0)),
    }
}

/// Returns the checksum of the results of a chunk, as `math_checksums` computes it.
fn checksum(first: u32, results: &[f32]) -> u64 {
    vectorised(
        #[inline(always)]
        || {
            let mut sum = 0u64;
            for (i, result) in results.iter().enumerate() {
                let bits = result.to_bits();
                let bits = if bits & 0x7fff_ffff > 0x7f80_0000 { 0x7fc0_0000 } else { bits };
                let input = first.wrapping_add(i as u32);
                let mixed = (bits ^ input.wrapping_mul(0x9e37_79b1)).wrapping_mul(0x85eb_ca6b);
                sum = sum.wrapping_add(u64::from(mixed));
            }
            sum
        },
    )
}

/// Compares values: the edges of every exponent, and random bit patterns.
pub(super) fn values(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("math", gpu)?;
    let mut random = Random(7);
    let samples = if size == Size::Small { 2_000 } else { 2_000_000 };
    let edges = (0..=0xffu32).flat_map(|exponent| {
        let start = exponent << 23;
        [start, start + 1, start | 0x3f_ffff, start | 0x7f_ffff]
    });
    let edges = edges.flat_map(|bits| [bits, bits | 0x8000_0000]);
    let mut inputs: Vec<f32> = edges.map(f32::from_bits).collect();
    inputs.extend((0..samples).map(|_| f32::from_bits(random.next() as u32)));
    inputs.extend((0..samples).map(|_| random.unit() * 20.0));
    for (function, name) in FUNCTIONS.iter().enumerate() {
        let input = session.upload(&inputs)?;
        let out = session.poisoned::<f32>(inputs.len())?.address();
        let n = inputs.len() as u64;
        let parameters = MathValues { input, out, n, function: function as u32, unused: 0 };
        session.launch(&MATH_VALUES, Geometry::elements(n), &parameters)?;
        let mut expected = inputs.clone();
        compute(function, &mut expected);
        let got = session.download(out, inputs.len())?;
        session.compare(name, &got, &expected)?;
        session.end_case(name)?;
    }
    session.finish()
}

/// Compares the checksums of chunks of inputs: of all inputs, or of a few small chunks.
pub(super) fn all_inputs(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("math_all_inputs", gpu)?;
    let (log_chunk, groups) = match size {
        Size::Small => (9, (0..16u32).map(|i| (i * 523_987 + 11, 1)).collect::<Vec<_>>()),
        Size::Full => (LOG_CHUNK, vec![(0, 1 << (32 - LOG_CHUNK))]),
    };
    for (function, name) in FUNCTIONS.iter().enumerate() {
        for &(first_chunk, chunks) in &groups {
            let sums = session.poisoned::<u64>(chunks as usize)?.address();
            let function = function as u32;
            let parameters = MathChecksums { sums, function, log_chunk, first_chunk, unused: 0 };
            session.launch(&MATH_CHECKSUMS, Geometry::line(chunks, 256), &parameters)?;
            let expected = checksums(function as usize, log_chunk, first_chunk, chunks as usize);
            let got: Vec<u64> = session.download(sums, chunks as usize)?;
            session.compare_words(name, &got, &expected)?;
            session.end_case(name)?;
        }
    }
    let mut outcome = session.finish()?;
    outcome.compared <<= log_chunk;
    Ok(outcome)
}

/// Computes the checksums of some chunks by all processors.
fn checksums(function: usize, log_chunk: u32, first_chunk: u32, chunks: usize) -> Vec<u64> {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(chunks);
    let work = || {
        let (mut values, mut sums) = (vec![0.0; 1 << log_chunk], Vec::new());
        loop {
            let chunk = next.fetch_add(1, Ordering::Relaxed);
            if chunk >= chunks {
                return sums;
            }
            let first = (first_chunk + chunk as u32) << log_chunk;
            for (i, value) in values.iter_mut().enumerate() {
                *value = f32::from_bits(first.wrapping_add(i as u32));
            }
            compute(function, &mut values);
            sums.push((chunk, checksum(first, &values)));
        }
    };
    let mut all = vec![0; chunks];
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            // A worker computes numbers only; if it ends early, its sums are missing and differ.
            for (chunk, sum) in worker.join().unwrap_or_default() {
                all[chunk] = sum;
            }
        }
    });
    all
}
