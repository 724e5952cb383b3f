//! Checks of matrix products.

use super::{RELU_OF_NAN, expect_equal, expect_error, fail, free_all};
use crate::gpu::device::{Gpu, Stream};
use crate::gpu::error::GpuError;
use crate::gpu::info::{Counters, Kind};
use crate::gpu::memory::Memory;
use crate::gpu::product::{Element, Epilogue, Precision, Product};

/// The value of each element outside of the columns of a matrix. A product must not read them.
const OUTSIDE: f32 = f32::NAN;

/// A product with its operands on the host.
struct Case {
    product: Product,
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
    bias: Vec<f32>,
}

/// The shape of a case.
#[derive(Clone, Copy)]
struct Shape {
    precision: Precision,
    output: Element,
    sizes: [usize; 3],
    transposes: [bool; 2],
    accumulate: bool,
    epilogue: Epilogue,
}

/// Returns numbers between -1 and 1 that bf16 can hold.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let number = |index: usize| {
        let mixed = (index as u32).wrapping_mul(0x9e37_79b1) ^ seed.wrapping_mul(0x85eb_ca6b);
        let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x2c1b_3c6d);
        ((mixed >> 16) % 255) as f32 / 128.0 - 1.0
    };
    (0..count).map(number).collect()
}

fn to_bytes(values: &[f32], element: Element) -> Vec<u8> {
    match element {
        Element::F32 => bytemuck::cast_slice(values).to_vec(),
        Element::Bf16 => {
            values.iter().flat_map(|value| ((value.to_bits() >> 16) as u16).to_ne_bytes()).collect()
        }
    }
}

fn from_bytes(bytes: &[u8], element: Element) -> Vec<f32> {
    match element {
        Element::F32 => {
            let whole = |part: &[u8]| f32::from_ne_bytes([part[0], part[1], part[2], part[3]]);
            bytes.chunks_exact(4).map(whole).collect()
        }
        Element::Bf16 => {
            let half = |part: &[u8]| u32::from(u16::from_ne_bytes([part[0], part[1]]));
            bytes.chunks_exact(2).map(|part| f32::from_bits(half(part) << 16)).collect()
        }
    }
}

impl Case {
    fn new(gpu: &dyn Gpu, stream: Stream, shape: Shape) -> Result<Self, GpuError> {
        let Shape { precision, output, sizes: [m, n, k], transposes, accumulate, epilogue } = shape;
        let [transpose_a, transpose_b] = transposes;
        let input = precision.element();
        let mut product = Product {
            precision,
            output,
            m,
            n,
            k,
            transpose_a,
            transpose_b,
            a: Memory::NULL,
            lda: 0,
            b: Memory::NULL,
            ldb: 0,
            c: Memory::NULL,
            ldc: 0,
            accumulate,
            epilogue,
            bias: Memory::NULL,
        };
        let [a, b, c] = product.stored();
        // One part of 16 bytes more than needed, so that a wrong leading dimension is seen.
        let leading = |columns: usize, element: Element| {
            (columns * element.bytes()).next_multiple_of(16) / element.bytes()
                + 16 / element.bytes()
        };
        let matrix = |(rows, columns): (usize, usize), leading: usize, seed: u32| {
            let mut values = numbers(rows * leading, seed);
            for row in values.chunks_mut(leading) {
                row[columns..].fill(OUTSIDE);
            }
            values
        };
        (product.lda, product.ldb) = (leading(a.1, input), leading(b.1, input));
        product.ldc = leading(c.1, output);
        let values = [
            (matrix(a, product.lda, 1), input),
            (matrix(b, product.ldb, 2), input),
            (matrix(c, product.ldc, 3), output),
            (numbers(n, 4), output),
        ];
        let mut places = [Memory::NULL; 4];
        for (place, (values, element)) in places.iter_mut().zip(&values) {
            let bytes = to_bytes(values, *element);
            *place = gpu.allocate(bytes.len())?;
            gpu.upload(stream, *place, &bytes)?;
        }
        [product.a, product.b, product.c, product.bias] = places;
        let [(a, _), (b, _), (c, _), (bias, _)] = values;
        Ok(Self { product, a, b, c, bias })
    }

    /// Returns the product in f64, and the sum of the terms' magnitudes.
    fn wanted(&self, row: usize, column: usize) -> (f64, f64) {
        let product = &self.product;
        let (mut sum, mut size) = (0.0, 0.0);
        for term in 0..product.k {
            let a = match product.transpose_a {
                true => self.a[term * product.lda + row],
                false => self.a[row * product.lda + term],
            };
            let b = match product.transpose_b {
                true => self.b[column * product.ldb + term],
                false => self.b[term * product.ldb + column],
            };
            let one = f64::from(a) * f64::from(b);
            sum += one;
            size += one.abs();
        }
        if product.accumulate {
            sum += f64::from(self.c[row * product.ldc + column]);
            size += 1.0;
        }
        if product.epilogue != Epilogue::None {
            sum += f64::from(self.bias[column]);
            size += 1.0;
        }
        if product.epilogue == Epilogue::BiasRelu {
            sum = sum.max(0.0);
        }
        (sum, size)
    }

    fn download(&self, gpu: &dyn Gpu, stream: Stream) -> Result<Vec<u8>, GpuError> {
        let mut bytes = vec![0; self.product.c.bytes()];
        gpu.download(stream, &mut bytes, self.product.c)?;
        Ok(bytes)
    }

    fn reset(&self, gpu: &dyn Gpu, stream: Stream) -> Result<(), GpuError> {
        gpu.upload(stream, self.product.c, &to_bytes(&self.c, self.product.output))
    }

    fn check(&self, bytes: &[u8]) -> Result<(), GpuError> {
        self.check_from(0, bytes)
    }

    /// Checks the rows from `first` on.
    fn check_from(&self, first: usize, bytes: &[u8]) -> Result<(), GpuError> {
        let product = &self.product;
        // Sums of k terms in f32, in any order; inputs are exact in every precision.
        let relative = match product.output {
            Element::F32 => 1e-6 * (product.k as f64).sqrt().max(4.0),
            Element::Bf16 => 1.0 / 128.0,
        };
        let found = from_bytes(bytes, product.output);
        for row in first..product.m {
            for column in 0..product.ldc {
                // The last row may end with its last column.
                let Some(found) = found.get(row * product.ldc + column) else { continue };
                if column >= product.n {
                    if !found.is_nan() {
                        let label = product.label();
                        return fail("products", format!("{label}: it wrote beside its columns"));
                    }
                    continue;
                }
                let (wanted, size) = self.wanted(row, column);
                let error = (f64::from(*found) - wanted).abs();
                if error.is_nan() || error > relative * size.max(1e-3) {
                    let label = product.label();
                    return fail(
                        "products",
                        format!("{label}: row {row}, column {column} is {found}, not {wanted}"),
                    );
                }
            }
        }
        Ok(())
    }

    fn free(&self, gpu: &dyn Gpu) -> Result<(), GpuError> {
        let Product { a, b, c, bias, .. } = self.product;
        free_all(gpu, &[a, b, c, bias])
    }
}

/// Returns the shapes of the checks: all kinds of products at a few sizes.
fn shapes(gpu: &dyn Gpu) -> Vec<Shape> {
    let sizes: &[[usize; 3]] = match gpu.info().kind {
        Kind::Cuda => &[[8, 8, 8], [100, 40, 77], [33, 129, 500], [256, 208, 432]],
        Kind::Emulated => &[[8, 8, 8], [10, 13, 21]],
    };
    let precisions = [
        (Precision::F32, Element::F32),
        (Precision::Tf32, Element::F32),
        (Precision::Bf16, Element::F32),
        (Precision::Bf16, Element::Bf16),
    ];
    // Forward, gradient of the input, gradient of the weight; the latter may add to a sum.
    let kinds = [
        ([false, false], false, Epilogue::None),
        ([false, true], false, Epilogue::Bias),
        ([false, true], false, Epilogue::BiasRelu),
        ([false, false], false, Epilogue::BiasRelu),
        ([false, true], true, Epilogue::None),
        ([true, false], false, Epilogue::None),
        ([true, false], true, Epilogue::None),
        ([true, true], false, Epilogue::None),
    ];
    let mut all = Vec::new();
    for &sizes in sizes {
        for (precision, output) in precisions {
            for (transposes, accumulate, epilogue) in kinds {
                all.push(Shape { precision, output, sizes, transposes, accumulate, epilogue });
            }
        }
    }
    all
}

pub(super) fn agree_with_host(gpu: &dyn Gpu) -> Result<(), GpuError> {
    let stream = gpu.create_stream()?;
    for shape in shapes(gpu) {
        let case = Case::new(gpu, stream, shape)?;
        gpu.prepare(stream, &case.product)?;
        let before = case.download(gpu, stream)?;
        expect_equal("a prepared product", &before, &to_bytes(&case.c, shape.output))?;
        gpu.multiply(stream, &case.product)?;
        case.check(&case.download(gpu, stream)?)?;
        case.free(gpu)?;
    }
    Ok(())
}

pub(super) fn repeat_bits(gpu: &dyn Gpu) -> Result<(), GpuError> {
    let stream = gpu.create_stream()?;
    for shape in shapes(gpu) {
        let case = Case::new(gpu, stream, shape)?;
        gpu.prepare(stream, &case.product)?;
        gpu.begin_capture(stream)?;
        gpu.multiply(stream, &case.product)?;
        let graph = gpu.end_capture(stream)?;
        let mut all = Vec::new();
        for is_replay in [false, false, true, true] {
            case.reset(gpu, stream)?;
            match is_replay {
                true => gpu.replay(stream, graph)?,
                false => gpu.multiply(stream, &case.product)?,
            }
            all.push(case.download(gpu, stream)?);
        }
        for other in &all[1..] {
            expect_equal("the bits of a product", other, &all[0])?;
        }
        gpu.free_graph(graph)?;
        case.free(gpu)?;
    }
    Ok(())
}

/// A shape of whatever kind, for the checks of errors.
const PLAIN: Shape = Shape {
    precision: Precision::Tf32,
    output: Element::F32,
    sizes: [16, 24, 40],
    transposes: [false, false],
    accumulate: false,
    epilogue: Epilogue::Bias,
};

pub(super) fn refuse_wrong_products(gpu: &dyn Gpu) -> Result<(), GpuError> {
    let check = "wrong products";
    let stream = gpu.create_stream()?;
    let case = Case::new(gpu, stream, PLAIN)?;
    let right = case.product;
    let text = expect_error(check, gpu.multiply(stream, &right))?.to_string();
    if !text.contains("prepared") || !text.contains("m 16, n 24, k 40") {
        return fail(check, format!("an unprepared product: {text}"));
    }
    gpu.prepare(stream, &right)?;
    let short = |memory: Memory| Memory::new(memory.address(), memory.bytes() - 64);
    let wrong = [
        Product { m: 0, ..right },
        Product { k: 0, ..right },
        Product { lda: right.lda + 1, ..right },
        Product { ldb: 4, ..right },
        Product { a: right.a.part(4, right.a.bytes() - 4)?, ..right },
        Product { b: short(right.b), ..right },
        Product { c: short(right.c), ..right },
        Product { bias: Memory::NULL, ..right },
        Product { output: Element::Bf16, ..right },
        Product { m: right.m * 1000, ..right },
    ];
    for product in wrong {
        expect_error(check, gpu.multiply(stream, &product))?;
        expect_error(check, gpu.prepare(stream, &product))?;
    }
    gpu.multiply(stream, &right)?;
    case.check(&case.download(gpu, stream)?)?;
    case.free(gpu)
}

pub(super) fn keep_algorithm(gpu: &dyn Gpu) -> Result<(), GpuError> {
    let check = "the algorithm of a product";
    let stream = gpu.create_stream()?;
    let case = Case::new(gpu, stream, Shape { sizes: [64, 48, 56], ..PLAIN })?;
    if gpu.algorithm(&case.product).is_some() {
        return fail(check, "an algorithm is chosen before the product is prepared".into());
    }
    gpu.prepare(stream, &case.product)?;
    let Some(algorithm) = gpu.algorithm(&case.product) else {
        return fail(check, "no algorithm is chosen".into());
    };
    expect_error(check, gpu.set_algorithm(&case.product, [0xab; 64]))?;
    gpu.set_algorithm(&case.product, algorithm)?;
    gpu.multiply(stream, &case.product)?;
    case.check(&case.download(gpu, stream)?)?;
    case.free(gpu)
}

/// Returns a text that says what the relu in products makes of NaN. Both outcomes are right, since
/// nothing documents the relu of a library. Other values in the same product must be right.
pub(super) fn tell_relu_of_nan(gpu: &dyn Gpu) -> Result<String, GpuError> {
    let stream = gpu.create_stream()?;
    let mut texts = Vec::new();
    for (name, precision) in
        [("f32", Precision::F32), ("tf32", Precision::Tf32), ("bf16", Precision::Bf16)]
    {
        let transposes = [false, true];
        let shape = Shape { precision, transposes, epilogue: Epilogue::BiasRelu, ..PLAIN };
        let mut case = Case::new(gpu, stream, shape)?;
        case.a[3] = f32::NAN;
        gpu.upload(stream, case.product.a, &to_bytes(&case.a, precision.element()))?;
        gpu.prepare(stream, &case.product)?;
        gpu.multiply(stream, &case.product)?;
        let bytes = case.download(gpu, stream)?;
        case.check_from(1, &bytes)?;
        let row = &from_bytes(&bytes, shape.output)[..case.product.n];
        texts.push(match row {
            row if row.iter().all(|value| value.is_nan()) => format!("NaN stays in {name}"),
            row if row.iter().all(|&value| value == 0.0) => format!("NaN becomes 0 in {name}"),
            row => return fail(RELU_OF_NAN, format!("{name}: a row of NaN becomes {row:?}")),
        });
        case.free(gpu)?;
    }
    gpu.free_stream(stream)?;
    Ok(texts.join(", "))
}

pub(super) fn give_back_memory(gpu: &dyn Gpu) -> Result<(), GpuError> {
    let check = "the memory of the library of products";
    let before = gpu.counters();
    let stream = gpu.create_stream()?;
    let case = Case::new(gpu, stream, PLAIN)?;
    gpu.prepare(stream, &case.product)?;
    gpu.multiply(stream, &case.product)?;
    case.check(&case.download(gpu, stream)?)?;
    case.free(gpu)?;
    gpu.free_stream(stream)?;
    let after = gpu.counters();
    let lives = |of: &Counters| [of.live_bytes, of.live_streams];
    expect_equal(check, &lives(&after), &lives(&before))?;
    // The algorithm stays, and another stream has memory of its own.
    let stream = gpu.create_stream()?;
    let case = Case::new(gpu, stream, PLAIN)?;
    expect_error(check, gpu.multiply(stream, &case.product))?;
    gpu.prepare(stream, &case.product)?;
    gpu.multiply(stream, &case.product)?;
    case.check(&case.download(gpu, stream)?)?;
    case.free(gpu)?;
    gpu.free_stream(stream)
}
