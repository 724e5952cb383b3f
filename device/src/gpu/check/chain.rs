//! Chains of functions, dropout and copies against their definitions (`nn/src/ops`), by bits.

use super::super::kernels::{
    CHAIN, COPY_COLUMNS, Chain, CopyColumns, Count, DROPOUT, Dropout, Function, Geometry, Link,
    NARROW, Narrow, Rows,
};
use super::super::{Gpu, GpuError};
use super::session::{Matrix, Random, Session, Values};
use super::{Outcome, Size};
use crate::simd::math;

const GELU_SCALE: f32 = 0.797_884_6;
const GELU_CUBE: f32 = 0.044_715;

fn unary(function: u32, by: f32, x: f32) -> f32 {
    match function {
        Function::RELU => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        Function::LEAKY_RELU => {
            if x > 0.0 {
                x
            } else {
                by * x
            }
        }
        Function::SIGMOID => math::sigmoid(x),
        Function::TANH => math::tanh(x),
        Function::GELU => {
            let inner = GELU_SCALE * (x + GELU_CUBE * x * x * x);
            0.5 * x * (1.0 + math::tanh(inner))
        }
        Function::SILU => x * math::sigmoid(x),
        Function::SOFTPLUS => math::log1p_exp(x),
        Function::SQUARE => x * x,
        Function::SQRT => x.sqrt(),
        Function::EXP => math::exp(x),
        Function::LN => math::ln(x),
        Function::SCALE => by * x,
        _ => x + by,
    }
}

fn unary_grad(function: u32, by: f32, g: f32, x: f32) -> f32 {
    match function {
        Function::RELU => {
            if x > 0.0 {
                g
            } else {
                0.0
            }
        }
        Function::LEAKY_RELU => {
            if x > 0.0 {
                g
            } else {
                by * g
            }
        }
        Function::SIGMOID => g * x * (1.0 - x),
        Function::TANH => g * (1.0 - x * x),
        Function::GELU => {
            let inner = GELU_SCALE * (x + GELU_CUBE * x * x * x);
            let tanh = math::tanh(inner);
            let slope = GELU_SCALE * (1.0 + 3.0 * GELU_CUBE * x * x);
            g * (0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * slope)
        }
        Function::SILU => {
            let s = math::sigmoid(x);
            g * s * (1.0 + x * (1.0 - s))
        }
        Function::SOFTPLUS => g * math::sigmoid(x),
        Function::SQUARE => 2.0 * g * x,
        Function::SQRT => 0.5 * g / x,
        Function::EXP => g * x,
        Function::LN => g / x,
        Function::SCALE => by * g,
        _ => g,
    }
}

fn binary(function: u32, a: f32, b: f32) -> f32 {
    match function {
        Function::ADD => a + b,
        Function::SUB => a - b,
        Function::MUL => a * b,
        Function::DIV => a / b,
        _ => {
            if b == 0.0 {
                0.0
            } else {
                a / b
            }
        }
    }
}

fn apply(link: &Link, o: f32, x: f32, y: f32, divisor: u32) -> f32 {
    match link.kind {
        Link::UNARY => unary(link.function, link.by, o),
        Link::UNARY_GRAD => unary_grad(link.function, link.by, o, x),
        Link::POINT_OF => unary_grad(link.function, link.by, x, o),
        Link::BINARY => binary(link.function, o, x),
        Link::BINARY_OF => binary(link.function, x, o),
        Link::MUL_ADD => o * x + y,
        Link::ADD_PRODUCT => x * y + o,
        _ => 1.0 / divisor as f32 * o,
    }
}

/// A matrix that may be broadcast over rows or columns.
fn operand(random: &mut Random, rows: usize, cols: usize, values: Values) -> Matrix {
    let (cols, gap) =
        if random.once_in(4) { (1, random.below(2)) } else { (cols, random.below(6)) };
    if random.once_in(4) {
        Matrix { stride: 0, ..Matrix::random(random, 1, cols, 0, values) }
    } else {
        Matrix::random(random, rows, cols, gap, values)
    }
}

/// Compares every link alone, and random chains of up to eight links.
pub(super) fn chains(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("chain", gpu)?;
    let mut random = Random(41);
    let mut cases: Vec<Vec<(u32, u32)>> = vec![vec![]];
    for function in 0..=Function::OFFSET {
        cases.extend(
            [Link::UNARY, Link::UNARY_GRAD, Link::POINT_OF].map(|kind| vec![(kind, function)]),
        );
    }
    for function in 0..=Function::SAFE_DIV {
        cases.extend([Link::BINARY, Link::BINARY_OF].map(|kind| vec![(kind, function)]));
    }
    cases.extend([Link::MUL_ADD, Link::ADD_PRODUCT, Link::OVER_ROWS].map(|kind| vec![(kind, 0)]));
    for _ in 0..60 {
        let links = 2 + random.below(7);
        let link = |_| {
            let kind = random.below(8) as u32;
            let functions = if kind == Link::BINARY || kind == Link::BINARY_OF { 5 } else { 13 };
            (kind, random.below(functions) as u32)
        };
        cases.push((0..links).map(link).collect());
    }
    for (case, kinds) in cases.iter().enumerate() {
        let (rows, cols) = match size {
            Size::Small => (1 + random.below(12), [1, 4, 13, 16, 30][case % 5]),
            Size::Full => (1 + random.below(3000), [1, 16, 400, 429, 7][case % 5]),
        };
        let name = format!("{rows} x {cols}, links {kinds:?}");
        let values = if case % 4 == 3 { Values::Special } else { Values::Plain };
        let mut start = operand(&mut random, rows, cols, values);
        // Now and then the chain works in place.
        let in_place = case % 3 == 0 && start.cols == cols && start.stride > 0;
        let mut operands = Vec::new();
        for &(kind, function) in kinds {
            let link = Link { kind, function, by: random.unit(), ..Link::default() };
            let [mut x, y] = [(); 2].map(|()| operand(&mut random, rows, cols, values));
            if let Some(zero) = x.values.first_mut().filter(|_| case % 2 == 0) {
                *zero = 0.0;
            }
            operands.push((link, x, y));
        }
        let divisor = 37;
        let mut expected = if in_place {
            start.values.clone()
        } else {
            vec![f32::from_bits(u32::MAX); rows * (cols + 3)]
        };
        let out_stride = if in_place { start.stride } else { cols + 3 };
        for row in 0..rows {
            for col in 0..cols {
                let mut o = start.at(row, col);
                for (link, x, y) in &operands {
                    o = apply(link, o, x.at(row, col), y.at(row, col), divisor);
                }
                expected[row * out_stride + col] = o;
            }
        }
        let start_at = start.upload(&session)?;
        let out = if in_place {
            start_at.data
        } else {
            session.poisoned::<f32>(expected.len())?.address()
        };
        let mut chain = Chain {
            start: start_at,
            out: Rows { data: out, stride: out_stride as u32, cols: cols as u32 },
            rows: Count::at(session.upload(&[rows as u32])?, rows as u32 + 9),
            divisor: Count::at(session.upload(&[divisor])?, u32::MAX),
            links: operands.len() as u32,
            ..Chain::default()
        };
        for (to, (link, x, y)) in chain.link.iter_mut().zip(&operands) {
            *to = Link { x: x.upload(&session)?, y: y.upload(&session)?, ..*link };
        }
        session.launch(&CHAIN, chain.geometry(), &chain)?;
        let got = session.download(out, expected.len())?;
        session.compare(&name, &got, &expected)?;
        session.end_case(&name)?;
        start.values.clear();
    }
    session.finish()
}

fn mix64(x: u64) -> u64 {
    let z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn combine(seed: u64, word: u64) -> u64 {
    mix64(seed ^ mix64(word))
}

fn mix32(x: u32) -> u32 {
    let x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    let x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// Compares the masks of dropout.
pub(super) fn dropouts(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("dropout", gpu)?;
    let mut random = Random(42);
    let rows = if size == Size::Small { 30 } else { 8192 };
    for (cols, rate) in [(17usize, 0.5f32), (4, 0.1), (40, 0.0)] {
        let name = format!("{rows} x {cols}, rate {rate}");
        let x = Matrix::random(&mut random, rows, cols, 2, Values::Plain);
        let seed = [random.next(), 77];
        let (salt, factor) = (5, 1.0 / (1.0 - rate));
        let threshold = (f64::from(rate) * 4_294_967_296.0) as u32;
        let layer = combine(combine(seed[0], seed[1]), u64::from(salt));
        let mut expected = vec![f32::from_bits(u32::MAX); rows * cols];
        for row in 0..rows {
            let stream = (combine(layer, row as u64) >> 32) as u32;
            for unit in 0..cols {
                let bits = mix32(stream ^ (unit as u32).wrapping_mul(0x9e37_79b9));
                let kept = bits >= threshold;
                expected[row * cols + unit] = if kept { x.at(row, unit) * factor } else { 0.0 };
            }
        }
        let out = session.poisoned::<f32>(expected.len())?.address();
        let parameters = Dropout {
            x: x.upload(&session)?,
            out: Rows { data: out, stride: cols as u32, cols: cols as u32 },
            rows: Count::fixed(rows as u32),
            seed: session.upload(&seed)?,
            salt,
            threshold,
            factor,
            unused: 0,
        };
        session.launch(&DROPOUT, Geometry::elements((rows * cols) as u64), &parameters)?;
        let got = session.download(out, expected.len())?;
        session.compare(&name, &got, &expected)?;
        session.end_case(&name)?;
    }
    session.finish()
}

/// Compares copies into columns, with and without zeros around them.
pub(super) fn copies(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("copy_columns", gpu)?;
    let mut random = Random(43);
    let rows = if size == Size::Small { 11 } else { 5000 };
    for (cols, width, start, fill) in [(3, 10, 4, 0), (3, 10, 4, 1), (16, 16, 0, 1), (1, 5, 4, 1)] {
        let name = format!("{rows} rows, {cols} of {width} columns from {start}, fill {fill}");
        let x = Matrix::random(&mut random, rows, cols, 1, Values::Special);
        let mut expected = vec![f32::from_bits(u32::MAX); rows * width];
        for row in 0..rows {
            for col in 0..width {
                if col >= start && col < start + cols {
                    expected[row * width + col] = x.at(row, col - start);
                } else if fill == 1 {
                    expected[row * width + col] = 0.0;
                }
            }
        }
        let out = session.poisoned::<f32>(expected.len())?.address();
        let parameters = CopyColumns {
            x: x.upload(&session)?,
            out: Rows { data: out, stride: width as u32, cols: width as u32 },
            rows: Count::fixed(rows as u32),
            start: start as u32,
            fill,
        };
        session.launch(&COPY_COLUMNS, Geometry::elements((rows * width) as u64), &parameters)?;
        let got = session.download(out, expected.len())?;
        session.compare(&name, &got, &expected)?;
        session.end_case(&name)?;
    }
    session.finish()
}

/// Rounds to bf16 as the definition says.
pub(super) fn round_bf16(x: f32) -> u16 {
    let down = x.to_bits() >> 16;
    if x.is_nan() {
        return 0x7fc0;
    }
    // Both neighbours; the upper one may be an infinity, which counts as the next power of 2.
    let value = |bits: u32| match f64::from(f32::from_bits(bits << 16)) {
        value if value.is_infinite() => 2f64.powi(128).copysign(value),
        value => value,
    };
    let up = if x.is_infinite() { down } else { down + 1 };
    let (below, above) = ((f64::from(x) - value(down)).abs(), (value(up) - f64::from(x)).abs());
    let takes_up = above < below || (above == below && down % 2 == 1);
    (if takes_up { up } else { down }) as u16
}

/// Compares the rounding to bf16 with that of numbers of type f64: all values whose last 16 bits
/// are near a half, and random ones.
pub(super) fn narrowings(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("narrow", gpu)?;
    let mut random = Random(44);
    let mut values =
        random.floats(if size == Size::Small { 1001 } else { 1 << 20 }, Values::Special);
    let step = if size == Size::Small { 257 } else { 1 };
    for high in (0..=u32::from(u16::MAX)).step_by(step) {
        let low = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff];
        values.extend(low.map(|low| f32::from_bits(high << 16 | low)));
    }
    let expected: Vec<u16> = values.iter().map(|&x| round_bf16(x)).collect();
    let out = session.poisoned::<u16>(values.len())?.address();
    let parameters = Narrow { x: session.upload(&values)?, out, n: values.len() as u64 };
    session.launch(&NARROW, Geometry::elements(values.len() as u64 / 4), &parameters)?;
    let got: Vec<u16> = session.download(out, expected.len())?;
    session.compare_words("rounding", &got, &expected)?;
    session.finish()
}
