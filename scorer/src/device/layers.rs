//! The rows of versions on a device: each layer of a version has an index and rows there.
//!
//! A layer never changes, so nothing is ever invalidated: versions share the device layers of the
//! layers that they share, and a rollback uses other handles. Deltas are folded like the bits of
//! their number ([`fold`]), so a delta is uploaded at most three times until the host merges it.
//!
//! # Invariants
//! * The device layer of a delta has all keys of the delta. A key whose row was removed has the
//!   mark that the host knows what it reads. So a row of an older layer is never read for a key
//!   that a newer layer has.
//! * The device layer of the oldest layer has some of its rows, and the host reads the others from
//!   the same version.
//! * A row on the device has the bits that a lookup in the layer returns.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use zillion_device::gpu::kernels::{Count, INDEX_INSERT, IndexInsert, LayerIndex};
use zillion_device::gpu::{Gpu, Memory, Param, Stream};
use zillion_feature::FeatureKey;
use zillion_rows::layer::{Found, Layer, LayerSource, MAX_LAYERS, MAX_OPEN_LAYERS, Throttle};
use zillion_rows::{RowSource as _, TableLayout};

use super::ScoringDevice;
use super::hot::{self, HotKeys};
use crate::error::{Error, Result};

/// The number of keys that are uploaded at once.
const PIECE_KEYS: usize = 8192;
/// The number of times that an index grows if keys found no place.
const MOST_GROWTHS: usize = 3;

/// Returns the bytes that the rows of a base may take: half of the budget that is free, where the
/// older bases of the model count as free, because they go when their versions do. A quarter of
/// what is free now stays free in any case. The rest is for the deltas, for the memory of batches,
/// and for the next base while both are loaded.
fn room_of_base(left: u64, older_bases: u64) -> u64 {
    (left.saturating_add(older_bases) / 2).min(left - left / 4)
}

/// Divides the deltas of a version into at most three groups, the oldest first, whose sizes are the
/// bits of their number: 4, 2 and 1 for seven deltas. The group of an old delta seldom changes:
/// it doubles when as many newer ones have come.
fn fold(deltas: &[Layer]) -> Vec<&[Layer]> {
    const { assert!(MAX_OPEN_LAYERS <= 1 << (MAX_LAYERS - 1), "too many groups") };
    let mut groups = Vec::new();
    let mut rest = deltas;
    while let Some(bit) = rest.len().checked_ilog2() {
        let (group, later) = rest.split_at(1 << bit);
        groups.push(group);
        rest = later;
    }
    groups
}

/// Returns the bytes of the index of this number of keys, without rows.
pub(super) fn bytes_of_keys(keys: usize) -> u64 {
    bytes_of_buckets(LayerIndex::buckets_for(keys)) as u64
}

fn bytes_of_buckets(buckets: usize) -> usize {
    buckets * (LayerIndex::BUCKET + LayerIndex::PLACES * (size_of::<u64>() + size_of::<u32>()))
}

/// The keys of a table of a device layer: those with a row, and those that the host answers.
#[derive(Debug, Default)]
struct TableKeys {
    with_row: Vec<FeatureKey>,
    on_host: Vec<FeatureKey>,
}

impl TableKeys {
    fn count(&self) -> usize {
        self.with_row.len() + self.on_host.len()
    }
}

/// Some layers of a version on the device, as one layer.
#[derive(Debug)]
pub(crate) struct DeviceLayer {
    device: Arc<ScoringDevice>,
    /// The layers, oldest first. They stay open, so that no other layer is taken for them.
    layers: Vec<Layer>,
    memory: Vec<Memory>,
    /// The index of each table; `None` if the layer has no key of the table.
    tables: Vec<Option<LayerIndex>>,
    rows: u64,
    is_base: bool,
}

impl DeviceLayer {
    /// Returns the bytes on the device if the layer is a base, and otherwise 0.
    fn bytes_of_base(&self) -> u64 {
        let bytes = self.memory.iter().map(|memory| memory.bytes() as u64).sum();
        if self.is_base { bytes } else { 0 }
    }
}

impl Drop for DeviceLayer {
    fn drop(&mut self) {
        let gpu = self.device.gpu();
        // An error cannot be returned from here. The device reports it again at its next use.
        for memory in self.memory.drain(..) {
            let _ = gpu.free(memory);
        }
        self.device.counts.resident_rows.fetch_sub(self.rows, Ordering::Relaxed);
    }
}

/// The device layers of a model that versions use.
#[derive(Debug, Default)]
pub(crate) struct LayerPool {
    known: Mutex<Vec<Weak<DeviceLayer>>>,
}

/// The layers of one version on the device.
#[derive(Debug)]
pub(crate) struct VersionLayers {
    device: Arc<ScoringDevice>,
    /// The lists of the indices of each table, the newest layer first.
    lists: Memory,
    /// The place and the length of the list of each table.
    tables: Vec<(usize, u32)>,
    /// The device layers, which live as long as the version.
    _layers: Vec<Arc<DeviceLayer>>,
}

impl Drop for VersionLayers {
    fn drop(&mut self) {
        // An error cannot be returned from here. The device reports it again at its next use.
        let _ = self.device.gpu().free(self.lists);
    }
}

impl VersionLayers {
    /// Returns the address and the length of the list of a table's indices.
    pub(super) fn list(&self, table: usize) -> (u64, u32) {
        let &(at, len) = self.tables.get(table).unwrap_or(&(0, 0));
        (self.lists.address() + at as u64, len)
    }

    /// Returns whether any row may be on the device.
    pub(super) fn is_empty(&self) -> bool {
        self.tables.iter().all(|&(_, len)| len == 0)
    }
}

impl LayerPool {
    /// Brings the layers of a version to the device. Layers that other versions have there are
    /// shared. If the changed rows do not fit into the budget even without the memory of batches,
    /// no row of the version is on the device, and all are read from the host. The caller holds no
    /// turn of the device.
    ///
    /// # Errors
    /// Returns an error of the device other than that of its memory.
    pub(crate) fn version(
        &self,
        device: &Arc<ScoringDevice>,
        source: &LayerSource,
        pace: &mut dyn Throttle,
    ) -> Result<VersionLayers> {
        let bring = |pace: &mut dyn Throttle| {
            self.layers(device, source, pace).and_then(|all| list(device, source, all))
        };
        let made = match bring(pace) {
            Err(error) if error.is_out_of_memory() => {
                drop(device.turn_alone());
                bring(pace)
            }
            made => made,
        };
        match made {
            Err(error) if error.is_out_of_memory() => {
                device.counts.versions_without_rows.fetch_add(1, Ordering::Relaxed);
                list(device, source, Vec::new())
            }
            made => made,
        }
    }

    /// Returns the device layers of a version, oldest first.
    fn layers(
        &self,
        device: &Arc<ScoringDevice>,
        source: &LayerSource,
        pace: &mut dyn Throttle,
    ) -> Result<Vec<Arc<DeviceLayer>>> {
        let Some((base, deltas)) = source.layers().split_first() else { return Ok(Vec::new()) };
        // The deltas come first, because a base fits in part as well.
        let mut of_deltas = Vec::new();
        for group in fold(deltas) {
            of_deltas.push(match self.find(group) {
                Some(known) => known,
                None => self.keep(build(
                    device,
                    source,
                    (group, false),
                    delta_keys(source, group),
                    pace,
                )?),
            });
        }
        let base = std::slice::from_ref(base);
        let of_base = match self.find(base) {
            Some(known) => known,
            None => {
                let layouts = source.tables();
                device.drop_surplus_executors(Instant::now());
                let room = room_of_base(device.left(), self.bytes_of_bases());
                let HotKeys { tables } = hot::choose(&base[0], layouts, room, pace);
                let keys = tables.into_iter();
                let keys = keys.map(|with_row| TableKeys { with_row, ..TableKeys::default() });
                self.keep(build(device, source, (base, true), keys.collect(), pace)?)
            }
        };
        Ok([of_base].into_iter().chain(of_deltas).collect())
    }

    fn find(&self, layers: &[Layer]) -> Option<Arc<DeviceLayer>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_of = |one: &DeviceLayer| {
            one.layers.len() == layers.len()
                && one.layers.iter().zip(layers).all(|(a, b)| a.is_same(b))
        };
        known.iter().filter_map(Weak::upgrade).find(|one| is_of(one))
    }

    fn bytes_of_bases(&self) -> u64 {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().filter_map(Weak::upgrade).map(|one| one.bytes_of_base()).sum()
    }

    fn keep(&self, layer: DeviceLayer) -> Arc<DeviceLayer> {
        let layer = Arc::new(layer);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|one| one.strong_count() > 0);
        known.push(Arc::downgrade(&layer));
        layer
    }
}

/// Returns all keys of some deltas, of which the newest entry of each key counts.
fn delta_keys(source: &LayerSource, layers: &[Layer]) -> Vec<TableKeys> {
    let of_table = |table: usize| {
        let mut keys: Vec<FeatureKey> =
            layers.iter().flat_map(|layer| layer.counts(table).map(|(key, _)| key)).collect();
        keys.sort_unstable();
        keys.dedup();
        let newest = |key: FeatureKey| layers.iter().rev().find_map(|of| of.find(table, key));
        let has_row = |key: &FeatureKey| matches!(newest(*key), Some(Found::Row(_)));
        let (with_row, on_host) = keys.into_iter().partition(has_row);
        TableKeys { with_row, on_host }
    };
    (0..source.tables().len()).map(of_table).collect()
}

/// Puts the lists of indices of a version into the device's memory.
fn list(
    device: &Arc<ScoringDevice>,
    source: &LayerSource,
    layers: Vec<Arc<DeviceLayer>>,
) -> Result<VersionLayers> {
    let gpu = device.gpu();
    let mut all: Vec<LayerIndex> = Vec::new();
    let mut tables = Vec::new();
    for table in 0..source.tables().len() {
        let begin = all.len();
        let of = layers.iter().rev().filter_map(|layer| layer.tables.get(table).copied().flatten());
        all.extend(of);
        tables.push((begin * size_of::<LayerIndex>(), (all.len() - begin) as u32));
    }
    let lists = gpu.allocate(size_of_val(&all[..]).max(1))?;
    let made = VersionLayers { device: device.clone(), lists, tables, _layers: layers };
    if !all.is_empty() {
        with_stream(&*gpu, |stream| Ok(gpu.upload(stream, lists, bytemuck::cast_slice(&all))?))?;
    }
    Ok(made)
}

/// Builds the device layer of some layers, which are a base or deltas, from its keys.
fn build(
    device: &Arc<ScoringDevice>,
    source: &LayerSource,
    (layers, is_base): (&[Layer], bool),
    keys: Vec<TableKeys>,
    pace: &mut dyn Throttle,
) -> Result<DeviceLayer> {
    let source = source.of_layers(layers.to_vec());
    let gpu = device.gpu();
    let mut made = DeviceLayer {
        device: device.clone(),
        layers: layers.to_vec(),
        memory: Vec::new(),
        tables: Vec::new(),
        rows: 0,
        is_base,
    };
    let most = keys.iter().map(TableKeys::count).max().unwrap_or(0).min(PIECE_KEYS);
    with_stream(&*gpu, |stream| {
        let scratch = gpu.allocate(PieceAt::new(most).bytes)?;
        let filled = keys.iter().enumerate().try_for_each(|(table, keys)| {
            let layout = &source.tables()[table];
            let places = PieceAt::new(most);
            let source = &source;
            let work = TableWork { gpu: &*gpu, stream, scratch, places, source, table, layout };
            let index = work.build(keys, &mut made.memory, pace)?;
            made.tables.push(index);
            let rows = keys.with_row.len() as u64;
            made.rows += rows;
            device.counts.resident_rows.fetch_add(rows, Ordering::Relaxed);
            device.counts.uploaded_rows.fetch_add(rows, Ordering::Relaxed);
            Ok(())
        });
        gpu.free(scratch)?;
        filled
    })?;
    Ok(made)
}

fn with_stream<T>(gpu: &dyn Gpu, work: impl FnOnce(Stream) -> Result<T>) -> Result<T> {
    let stream = gpu.create_stream()?;
    let done = work(stream);
    gpu.free_stream(stream)?;
    done
}

/// The places of a piece of keys in its memory.
#[derive(Clone, Copy, Debug)]
struct PieceAt {
    values: usize,
    lost: usize,
    bytes: usize,
}

impl PieceAt {
    /// Returns the places for up to `most` keys.
    fn new(most: usize) -> Self {
        Self { values: 8 * most, lost: 12 * most, bytes: 12 * most + 4 }
    }
}

/// The work of building one table of a device layer.
struct TableWork<'a> {
    gpu: &'a dyn Gpu,
    stream: Stream,
    /// The memory of a piece of keys, their values, and the counter of lost keys.
    scratch: Memory,
    places: PieceAt,
    source: &'a LayerSource,
    table: usize,
    layout: &'a TableLayout,
}

impl TableWork<'_> {
    /// Uploads the rows of the keys and fills an index. Returns `None` if there is no key. What is
    /// allocated is added to `memory`.
    fn build(
        &self,
        keys: &TableKeys,
        memory: &mut Vec<Memory>,
        pace: &mut dyn Throttle,
    ) -> Result<Option<LayerIndex>> {
        let count = keys.count();
        if count == 0 {
            return Ok(None);
        }
        let stride = self.layout.stride;
        let slab = self.gpu.allocate((4 * stride * keys.with_row.len()).max(1))?;
        memory.push(slab);
        let mut floats = Vec::new();
        for (piece, keys) in keys.with_row.chunks(PIECE_KEYS).enumerate() {
            floats.resize(keys.len() * stride, 0.0);
            self.source.read_rows(self.table, keys, &mut floats)?;
            let to = slab.part(4 * stride * piece * PIECE_KEYS, 4 * floats.len())?;
            self.gpu.upload(self.stream, to, bytemuck::cast_slice(&floats))?;
            pace.piece();
        }
        let mut buckets = LayerIndex::buckets_for(count);
        for _ in 0..MOST_GROWTHS {
            let places = buckets * LayerIndex::PLACES;
            let whole = self.gpu.allocate(bytes_of_buckets(buckets))?;
            let keys_at = whole.address() + (buckets * LayerIndex::BUCKET) as u64;
            let index = LayerIndex {
                buckets: whole.address(),
                keys: keys_at,
                values: keys_at + (places * size_of::<u64>()) as u64,
                slab: slab.address(),
                bucket_count: buckets as u32,
                stride: stride as u32,
            };
            match self.fill(index, whole, keys, pace) {
                Ok(0) => {
                    memory.push(whole);
                    return Ok(Some(index));
                }
                filled => {
                    self.gpu.free(whole)?;
                    filled?;
                }
            }
            buckets *= 2;
        }
        Err(Error::Refused(format!(
            "the keys of table `{}` do not fit into an index on the device, although it has {} \
             places for {count} keys; serve the version on a processor, and report this defect",
            self.layout.name,
            buckets / 2 * LayerIndex::PLACES
        )))
    }

    /// Inserts all keys. Returns the number of keys that found no place.
    fn fill(
        &self,
        index: LayerIndex,
        whole: Memory,
        keys: &TableKeys,
        pace: &mut dyn Throttle,
    ) -> Result<u32> {
        let (gpu, stream) = (self.gpu, self.stream);
        gpu.fill(stream, whole, 0)?;
        let lost = self.scratch.part(self.places.lost, 4)?;
        gpu.fill(stream, lost, 0)?;
        let rows = (0..).zip(&keys.with_row);
        let on_host = keys.on_host.iter().map(|key| (LayerIndex::ON_HOST, key));
        let mut all = rows.chain(on_host);
        loop {
            let (values, piece): (Vec<u32>, Vec<u64>) =
                all.by_ref().take(PIECE_KEYS).map(|(value, key)| (value, key.0)).unzip();
            if piece.is_empty() {
                break;
            }
            let keys_to = self.scratch.part(0, 8 * piece.len())?;
            let values_to = self.scratch.part(self.places.values, 4 * piece.len())?;
            gpu.upload(stream, keys_to, bytemuck::cast_slice(&piece))?;
            gpu.upload(stream, values_to, bytemuck::cast_slice(&values))?;
            let insert = IndexInsert {
                index,
                keys: keys_to.address(),
                values: values_to.address(),
                lost: lost.address(),
                count: Count::fixed(piece.len() as u32),
            };
            let params = [Param::new(&insert)];
            let shapes = [("keys", piece.len())];
            gpu.launch(stream, &insert.geometry().launch(&INDEX_INSERT, &params, &shapes))?;
            pace.piece();
        }
        let mut count = [0u32];
        gpu.download(stream, bytemuck::cast_slice_mut(&mut count), lost)?;
        Ok(count[0])
    }
}
