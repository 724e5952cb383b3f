//! The index of served layers against a plain map: every key that was not counted as lost is found,
//! with its value, in the newest layer that has it, and no other key is.

use std::collections::{HashMap, HashSet};

use super::super::kernels::{
    COPY_FOUND, CopyFound, Count, INDEX_FIND, INDEX_INSERT, IndexFind, IndexInsert, LayerIndex,
    PUT_ROWS, PutRows,
};
use super::super::{Gpu, GpuError};
use super::session::{Random, Session, Values};
use super::{Outcome, Size};

/// A layer on the host.
struct Layer {
    index: LayerIndex,
    values: HashMap<u64, u32>,
    rows: Vec<f32>,
}

/// Returns different keys, among them the smallest and the largest ones.
fn different_keys(random: &mut Random, count: usize) -> Vec<u64> {
    let mut seen = HashSet::new();
    let mut keys: Vec<u64> = [0, 1, u64::MAX, u64::MAX - 1, 1 << 63].into();
    keys.truncate(count);
    seen.extend(keys.iter().copied());
    while keys.len() < count {
        // Some keys differ in a few bits alone.
        let key = if random.once_in(3) { random.next() >> 44 } else { random.next() };
        if seen.insert(key) {
            keys.push(key);
        }
    }
    keys
}

/// Fills an index of `buckets` buckets in two launches. Returns the layer, and the number of lost
/// keys, none of which the layer has.
fn fill(
    session: &mut Session<'_>,
    random: &mut Random,
    keys: &[u64],
    buckets: usize,
    stride: usize,
) -> Result<(Layer, usize), GpuError> {
    let places = buckets * LayerIndex::PLACES;
    let rows = random.floats(keys.len() * stride, Values::Special);
    let index = LayerIndex {
        buckets: session.upload(&vec![0u8; buckets * LayerIndex::BUCKET])?,
        keys: session.poisoned::<u64>(places)?.address(),
        values: session.poisoned::<u32>(places)?.address(),
        slab: session.upload(&rows)?,
        bucket_count: buckets as u32,
        stride: stride as u32,
    };
    let values: Vec<u32> = (0..keys.len() as u32)
        .map(|row| if row % 11 == 3 { LayerIndex::ON_HOST } else { row })
        .collect();
    let lost_at = session.upload(&[0u32])?;
    let half = keys.len() / 2;
    for range in [0..half, half..keys.len()] {
        let insert = IndexInsert {
            index,
            keys: session.upload(&keys[range.clone()])?,
            values: session.upload(&values[range.clone()])?,
            lost: lost_at,
            count: Count::fixed(range.len() as u32),
        };
        session.launch(&INDEX_INSERT, insert.geometry(), &insert)?;
    }
    let lost = session.download::<u32>(lost_at, 1)?[0] as usize;
    let mut of_key: HashMap<u64, u32> = keys.iter().copied().zip(values.iter().copied()).collect();
    // Which keys are lost depends on the order of threads. Those that are there are in the table.
    let masks: Vec<u32> = session.download(index.buckets, buckets * LayerIndex::BUCKET / 4)?;
    let stored: Vec<u64> = session.download(index.keys, places)?;
    let is_taken = |place: usize| {
        masks[place / LayerIndex::PLACES * 8 + 6] >> (place % LayerIndex::PLACES) & 1 == 1
    };
    let there: Vec<u64> = (0..places).filter(|&place| is_taken(place)).map(|p| stored[p]).collect();
    let different: HashSet<u64> = there.iter().copied().collect();
    let name = format!("{} keys, {buckets} buckets", keys.len());
    session.compare_words(&name, &[there.len()], &[different.len()])?;
    session.compare_words(&name, &[there.len()], &[keys.len() - lost])?;
    of_key.retain(|key, _| different.contains(key));
    session.compare_words(&name, &[of_key.len()], &[there.len()])?;
    Ok((Layer { index, values: of_key, rows }, lost))
}

/// Compares the finds in layers, the newest first.
fn check_finds(
    session: &mut Session<'_>,
    name: &str,
    layers: &[Layer],
    asked: &[u64],
) -> Result<(), GpuError> {
    let indices: Vec<LayerIndex> = layers.iter().map(|layer| layer.index).collect();
    let count = Count::fixed(asked.len() as u32);
    let find = IndexFind {
        layers: session.upload(&indices)?,
        keys: session.upload(asked)?,
        rows: session.poisoned::<u64>(asked.len())?.address(),
        misses: session.poisoned::<u32>(asked.len())?.address(),
        miss_count: session.upload(&[0u32])?,
        count,
        layer_count: layers.len() as u32,
        unused: 0,
    };
    session.launch(&INDEX_FIND, find.geometry(), &find)?;
    let stride = indices.first().map_or(4, |index| index.stride);
    let mut expected = vec![f32::NAN; asked.len() * stride as usize];
    let mut missing = Vec::new();
    let mut rows = vec![0u64; asked.len()];
    for (u, key) in asked.iter().enumerate() {
        let found = layers.iter().find_map(|layer| Some((layer, *layer.values.get(key)?)));
        match found {
            Some((layer, value)) if value != LayerIndex::ON_HOST => {
                rows[u] = layer.index.slab + u64::from(value * stride) * 4;
                let from = &layer.rows[(value * stride) as usize..][..stride as usize];
                expected[u * stride as usize..][..stride as usize].copy_from_slice(from);
            }
            _ => missing.push(u as u32),
        }
    }
    session.compare_words(name, &session.download::<u64>(find.rows, asked.len())?, &rows)?;
    let count_of = session.download::<u32>(find.miss_count, 1)?;
    session.compare_words(name, &count_of, &[missing.len() as u32])?;
    let mut misses: Vec<u32> = session.download(find.misses, missing.len())?;
    misses.sort_unstable();
    session.compare_words(name, &misses, &missing)?;
    let out = session.poisoned::<f32>(expected.len())?.address();
    let copy = CopyFound { rows: find.rows, out, count, stride, unused: 0 };
    session.launch(&COPY_FOUND, copy.geometry(), &copy)?;
    session.compare(name, &session.download(out, expected.len())?, &expected)?;
    let ones = vec![1.0f32; missing.len() * stride as usize];
    let put = PutRows {
        rows: session.upload(&ones)?,
        places: session.upload(&missing)?,
        out,
        count: Count::fixed(missing.len() as u32),
        stride,
        unused: 0,
    };
    session.launch(&PUT_ROWS, put.geometry(), &put)?;
    for &u in &missing {
        expected[(u * stride) as usize..][..stride as usize].fill(1.0);
    }
    session.compare(name, &session.download(out, expected.len())?, &expected)
}

/// Compares finds in one layer at several loads, and in several layers.
pub(super) fn finds(gpu: &dyn Gpu, size: Size) -> Result<Outcome, GpuError> {
    let mut session = Session::new("index", gpu)?;
    let mut random = Random(171);
    let buckets = if size == Size::Small { 40 } else { 40_000 };
    let places = buckets * LayerIndex::PLACES;
    for (percent, stride) in [(0, 4), (1, 8), (40, 5), (80, 16), (90, 4)] {
        let keys = different_keys(&mut random, places * percent / 100);
        let name = format!("load {percent} %, stride {stride}");
        let (layer, lost) = fill(&mut session, &mut random, &keys, buckets, stride)?;
        // A small index is fuller in some places than a large one of the same load.
        let most_lost = if percent > 80 { keys.len() / 50 } else { keys.len() / 500 };
        if lost > most_lost {
            return session.fail(format!("{name}: {lost} of {} keys were lost", keys.len()));
        }
        let mut asked = keys.clone();
        asked.extend((0..keys.len() / 2 + 9).map(|_| random.next()));
        asked.extend([0, u64::MAX]);
        check_finds(&mut session, &name, &[layer], &asked)?;
        session.end_case(&name)?;
    }
    // Layers that share some keys; one of them has no key.
    let all = different_keys(&mut random, places / 2);
    let parts = [&all[..places / 8], &all[places / 16..places / 4], &[], &all[..]];
    let mut layers = Vec::new();
    for keys in parts {
        let buckets = LayerIndex::buckets_for(keys.len());
        layers.push(fill(&mut session, &mut random, keys, buckets, 12)?.0);
    }
    check_finds(&mut session, "four layers", &layers, &all)?;
    check_finds(&mut session, "no layer", &[], &all[..9])?;
    session.finish()
}
