//! The rates of matrix products: those of the library in three precisions, and our own exact ones.

use super::{Rate, Timer};
use crate::gpu::device::Gpu;
use crate::gpu::error::GpuError;
use crate::gpu::kernels::{self, Count, Geometry, ROW_DOT, RowDot};
use crate::gpu::launch::{Kernel, Param};
use crate::gpu::memory::Memory;
use crate::gpu::product::{Element, Epilogue, Precision, Product};

/// The number of products in a timed graph.
const COUNT: usize = 16;

/// A product of a layer: its name, and the sizes m, n and k.
#[derive(Clone, Copy)]
enum Layer {
    /// Rows times a weight, with bias and relu.
    Forward([usize; 3]),
    /// The gradient of the rows.
    Input([usize; 3]),
    /// The gradient of the weight, whose terms are the rows.
    Weight([usize; 3]),
}

/// The layers of a DeepFM of dimension 16, and the wide layers of dimension 128.
const LAYERS: &[Layer] = &[
    Layer::Forward([8192, 400, 429]),
    Layer::Forward([8192, 400, 400]),
    Layer::Forward([8192, 400, 3341]),
    Layer::Forward([65_536, 400, 429]),
    Layer::Forward([65_536, 400, 400]),
    Layer::Forward([8192, 3344, 3344]),
    Layer::Input([8192, 400, 400]),
    Layer::Input([65_536, 400, 400]),
    Layer::Weight([429, 400, 8192]),
    Layer::Weight([400, 400, 8192]),
    Layer::Weight([429, 400, 65_536]),
    Layer::Weight([3344, 3344, 8192]),
];

impl Layer {
    fn sizes(self) -> [usize; 3] {
        match self {
            Self::Forward(sizes) | Self::Input(sizes) | Self::Weight(sizes) => sizes,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Forward(_) => "forward",
            Self::Input(_) => "gradient of the input",
            Self::Weight(_) => "gradient of the weight",
        }
    }
}

/// Measures the library's products. In tf32 and bf16, the terms of a sum are padded to a multiple
/// of 16 bytes.
///
/// # Errors
///
/// Returns the error of the device.
pub fn measure_library_products(gpu: &dyn Gpu) -> Result<Vec<Rate>, GpuError> {
    let mut all = Vec::new();
    let precisions = [
        (Precision::F32, "product f32, library"),
        (Precision::Tf32, "product tf32, library"),
        (Precision::Bf16, "product bf16, library"),
    ];
    for &layer in LAYERS {
        for (precision, name) in precisions {
            all.push(measure_one(gpu, layer, precision, name)?);
        }
    }
    Ok(all)
}

fn measure_one(
    gpu: &dyn Gpu,
    layer: Layer,
    precision: Precision,
    name: &str,
) -> Result<Rate, GpuError> {
    let [m, n, true_k] = layer.sizes();
    let element = precision.element().bytes();
    let unit = 16 / element;
    let k = match precision {
        Precision::F32 => true_k,
        Precision::Tf32 | Precision::Bf16 => true_k.next_multiple_of(unit),
    };
    let output = match layer {
        Layer::Weight(_) => Element::F32,
        Layer::Forward(_) | Layer::Input(_) => precision.element(),
    };
    // Weights are stored so that both operands have their terms side by side, except for the
    // gradient of a weight, whose terms are rows.
    let transposes = match layer {
        Layer::Forward(_) | Layer::Input(_) => [false, true],
        Layer::Weight(_) => [true, false],
    };
    let epilogue = match layer {
        Layer::Forward(_) => Epilogue::BiasRelu,
        Layer::Input(_) | Layer::Weight(_) => Epilogue::None,
    };
    let mut timer = Timer::new(gpu)?;
    let mut product = Product {
        precision,
        output,
        m,
        n,
        k,
        transpose_a: transposes[0],
        transpose_b: transposes[1],
        a: Memory::NULL,
        lda: 0,
        b: Memory::NULL,
        ldb: 0,
        c: Memory::NULL,
        ldc: 0,
        accumulate: false,
        epilogue,
        bias: Memory::NULL,
    };
    let [a, b, c] = product.stored();
    product.lda = a.1.next_multiple_of(unit);
    product.ldb = b.1.next_multiple_of(unit);
    product.ldc = c.1.next_multiple_of(16 / output.bytes());
    product.a = timer.allocate(a.0 * product.lda * element)?;
    product.b = timer.allocate(b.0 * product.ldb * element)?;
    product.c = timer.allocate(c.0 * product.ldc * output.bytes())?;
    product.bias = timer.allocate(n.next_multiple_of(4) * output.bytes())?;
    gpu.prepare(timer.stream, &product)?;
    let seconds = timer.seconds_in_graph(COUNT, |_| gpu.multiply(timer.stream, &product))?;
    let flop = 2.0 * m as f64 * n as f64 * true_k as f64;
    let algorithm = gpu.algorithm(&product).unwrap_or([0; 64]);
    timer.free()?;
    let shape = format!("{m}x{true_k}x{n} {}", layer.name());
    let rate = Rate::new(name, shape, seconds, flop / seconds / 1e12, "TFLOP/s");
    let number = i32::from_le_bytes([algorithm[0], algorithm[1], algorithm[2], algorithm[3]]);
    Ok(rate.noted(format!("algorithm {number}")))
}

/// Measures our own products, which have the bits of the processor.
///
/// # Errors
///
/// Returns the error of the device.
pub fn measure_exact_products(gpu: &dyn Gpu) -> Result<Vec<Rate>, GpuError> {
    let mut all = Vec::new();
    for &layer in LAYERS {
        let [m, n, k] = layer.sizes();
        match layer {
            Layer::Weight(_) => {
                let lanes: &[usize] = if k > 10_000 { &[8, 16, 64] } else { &[8, 16, 32] };
                for &lanes in lanes {
                    all.push(measure_outer(gpu, [m, n, k], lanes)?);
                }
            }
            Layer::Forward(_) | Layer::Input(_) => measure_exact(gpu, layer, &mut all)?,
        }
    }
    for rows in [8192, 65_536] {
        all.push(measure_row_dot(gpu, rows, 400)?);
    }
    Ok(all)
}

fn launch<T: bytemuck::NoUninit>(
    timer: &Timer<'_>,
    kernel: &'static Kernel,
    geometry: Geometry,
    params: &T,
    [m, n, k]: [usize; 3],
) -> Result<(), GpuError> {
    let params = [Param::new(params)];
    let shapes = [("m", m), ("n", n), ("k", k)];
    timer.gpu.launch(timer.stream, &geometry.launch(kernel, &params, &shapes))
}

fn measure_exact(gpu: &dyn Gpu, layer: Layer, all: &mut Vec<Rate>) -> Result<(), GpuError> {
    let [m, n, k] = layer.sizes();
    let mut timer = Timer::new(gpu)?;
    let leading = |columns: usize| columns.next_multiple_of(4);
    let (lda, ldb, ldc) = (leading(k), leading(n), leading(n));
    let product = kernels::Product {
        a: timer.allocate(m * lda * 4)?.address(),
        b: timer.allocate(k * ldb * 4)?.address(),
        c: timer.allocate(m * ldc * 4)?.address(),
        bias: timer.allocate(n * 4)?.address(),
        rows: Count::fixed(m as u32),
        n: n as u32,
        k: k as u32,
        lda: lda as u32,
        ldb: ldb as u32,
        ldc: ldc as u32,
        relu: 1,
        ..kernels::Product::default()
    };
    let chosen = product.choose().0;
    for (kernel, geometry) in [product.with_64_rows(), product.with_128_rows()] {
        let seconds = timer
            .seconds_in_graph(COUNT, |_| launch(&timer, kernel, geometry, &product, [m, n, k]))?;
        let shape = format!("{m}x{k}x{n} {}", layer.name());
        let flop = 2.0 * m as f64 * n as f64 * k as f64;
        let name = format!("product exact, {}", kernel.name);
        let rate = Rate::new(&name, shape, seconds, flop / seconds / 1e12, "TFLOP/s");
        all.push(match kernel.name == chosen.name {
            true => rate.noted("chosen for this shape".into()),
            false => rate,
        });
    }
    timer.free()
}

fn measure_outer(gpu: &dyn Gpu, [m, n, k]: [usize; 3], lanes: usize) -> Result<Rate, GpuError> {
    const TILE: usize = 256;
    let mut timer = Timer::new(gpu)?;
    let (lda, ldb) = (m.next_multiple_of(4), n.next_multiple_of(4));
    let tiles: Vec<u32> = (0..=k.div_ceil(TILE)).map(|tile| (tile * TILE).min(k) as u32).collect();
    let count = tiles.len() - 1;
    let ends: Vec<u32> = (0..=lanes).map(|lane| (lane * count / lanes) as u32).collect();
    let outer = kernels::Outer {
        a: timer.allocate(k * lda * 4)?.address(),
        b: timer.allocate(k * ldb * 4)?.address(),
        c: timer.allocate(lanes * m * n * 4)?.address(),
        tiles: timer.upload(&tiles)?.address(),
        lanes: timer.upload(&ends)?.address(),
        m: m as u32,
        n: n as u32,
        lda: lda as u32,
        ldb: ldb as u32,
        lane_count: lanes as u32,
        unused: 0,
    };
    let kernel = &kernels::OUTER_80X80;
    let seconds = timer
        .seconds_in_graph(COUNT, |_| launch(&timer, kernel, outer.geometry(), &outer, [m, n, k]))?;
    timer.free()?;
    let flop = 2.0 * m as f64 * n as f64 * k as f64;
    let shape = format!("{m}x{k}x{n} gradient of the weight");
    let name = format!("product exact, {}", kernel.name);
    let rate = Rate::new(&name, shape, seconds, flop / seconds / 1e12, "TFLOP/s");
    Ok(rate.noted(format!("{lanes} lanes, not combined")))
}

fn measure_row_dot(gpu: &dyn Gpu, rows: usize, k: usize) -> Result<Rate, GpuError> {
    let mut timer = Timer::new(gpu)?;
    let params = RowDot {
        x: timer.allocate(rows * k * 4)?.address(),
        w: timer.allocate(k * 4)?.address(),
        bias: timer.allocate(4)?.address(),
        out: timer.allocate(rows * 4)?.address(),
        rows: Count::fixed(rows as u32),
        k: k as u32,
        ldx: k as u32,
        ldw: 0,
        ldo: 1,
        add_bias: 1,
        unused: 0,
    };
    let geometry = Geometry::half_warps(rows as u32);
    let seconds = timer
        .seconds_in_graph(COUNT, |_| launch(&timer, &ROW_DOT, geometry, &params, [rows, 1, k]))?;
    timer.free()?;
    let rate = (rows * k * 4) as f64 / seconds / 1e9;
    Ok(Rate::new("row_dot", format!("{rows}x{k}x1"), seconds, rate, "GB/s"))
}
