//! The memory, the launches and the comparisons of one check.

use std::cell::RefCell;

use bytemuck::{AnyBitPattern, NoUninit};

use super::super::kernels::{Geometry, Rows, Split};
use super::super::{Gpu, GpuError, Kernel, Memory, Param, Stream};
use super::Outcome;

/// The number of bytes behind an allocation that must not change.
const MARGIN: usize = 512;
/// The byte of memory that nothing has written.
const POISON: u8 = 0xff;

/// A check on a device: it owns a stream and memory, and frees the memory at the end.
pub(super) struct Session<'a> {
    name: &'static str,
    gpu: &'a dyn Gpu,
    stream: Stream,
    allocations: RefCell<Vec<(Memory, usize)>>,
    compared: u64,
}

impl<'a> Session<'a> {
    /// Begins the check `name`.
    pub(super) fn new(name: &'static str, gpu: &'a dyn Gpu) -> Result<Self, GpuError> {
        let stream = gpu.create_stream()?;
        Ok(Self { name, gpu, stream, allocations: RefCell::default(), compared: 0 })
    }

    /// Allocates memory for `count` values, all of whose bytes are poison.
    pub(super) fn poisoned<T>(&self, count: usize) -> Result<Memory, GpuError> {
        let bytes = count * size_of::<T>();
        let memory = self.gpu.allocate(bytes + MARGIN)?;
        self.allocations.borrow_mut().push((memory, bytes));
        self.gpu.fill(self.stream, memory, POISON)?;
        Ok(memory)
    }

    /// Allocates memory for some values and uploads them. Returns the address.
    pub(super) fn upload<T: NoUninit>(&self, values: &[T]) -> Result<u64, GpuError> {
        let memory = self.poisoned::<T>(values.len())?;
        if !values.is_empty() {
            self.gpu.upload(self.stream, memory, bytemuck::cast_slice(values))?;
        }
        Ok(memory.address())
    }

    /// Returns the first `count` values of memory.
    pub(super) fn download<T: AnyBitPattern + NoUninit>(
        &self,
        address: u64,
        count: usize,
    ) -> Result<Vec<T>, GpuError> {
        let mut values = vec![T::zeroed(); count];
        if count > 0 {
            let from = Memory::new(address, count * size_of::<T>());
            self.gpu.download(self.stream, bytemuck::cast_slice_mut(&mut values), from)?;
        }
        Ok(values)
    }

    /// Launches a kernel with its structure of parameters.
    pub(super) fn launch<T: NoUninit>(
        &self,
        kernel: &'static Kernel,
        geometry: Geometry,
        parameters: &T,
    ) -> Result<(), GpuError> {
        let params = [Param::new(parameters)];
        self.gpu.launch(self.stream, &geometry.launch(kernel, &params, &[]))
    }

    /// Compares results with the reference by bits. `case` describes the shapes.
    pub(super) fn compare(
        &mut self,
        case: &str,
        got: &[f32],
        expected: &[f32],
    ) -> Result<(), GpuError> {
        self.compared += expected.len() as u64;
        let differs =
            |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan());
        let count = got.iter().zip(expected).filter(|&pair| differs(pair)).count();
        let Some(first) = got.iter().zip(expected).position(differs) else { return Ok(()) };
        let (got, expected) = (got[first], expected[first]);
        self.fail(format!(
            "{case}: {count} of the results differ; the first one, with the index {first}, is \
             {got:e} ({:08x}) instead of {expected:e} ({:08x})",
            got.to_bits(),
            expected.to_bits(),
        ))
    }

    /// Compares integers with the reference.
    pub(super) fn compare_words<T: PartialEq + std::fmt::Debug>(
        &mut self,
        case: &str,
        got: &[T],
        expected: &[T],
    ) -> Result<(), GpuError> {
        self.compared += expected.len() as u64;
        match got.iter().zip(expected).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(first) => self.fail(format!(
                "{case}: the value with the index {first} is {:?} instead of {:?}",
                got[first], expected[first]
            )),
        }
    }

    /// Returns the error of this check.
    pub(super) fn fail<T>(&self, problem: String) -> Result<T, GpuError> {
        Err(GpuError::Check { check: self.name, problem })
    }

    /// Checks the margins and frees the memory of a case.
    pub(super) fn end_case(&self, case: &str) -> Result<(), GpuError> {
        for (memory, bytes) in self.allocations.take() {
            let mut margin = [0; MARGIN];
            self.gpu.download(self.stream, &mut margin, memory.part(bytes, MARGIN)?)?;
            self.gpu.free(memory)?;
            if margin != [POISON; MARGIN] {
                return self.fail(format!("{case}: a kernel wrote behind the end of its memory"));
            }
        }
        Ok(())
    }

    /// Ends the check and counts what was compared.
    pub(super) fn finish(self) -> Result<Outcome, GpuError> {
        self.end_case("the last case")?;
        Ok(Outcome { compared: self.compared })
    }
}

/// A source of random numbers, the same for every device (SplitMix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    /// Returns the next number.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Returns true once in `times` calls on average.
    pub(super) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// Returns a float between -1 and 1.
    pub(super) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 8_388_608.0 - 1.0
    }

    /// Returns `count` floats of a kind.
    pub(super) fn floats(&mut self, count: usize, kind: Values) -> Vec<f32> {
        (0..count)
            .map(|_| {
                let value = self.unit();
                match kind {
                    Values::Plain => value,
                    Values::Tiny => value * [1e-20, 1e-25, 1e-18][self.below(3)],
                    Values::Special if self.once_in(200) => {
                        [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 1e-42][self.below(5)]
                    }
                    Values::Special => value,
                }
            })
            .collect()
    }
}

/// The kinds of floats of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Values {
    /// Between -1 and 1.
    Plain,
    /// Numbers so small that their products underflow.
    Tiny,
    /// Plain numbers, and now and then NaN, an infinity, -0 or a subnormal number.
    Special,
}

impl Values {
    /// Returns the kind of the case with a number: mostly plain ones.
    pub(super) fn of_case(case: usize) -> Self {
        match case % 5 {
            1 => Self::Tiny,
            3 => Self::Special,
            _ => Self::Plain,
        }
    }
}

/// A matrix on the host. With the stride 0, all rows are one row; with one column, all columns that
/// are asked for are this column.
#[derive(Clone, Debug)]
pub(super) struct Matrix {
    pub(super) values: Vec<f32>,
    pub(super) cols: usize,
    pub(super) stride: usize,
}

impl Matrix {
    /// Creates a matrix with `gap` floats behind each row.
    pub(super) fn random(
        random: &mut Random,
        rows: usize,
        cols: usize,
        gap: usize,
        kind: Values,
    ) -> Self {
        let stride = cols + gap;
        Self { values: random.floats(rows * stride, kind), cols, stride }
    }

    /// Returns the element in a row and a column.
    pub(super) fn at(&self, row: usize, col: usize) -> f32 {
        self.values[row * self.stride + if self.cols == 1 { 0 } else { col }]
    }

    /// Returns the floats of a row.
    pub(super) fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.stride..][..self.cols]
    }

    /// Uploads the matrix to the device.
    pub(super) fn upload(&self, session: &Session<'_>) -> Result<Rows, GpuError> {
        let data = session.upload(&self.values)?;
        Ok(Rows { data, stride: self.stride as u32, cols: self.cols as u32 })
    }
}

/// The rows of a batch in tiles and lanes.
#[derive(Clone, Debug)]
pub(super) struct Lanes {
    pub(super) tiles: Vec<u32>,
    pub(super) lanes: Vec<u32>,
}

impl Lanes {
    /// Cuts rows into lanes of equal shares and tiles of up to `tile_rows` rows. Some tiles are
    /// shorter, and the last lanes may be empty.
    pub(super) fn random(random: &mut Random, rows: usize, count: usize, tile_rows: usize) -> Self {
        let share = rows.div_ceil(count).next_multiple_of(16).max(1);
        let (mut tiles, mut lanes) = (vec![0u32], vec![0u32]);
        for lane in 0..count {
            let end = rows.min((lane + 1) * share) as u32;
            while let Some(&last) = tiles.last()
                && last < end
            {
                let length =
                    if random.once_in(4) { 1 + random.below(tile_rows) } else { tile_rows };
                tiles.push(end.min(last + length as u32));
            }
            lanes.push(tiles.len() as u32 - 1);
        }
        Self { tiles, lanes }
    }

    /// Returns the ranges of rows of the tiles of each lane.
    pub(super) fn ranges(&self) -> Vec<Vec<std::ops::Range<usize>>> {
        let tile = |t: u32| self.tiles[t as usize] as usize..self.tiles[t as usize + 1] as usize;
        self.lanes.windows(2).map(|ends| (ends[0]..ends[1]).map(tile).collect()).collect()
    }

    /// Uploads the bounds to the device.
    pub(super) fn upload(&self, session: &Session<'_>) -> Result<Split, GpuError> {
        Ok(Split {
            tiles: session.upload(&self.tiles)?,
            lanes: session.upload(&self.lanes)?,
            lane_count: self.lanes.len() as u32 - 1,
            unused: 0,
        })
    }
}
