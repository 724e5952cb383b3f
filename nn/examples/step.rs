//! A program that measures the time of a model's dense step. Its batches have the shape of the
//! Criteo data set: 26 fields with vectors of 16 floats and Zipf-like ids, and 13 numbers. The
//! measured time does not include the pull of rows.
//!
//! ```text
//! cargo run --release -p zillion-nn --example step -- deepfm 2
//! # The threads, the tile rows, then the lanes and the passes that are off:
//! cargo run --release -p zillion-nn --example step -- "kind = 'dcnv2'" 1 1024
//! ```
#![expect(clippy::print_stdout, reason = "printing is what this program does")]

use std::collections::HashMap;
use std::error::Error;
use std::num::NonZeroUsize;
use std::time::Instant;

use zillion_device::Workers;
use zillion_device::matmul::gemm;
use zillion_feature::{Pooling, random};
use zillion_nn::zoo::{ModelInputs, ModelSpec, SparseInput, VectorSegment};
use zillion_nn::{
    ColumnView, Executor, Graph, Inputs, LabelView, Mode, OccurrenceView, Op, Params, Passes,
    Program, Settings, StepSeed, TableInput, TableView, differentiate, zoo,
};

const ROWS: usize = 4096;
const FIELDS: usize = 26;
const NUMBERS: usize = 13;
const DIM: usize = 16;
const STRIDE: usize = 20;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |i: usize, default: &str| arguments.get(i).map_or(default, |a| a).to_owned();
    let model = match argument(0, "deepfm").as_str() {
        "deepfm" => "kind = 'deepfm'\nhidden = [400, 400, 400]".to_owned(),
        "deepfm_norm" => {
            "kind = 'deepfm'\nhidden = [400, 400, 400]\nbatch_norm = true\ndropout = 0.2".to_owned()
        }
        "dcn" => "kind = 'dcn'\ncross_layers = 3\nhidden = [400, 400, 400]".to_owned(),
        "dcnv2" => "kind = 'dcnv2'\ncross_layers = 3\nhidden = [512, 256, 128]".to_owned(),
        "dlrm" => "kind = 'dlrm'\nbottom = [512, 256, 16]\nhidden = [512, 256]".to_owned(),
        text => text.to_owned(),
    };
    let threads: NonZeroUsize = argument(1, "2").parse()?;
    let tile_rows: usize = argument(2, "256").parse()?;
    let lanes: usize = argument(3, "8").parse()?;

    let spec: ModelSpec = toml::from_str(&model)?;
    let graph = zoo::build(&spec, &model_inputs(), Mode::Train)?;
    let loss = graph.output(zoo::LOSS).ok_or("a model for training has a loss")?;
    let train = differentiate(&graph, loss)?;
    // The passes to leave out, for a comparison: `all`, or names separated by commas.
    let off: Vec<&str> =
        arguments.get(4).map(|names| names.split(',').collect()).unwrap_or_default();
    let settings = Settings { lanes, tile_rows, passes: Passes::without(&off)? };
    let program = Program::train(&train, settings)?;
    let flops = flops_a_row(&train.graph) * ROWS;
    println!(
        "{}: {:.2} MFLOP a row in products, {:.1} MiB of buffers, {threads} threads, {lanes} lanes of \
         tiles of {tile_rows}",
        spec.kind(),
        flops as f64 / 1e6 / ROWS as f64,
        program.bytes(ROWS, threads.get(), |_| 1) as f64 / (1 << 20) as f64,
    );

    let workers = Workers::new(threads)?;
    let mut executor = Executor::new(program);
    let mut params = Params::init(&train.graph.params, 1);
    let batches: Vec<Batch> = (0..4).map(Batch::new).collect();
    // A caller of the library reuses its buffers too.
    let mut grads: Vec<Vec<Vec<f32>>> =
        batches.iter().map(|b| b.tables.iter().map(|t| vec![1.0; t.len()]).collect()).collect();
    let mut step = |executor: &mut Executor, number: usize| -> Result<f64, Box<dyn Error>> {
        let batch = &batches[number % batches.len()];
        let grads = &mut grads[number % batches.len()];
        let mut grads: Vec<&mut [f32]> = grads.iter_mut().map(Vec::as_mut_slice).collect();
        let inputs = batch.inputs();
        let seed = StepSeed { seed: 1, step: number as u64 };
        let begun = Instant::now();
        executor.train(&workers, &inputs, &mut params, seed, &mut grads)?;
        Ok(begun.elapsed().as_secs_f64())
    };
    for number in 0..5 {
        step(&mut executor, number)?;
    }
    // Both are measured alternately, so that other work on the machine slows both equally.
    let (mut times, mut alone) = (Vec::new(), Vec::new());
    for number in 0..40 {
        times.push(step(&mut executor, number)?);
        alone.push(products_alone(&train.graph, &workers, lanes, tile_rows));
    }
    times.sort_by(f64::total_cmp);
    alone.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    let median_alone = alone[alone.len() / 2];
    println!(
        "median {:.2} ms ({:.2} to {:.2}), {:.1} thousand rows a second, {:.1} GFLOP/s of products a thread",
        1e3 * median,
        1e3 * times[0],
        1e3 * times[times.len() - 1],
        ROWS as f64 / median / 1e3,
        flops as f64 / median / 1e9 / threads.get() as f64,
    );
    println!(
        "the products alone {:.2} ms, {:.1} GFLOP/s a thread: the step runs at {:.0} % of their rate",
        1e3 * median_alone,
        flops as f64 / median_alone / 1e9 / threads.get() as f64,
        100.0 * median_alone / median,
    );
    executor.set_profile(true);
    for number in 0..20 {
        step(&mut executor, number)?;
    }
    let profile = executor.profile().ok_or("it was switched on")?;
    println!("time of all threads, in ms a step:\n{}", profile.table(executor.program().graph()));
    Ok(())
}

fn model_inputs() -> ModelInputs {
    ModelInputs {
        tables: (0..FIELDS)
            .map(|i| TableInput { name: format!("t{i}"), stride: DIM + 1 })
            .collect(),
        columns: (0..FIELDS)
            .map(|i| SparseInput {
                name: format!("f{i}"),
                table: i,
                vector: Some(VectorSegment { offset: 0, dim: DIM }),
                linear: Some(DIM),
                pooling: Pooling::Sum,
                list: false,
                sequence: false,
            })
            .collect(),
        numeric: (0..NUMBERS).map(|i| format!("n{i}")).collect(),
        labels: vec!["label".into()],
    }
}

/// Returns the number of multiplications and additions in the matrix products of a row, forward and
/// backward.
fn flops_a_row(graph: &Graph) -> usize {
    let products = graph.nodes.iter().filter_map(|node| {
        let shape = |i: usize| graph.shape(node.inputs[i]);
        match node.op {
            Op::Linear => Some(shape(0).cols * node.shape.cols),
            Op::MatMulNt => Some(shape(0).cols * node.shape.cols),
            Op::MatMulTn => Some(shape(0).cols * shape(1).cols),
            _ => None,
        }
    });
    2 * products.sum::<usize>()
}

/// Returns the time in seconds that the matrix products of the step take without the other
/// operations, with the same tiles and lanes.
fn products_alone(graph: &Graph, workers: &Workers, lanes: usize, tile_rows: usize) -> f64 {
    let mut shapes = Vec::new();
    for node in &graph.nodes {
        let cols = |i: usize| graph.shape(node.inputs[i]).cols;
        match node.op {
            Op::Linear => shapes.push((0, cols(0), node.shape.cols)),
            Op::MatMulNt => shapes.push((1, node.shape.cols, cols(0))),
            Op::MatMulTn => shapes.push((2, cols(0), cols(1))),
            _ => {}
        }
    }
    struct Lane {
        x: Vec<f32>,
        y: Vec<f32>,
        w: Vec<f32>,
        rows: usize,
    }
    let widest = shapes.iter().map(|&(_, k, n)| k.max(n)).max().unwrap_or(0);
    let mut work: Vec<Lane> = (0..lanes)
        .map(|_| Lane {
            x: vec![0.5; tile_rows * widest],
            y: vec![0.5; tile_rows * widest],
            w: vec![0.5; widest * widest],
            rows: ROWS / lanes,
        })
        .collect();
    let begun = Instant::now();
    workers.for_each_mut(&mut work, |_, Lane { x, y, w, rows }| {
        for start in (0..*rows).step_by(tile_rows) {
            let m = tile_rows.min(*rows - start);
            for &(kind, k, n) in &shapes {
                match kind {
                    0 => gemm(m, n, k, 1.0, x, k, 1, w, n, 1, 0.0, y, n),
                    1 => gemm(m, k, n, 1.0, y, n, 1, w, 1, n, 0.0, x, k),
                    _ => gemm(k, n, m, 1.0, x, 1, k, y, n, 1, 0.0, w, n),
                }
            }
        }
    });
    begun.elapsed().as_secs_f64()
}

struct Batch {
    tables: Vec<Vec<f32>>,
    inverse: Vec<Vec<u32>>,
    occurrences: Vec<(Vec<u32>, Vec<u32>)>,
    numeric: Vec<Vec<f32>>,
    labels: Vec<f32>,
}

impl Batch {
    fn new(number: u64) -> Self {
        let unit = |stream: u64, i: usize| {
            let bits = random::combine(random::combine(number, stream), i as u64);
            random::unit_f32((bits >> 32) as u32)
        };
        let mut batch = Self {
            tables: Vec::new(),
            inverse: Vec::new(),
            occurrences: Vec::new(),
            numeric: (0..NUMBERS as u64)
                .map(|j| (0..ROWS).map(|i| unit(100 + j, i)).collect())
                .collect(),
            labels: (0..ROWS).map(|i| f32::from(unit(200, i) < 0.25)).collect(),
        };
        for field in 0..FIELDS as u64 {
            let mut unique: HashMap<u32, u32> = HashMap::new();
            let inverse: Vec<u32> = (0..ROWS)
                .map(|i| {
                    // The ids are nearly Zipf distributed, because the logarithm of the rank is
                    // uniform.
                    let id = (77_000f32.ln() * unit(field, i)).exp() as u32;
                    let next = unique.len() as u32;
                    *unique.entry(id).or_insert(next)
                })
                .collect();
            let mut offsets = vec![0u32; unique.len() + 1];
            inverse.iter().for_each(|&k| offsets[k as usize + 1] += 1);
            (0..unique.len()).for_each(|k| offsets[k + 1] += offsets[k]);
            let mut next = offsets.clone();
            let mut positions = vec![0; ROWS];
            for (i, &key) in inverse.iter().enumerate() {
                positions[next[key as usize] as usize] = i as u32;
                next[key as usize] += 1;
            }
            let values = (0..unique.len() * STRIDE).map(|i| 0.1 * unit(300 + field, i) - 0.05);
            batch.tables.push(values.collect());
            batch.inverse.push(inverse);
            batch.occurrences.push((offsets, positions));
        }
        batch
    }

    fn inputs(&self) -> Inputs<'_> {
        let column =
            |(table, inverse)| ColumnView { table, inverse, offsets: None, weights: None, base: 0 };
        Inputs {
            rows: ROWS,
            tables: self
                .tables
                .iter()
                .map(|t| TableView { values: t, stride: STRIDE, unique: t.len() / STRIDE })
                .collect(),
            columns: self.inverse.iter().map(Vec::as_slice).enumerate().map(column).collect(),
            occurrences: self
                .occurrences
                .iter()
                .map(|(offsets, positions)| OccurrenceView { offsets, positions })
                .collect(),
            numeric: self.numeric.iter().map(Vec::as_slice).collect(),
            labels: vec![LabelView { values: &self.labels, mask: None }],
            weight: None,
        }
    }
}
