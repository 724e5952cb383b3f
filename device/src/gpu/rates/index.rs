//! The rates of the index of served layers: inserts, finds, and finds with the rows of 64 floats.
//!
//! All results of the finds are compared with the numbers that were inserted, so a rate is never
//! that of a kernel that finds the wrong rows.

use super::{Rate, Timer, median};
use crate::gpu::device::Gpu;
use crate::gpu::error::GpuError;
use crate::gpu::kernels::{
    COPY_FOUND, CopyFound, Count, Geometry, INDEX_FIND, INDEX_INSERT, IndexFind, IndexInsert,
    LayerIndex,
};
use crate::gpu::launch::{Kernel, Param};
use crate::gpu::memory::Memory;

/// The loads of the index at which the rates are measured, in percent of its places.
const LOADS: [u64; 2] = [50, 80];
/// The largest number of keys in a launch.
const MOST_KEYS: u64 = 1 << 20;
/// The number of batches of keys that finds use in turn.
const BATCHES: u64 = 8;
/// The number of launches before a load whose median time is the rate of inserts.
const TIMED_INSERTS: u64 = 7;
/// The number of floats in a row.
const STRIDE: u32 = 64;

/// The result of a check of finds.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mistakes {
    /// The number of inserted keys that were not found.
    lost: u64,
    /// The number of keys with the row of another key.
    wrong: u64,
}

/// Measures the index with `places` places for keys, and a row of 64 floats for each key.
///
/// # Errors
///
/// Returns the error of the device.
pub fn measure_index(gpu: &dyn Gpu, places: u64) -> Result<Vec<Rate>, GpuError> {
    let buckets = places.div_ceil(LayerIndex::PLACES as u64).max(1);
    let places = buckets * LayerIndex::PLACES as u64;
    let mut timer = Timer::new(gpu)?;
    let taken = places * LOADS[LOADS.len() - 1] / 100;
    let batch = MOST_KEYS.min(taken.div_ceil(2 * BATCHES)).max(1);
    let index = LayerIndex {
        buckets: zeros(&mut timer, buckets * LayerIndex::BUCKET as u64)?.address(),
        keys: timer.allocate(places as usize * 8)?.address(),
        values: timer.allocate(places as usize * 4)?.address(),
        slab: timer.allocate(taken as usize * STRIDE as usize * 4)?.address(),
        bucket_count: buckets as u32,
        stride: STRIDE,
    };
    let mut filling = Filling { index, lost: zeros(&mut timer, 4)?, inserted: 0 };
    let mut all = Vec::new();
    for load in LOADS {
        let shape = format!("{places} places, load {}", load as f64 / 100.0);
        let seconds = filling.fill(&mut timer, places * load / 100, batch)?;
        let note = format!("{} keys found no place", filling.count_lost(&timer)?);
        all.push(rate("index insert", &shape, seconds, batch).noted(note));
        let finds = Finds::new(&mut timer, index, filling.inserted, batch)?;
        all.extend(finds.measure(&timer, &shape)?);
    }
    timer.free()?;
    Ok(all)
}

/// Returns key `number`: different numbers have different keys, because every step can be undone.
fn key(number: u64) -> u64 {
    let mut key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    key ^= key >> 32;
    key = key.wrapping_mul(0xd6e8_feb8_6659_fd93);
    key ^ key >> 29
}

fn rate(name: &str, shape: &str, seconds: f64, keys: u64) -> Rate {
    Rate::new(name, shape.to_owned(), seconds, keys as f64 / seconds / 1e9, "G keys/s")
}

fn zeros(timer: &mut Timer<'_>, bytes: u64) -> Result<Memory, GpuError> {
    let memory = timer.allocate(bytes as usize)?;
    timer.gpu.fill(timer.stream, memory, 0)?;
    Ok(memory)
}

fn launch<T: bytemuck::NoUninit>(
    timer: &Timer<'_>,
    kernel: &'static Kernel,
    geometry: Geometry,
    params: &T,
    keys: u64,
) -> Result<(), GpuError> {
    let params = [Param::new(params)];
    timer.gpu.launch(timer.stream, &geometry.launch(kernel, &params, &[("keys", keys as usize)]))
}

/// An index that is being filled with the keys of the numbers from 0 on.
struct Filling {
    index: LayerIndex,
    lost: Memory,
    inserted: u64,
}

impl Filling {
    /// Inserts keys until `wanted` keys are there. Returns the median seconds of the last launches
    /// of `batch` keys.
    fn fill(&mut self, timer: &mut Timer<'_>, wanted: u64, batch: u64) -> Result<f64, GpuError> {
        let keys = timer.allocate(batch as usize * 8)?;
        let values = timer.allocate(batch as usize * 4)?;
        let mut seconds = Vec::new();
        while self.inserted < wanted {
            let count = batch.min(wanted - self.inserted);
            let numbers = self.inserted..self.inserted + count;
            let of_batch: Vec<u64> = numbers.clone().map(key).collect();
            let rows: Vec<u32> = numbers.map(|number| number as u32).collect();
            timer.gpu.upload(timer.stream, keys, bytemuck::cast_slice(&of_batch))?;
            timer.gpu.upload(timer.stream, values, bytemuck::cast_slice(&rows))?;
            let insert = IndexInsert {
                index: self.index,
                keys: keys.address(),
                values: values.address(),
                lost: self.lost.address(),
                count: Count::fixed(count as u32),
            };
            let took = timer
                .seconds(|| launch(timer, &INDEX_INSERT, insert.geometry(), &insert, count))?;
            // The last launch may have fewer keys.
            if count == batch && wanted - self.inserted <= (TIMED_INSERTS + 1) * batch {
                seconds.push(took);
            }
            self.inserted += count;
        }
        Ok(median(seconds))
    }

    fn count_lost(&self, timer: &Timer<'_>) -> Result<u32, GpuError> {
        let mut lost = [0u32];
        timer.gpu.download(timer.stream, bytemuck::cast_slice_mut(&mut lost), self.lost)?;
        Ok(lost[0])
    }
}

/// Batches of keys that are looked up in turn.
struct Finds {
    /// The numbers of the keys of each batch that are in the index.
    present: Vec<Vec<u64>>,
    of_present: Vec<IndexFind>,
    of_absent: Vec<IndexFind>,
    rows: Memory,
    miss_count: Memory,
    copy: CopyFound,
    index: LayerIndex,
    keys: u64,
}

impl Finds {
    fn new(
        timer: &mut Timer<'_>,
        index: LayerIndex,
        inserted: u64,
        keys: u64,
    ) -> Result<Self, GpuError> {
        let layers = timer.upload(&[index])?;
        let rows = timer.allocate(keys as usize * 8)?;
        let misses = timer.allocate(keys as usize * 4)?;
        let miss_count = zeros(timer, 4)?;
        let find = |keys_at: Memory| IndexFind {
            layers: layers.address(),
            keys: keys_at.address(),
            rows: rows.address(),
            misses: misses.address(),
            miss_count: miss_count.address(),
            count: Count::fixed(keys as u32),
            layer_count: 1,
            unused: 0,
        };
        let (mut present, mut of_present, mut of_absent) = (Vec::new(), Vec::new(), Vec::new());
        for batch in 0..BATCHES {
            // Numbers in a random order, so that neighbouring threads read different buckets.
            let numbers: Vec<u64> = (0..keys).map(|i| key(batch * keys + i) % inserted).collect();
            let of_numbers: Vec<u64> = numbers.iter().copied().map(key).collect();
            of_present.push(find(timer.upload(&of_numbers)?));
            let others: Vec<u64> = (0..keys).map(|i| key(inserted + batch * keys + i)).collect();
            of_absent.push(find(timer.upload(&others)?));
            present.push(numbers);
        }
        let out = timer.allocate(keys as usize * STRIDE as usize * 4)?;
        let copy = CopyFound {
            rows: rows.address(),
            out: out.address(),
            count: Count::fixed(keys as u32),
            stride: STRIDE,
            unused: 0,
        };
        Ok(Self { present, of_present, of_absent, rows, miss_count, copy, index, keys })
    }

    fn measure(&self, timer: &Timer<'_>, shape: &str) -> Result<Vec<Rate>, GpuError> {
        let count = BATCHES as usize;
        let found = timer.seconds_in_graph(count, |b| self.find(timer, &self.of_present[b]))?;
        let with_rows = timer.seconds_in_graph(count, |batch| {
            self.find(timer, &self.of_present[batch])?;
            launch(timer, &COPY_FOUND, self.copy.geometry(), &self.copy, self.keys)
        })?;
        let absent = timer.seconds_in_graph(count, |b| self.find(timer, &self.of_absent[b]))?;
        let mistakes = self.check(timer)?;
        let note = format!("{} keys lost, {} wrong", mistakes.lost, mistakes.wrong);
        Ok(vec![
            rate("index find", shape, found, self.keys).noted(note),
            rate("index find, rows of 64 floats", shape, with_rows, self.keys),
            rate("index find, absent keys", shape, absent, self.keys),
        ])
    }

    fn find(&self, timer: &Timer<'_>, find: &IndexFind) -> Result<(), GpuError> {
        timer.gpu.fill(timer.stream, self.miss_count, 0)?;
        launch(timer, &INDEX_FIND, find.geometry(), find, self.keys)
    }

    /// Looks up all batches once more, and compares every result.
    fn check(&self, timer: &Timer<'_>) -> Result<Mistakes, GpuError> {
        let mut mistakes = Mistakes::default();
        let mut rows = vec![0u64; self.keys as usize];
        for (find, numbers) in self.of_present.iter().zip(&self.present) {
            self.find(timer, find)?;
            timer.gpu.download(timer.stream, bytemuck::cast_slice_mut(&mut rows), self.rows)?;
            for (row, number) in rows.iter().zip(numbers) {
                let expected = self.index.slab + number * u64::from(STRIDE) * 4;
                mistakes.lost += u64::from(*row == 0);
                mistakes.wrong += u64::from(*row != 0 && *row != expected);
            }
        }
        for find in &self.of_absent {
            self.find(timer, find)?;
            timer.gpu.download(timer.stream, bytemuck::cast_slice_mut(&mut rows), self.rows)?;
            mistakes.wrong += rows.iter().filter(|row| **row != 0).count() as u64;
        }
        Ok(mistakes)
    }
}

#[cfg(all(test, feature = "emulated-gpu"))]
mod tests {
    use super::*;
    use crate::gpu::emulated::{Emulated, EmulatedOptions};

    #[test]
    fn the_rates_are_those_of_an_index_without_mistakes() {
        let gpu = Emulated::new(EmulatedOptions::seeded(7));
        let all = measure_index(&gpu, 3_000).unwrap();
        let names: Vec<&str> = all.iter().map(|rate| rate.name.as_str()).collect();
        assert_eq!(names.len(), 4 * LOADS.len(), "{names:?}");
        for rate in all {
            assert!(rate.rate > 0.0, "{rate:?}");
            if let Some(note) = rate.note {
                assert!(note.starts_with('0'), "{note}");
                assert!(!note.contains("wrong") || note.ends_with(" 0 wrong"), "{note}");
            }
        }
    }
}
