//! The rates of lookups and of row updates: 26 columns of one table, keys by a Zipf distribution.
//!
//! Several different batches are used in turn, so that no batch lies in the cache of the device.

use super::{Rate, Timer};
use crate::gpu::device::{Event, Gpu, Stream};
use crate::gpu::error::GpuError;
use crate::gpu::kernels::Geometry;
use crate::gpu::kernels::{
    Count, GATHER, Gather, GatherJob, GradientSource, RowClasses, RowPart, RowRule, RowUpdate,
};
use crate::gpu::launch::{Kernel, Param};
use crate::gpu::memory::Memory;

/// The number of columns with a key.
pub(super) const COLUMNS: usize = 26;
/// The number of batches that are used in turn.
pub(super) const BATCHES: usize = 8;
/// The exponent of the distribution of keys.
const EXPONENT: f64 = 1.05;
/// The numbers of occurrences above which a row is medium, and above which it is long.
const CLASSES: [[usize; 2]; 2] = [[8, 64], [16, 256]];

/// A batch on the host: for each column, the unique row of each row of the batch.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) inverse: Vec<Vec<u32>>,
    pub(super) slots: Vec<u32>,
    pub(super) starts: Vec<u32>,
    pub(super) occurrences: Vec<u32>,
    pub(super) classes: RowClasses,
}

/// The bits of an occurrence that say its column.
pub(super) const COLUMN_BITS: u32 = usize::BITS - COLUMNS.leading_zeros();

/// Draws the keys of one batch: for each row and column a row of the table. Each column has its own
/// part of the table.
pub(super) fn draw_keys(rows: usize, table_rows: u64, seed: u64) -> Vec<u32> {
    let each = table_rows / COLUMNS as u64;
    let high = (each as f64).powf(1.0 - EXPONENT);
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = state;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    };
    let key = |index: usize| {
        let unit = (next() >> 11) as f64 / (1u64 << 53) as f64;
        // The inverse of the continuous distribution.
        let rank = (unit * (high - 1.0) + 1.0).powf(1.0 / (1.0 - EXPONENT));
        let rank = rank.clamp(1.0, each as f64) as u64 - 1;
        (rank * 2_654_435_761 % each + (index % COLUMNS) as u64 * each) as u32
    };
    (0..rows * COLUMNS).map(key).collect()
}

impl Batch {
    pub(super) fn new(keys: &[u32], [medium, long]: [usize; 2]) -> Self {
        let mut order: Vec<u64> =
            keys.iter().enumerate().map(|(at, key)| u64::from(*key) << 32 | at as u64).collect();
        order.sort_unstable();
        let mut groups: Vec<&[u64]> = order.chunk_by(|a, b| a >> 32 == b >> 32).collect();
        let class = |group: &&[u64]| match group.len() {
            length if length > long => 0u64,
            length if length > medium => 1,
            _ => 2,
        };
        // By class, and within a class by the first use, as a plan of the product orders them.
        groups.sort_by_key(|group| class(group) << 32 | (group[0] & 0xffff_ffff));
        let count = |wanted: u64| groups.iter().filter(|group| class(group) == wanted).count();
        let classes = RowClasses {
            unique: groups.len() as u32,
            long_rows: count(0) as u32,
            medium_rows: count(1) as u32,
            unused: 0,
        };
        let rows = keys.len() / COLUMNS;
        let mut inverse = vec![vec![0u32; rows]; COLUMNS];
        let (mut slots, mut starts) = (Vec::new(), vec![0u32]);
        let mut occurrences: Vec<u32> = Vec::with_capacity(keys.len());
        for (unique, group) in groups.iter().enumerate() {
            for entry in *group {
                let at = (entry & 0xffff_ffff) as usize;
                let (row, column) = (at / COLUMNS, at % COLUMNS);
                inverse[column][row] = unique as u32;
                occurrences.push((row as u32) << COLUMN_BITS | column as u32);
            }
            slots.push((group[0] >> 32) as u32);
            starts.push(occurrences.len() as u32);
        }
        Self { inverse, slots, starts, occurrences, classes }
    }
}

/// A batch on the device.
struct Placed {
    gather: Gather,
    update: RowUpdate,
    classes: RowClasses,
}

/// Measures lookups and row-wise AdaGrad for a table of `table_rows` rows. `floor` is the rate of
/// copies within the device in GB/s.
///
/// # Errors
///
/// Returns the error of the device.
pub fn measure_rows(gpu: &dyn Gpu, table_rows: u64, floor: f64) -> Result<Vec<Rate>, GpuError> {
    let mut all = Vec::new();
    for rows in [8192usize, 65_536] {
        let keys: Vec<Vec<u32>> =
            (0..BATCHES).map(|seed| draw_keys(rows, table_rows, seed as u64)).collect();
        for dim in [16usize, 128] {
            measure_shape(gpu, table_rows, rows, dim, floor, &keys, &mut all)?;
        }
    }
    Ok(all)
}

fn measure_shape(
    gpu: &dyn Gpu,
    table_rows: u64,
    rows: usize,
    dim: usize,
    floor: f64,
    keys: &[Vec<u32>],
    all: &mut Vec<Rate>,
) -> Result<(), GpuError> {
    // A row of dimension 16 fills 128 bytes: weights, the state, and room.
    let stride = if dim == 16 { 32 } else { dim + 4 };
    let mut timer = Timer::new(gpu)?;
    let slab = timer.allocate(table_rows as usize * stride * 4)?;
    let columns = timer.allocate(rows * COLUMNS * dim * 4)?;
    let side = Side {
        stream: gpu.create_stream()?,
        events: [gpu.create_event(false)?, gpu.create_event(false)?],
    };
    let values = rows * COLUMNS;
    let shape = format!("batch {rows}, dim {dim}");
    for (number, thresholds) in CLASSES.into_iter().enumerate() {
        let mut placed = Vec::new();
        for keys in keys {
            let batch = Batch::new(keys, thresholds);
            placed.push(place(&mut timer, &batch, slab, columns, [stride, dim, rows])?);
        }
        let unique: f64 =
            placed.iter().map(|one| f64::from(one.classes.unique)).sum::<f64>() / BATCHES as f64;
        if number == 0 {
            let seconds = timer.seconds_in_graph(BATCHES, |batch| {
                let gather = &placed[batch].gather;
                launch(&timer, timer.stream, &GATHER, gather.geometry(), gather, rows)
            })?;
            let bytes = unique * (dim * 4) as f64 + (values * (dim * 4 + 4)) as f64;
            let rate = Rate::new("gather", shape.clone(), seconds, bytes / seconds / 1e9, "GB/s");
            let found = values as f64 / seconds / 1e9;
            all.push(rate.beside(floor).noted(format!("{found:.2} G rows/s, {unique:.0} unique")));
        }
        for is_parallel in [false, true] {
            let seconds = timer.seconds_in_graph(BATCHES, |batch| {
                update(&timer, &side, &placed[batch], is_parallel, dim, rows)
            })?;
            // Gradients and occurrences are read once, rows with their state are read and written.
            let row = (dim + 1) * 4;
            let bytes = (values * (dim * 4 + 4)) as f64 + unique * (2 * row + 8) as f64;
            let name = match is_parallel {
                true => "row sums + row-wise adagrad, two streams",
                false => "row sums + row-wise adagrad, one stream",
            };
            let rate = Rate::new(name, shape.clone(), seconds, bytes / seconds / 1e9, "GB/s");
            let found = unique / seconds / 1e9;
            let [medium, long] = thresholds;
            let note = format!("{found:.2} G unique rows/s, classes above {medium} and {long}");
            all.push(rate.beside(floor).noted(note));
        }
    }
    timer.free()
}

/// A second stream for the long rows.
struct Side {
    stream: Stream,
    events: [Event; 2],
}

fn place(
    timer: &mut Timer<'_>,
    batch: &Batch,
    slab: Memory,
    columns: Memory,
    [stride, dim, rows]: [usize; 3],
) -> Result<Placed, GpuError> {
    let width = COLUMNS * dim;
    let column = |index: usize| columns.address() + (index * dim * 4) as u64;
    let mut jobs = Vec::new();
    let mut sources = Vec::new();
    for (index, inverse) in batch.inverse.iter().enumerate() {
        jobs.push(GatherJob {
            inverse: timer.upload(inverse)?.address(),
            out: column(index),
            out_stride: width as u32,
            dim: dim as u32,
            kind: GatherJob::COPY,
            ..GatherJob::default()
        });
        sources.push(GradientSource {
            gradient: column(index),
            stride: width as u32,
            ..GradientSource::default()
        });
    }
    let units = GatherJob::units(&jobs, slab.address(), stride as u32);
    let slots = timer.upload(&batch.slots)?.address();
    let gather = Gather {
        table: slab.address(),
        slots,
        jobs: timer.upload(&jobs)?.address(),
        units: timer.upload(&units)?.address(),
        rows: Count::fixed(rows as u32),
        unit_count: units.len() as u32,
        table_stride: stride as u32,
    };
    let rule = RowRule {
        kind: RowRule::ROWWISE_ADAGRAD,
        end: dim as u32,
        state: dim as u32,
        lr: 1e-3,
        eps: 1e-8,
        ..RowRule::default()
    };
    let update = RowUpdate {
        slab: slab.address(),
        slots,
        sources: timer.upload(&sources)?.address(),
        parts: timer.upload(&[RowPart { begin: 0, end: dim as u32 }])?.address(),
        starts: timer.upload(&batch.starts)?.address(),
        occurrences: timer.upload(&batch.occurrences)?.address(),
        classes: timer.upload(&[batch.classes])?.address(),
        rules: timer.upload(&[rule])?.address(),
        nonfinite: timer.upload(&[0u32])?.address(),
        stride: stride as u32,
        width: dim as u32,
        part_count: 1,
        gathers: COLUMNS as u32,
        gather_bits: COLUMN_BITS,
        rule_count: 1,
        ..RowUpdate::default()
    };
    Ok(Placed { gather, update, classes: batch.classes })
}

fn launch<T: bytemuck::NoUninit>(
    timer: &Timer<'_>,
    stream: Stream,
    kernel: &'static Kernel,
    geometry: Geometry,
    params: &T,
    rows: usize,
) -> Result<(), GpuError> {
    let params = [Param::new(params)];
    timer.gpu.launch(stream, &geometry.launch(kernel, &params, &[("rows", rows)]))
}

/// Enqueues the update of one batch: long rows, beside or before the others.
fn update(
    timer: &Timer<'_>,
    side: &Side,
    placed: &Placed,
    is_parallel: bool,
    dim: usize,
    rows: usize,
) -> Result<(), GpuError> {
    let (gpu, main) = (timer.gpu, timer.stream);
    let threads = RowUpdate::threads(dim as u32).unwrap_or(32);
    let (short, short_geometry) = placed.update.short(threads, placed.classes.unique);
    let (long, long_geometry) = placed.update.long(threads, placed.classes.long_rows);
    let has_long = placed.classes.long_rows > 0;
    let stream = if is_parallel { side.stream } else { main };
    if has_long {
        if is_parallel {
            gpu.record(side.events[0], main)?;
            gpu.wait(side.stream, side.events[0])?;
        }
        launch(timer, stream, long, long_geometry, &placed.update, rows)?;
    }
    launch(timer, main, short, short_geometry, &placed.update, rows)?;
    if has_long && is_parallel {
        gpu.record(side.events[1], side.stream)?;
        gpu.wait(main, side.events[1])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_lists_every_occurrence_of_each_row_in_order() {
        let keys = draw_keys(500, 26_000, 3);
        let batch = Batch::new(&keys, [8, 64]);
        let classes = batch.classes;
        assert!(classes.long_rows > 0 && classes.medium_rows > 0, "{classes:?}");
        let mut seen = 0;
        let mut last_class = 0;
        for (unique, slot) in batch.slots.iter().enumerate() {
            let range = batch.starts[unique] as usize..batch.starts[unique + 1] as usize;
            let class = match range.len() {
                65.. => 0,
                9.. => 1,
                _ => 2,
            };
            assert!(class >= last_class, "classes are in order");
            last_class = class;
            for occurrence in &batch.occurrences[range] {
                let (row, column) =
                    (occurrence >> COLUMN_BITS, occurrence & ((1 << COLUMN_BITS) - 1));
                assert_eq!(keys[row as usize * COLUMNS + column as usize], *slot);
                assert_eq!(batch.inverse[column as usize][row as usize] as usize, unique);
                seen += 1;
            }
        }
        assert_eq!(seen, keys.len());
    }
}
