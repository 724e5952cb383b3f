//! The targets of the crate `rows`: the parts and the directory of a layer, and the files of a
//! checkpoint.

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use tempfile::TempDir;
use zillion_device::{Files, Workers};
use zillion_feature::{FeatureKey, SLOTS, Use};
use zillion_rows::filter::BLOCK_WORDS;
use zillion_rows::layer::{
    Layer, LayerFile, LayerManifest, LayerPack, LayerSource, LayerTable, LayerWriter, OpenPack,
    Places as LayerPlaces, Unthrottled, pack_layer, verify_layer,
};
use zillion_rows::part::{
    ALL_SLOTS, Need, PartInfo, PartRows, Place, cut, listed_parts, open_candidates, open_filters,
    open_rows, write_candidates, write_filter, write_rows,
};
use zillion_rows::row::{Meta, RowWeights, StoredRow};
use zillion_rows::{
    Admission, Candidate, Growth, InitializerSpec, ListedParts, OptimizerSpec, RowShape,
    SegmentSpec, TableParts, TableSpec,
};

use crate::harness::Target;

/// All targets of this file.
pub const ALL: [&Target; 8] = [
    &LAYER_PARTS,
    &SPARSE_PARTS,
    &LAYER_DIRECTORIES,
    &HOT_KEYS,
    &LAYER_PACKS,
    &TABLE_PARTS,
    &CANDIDATES,
    &FILTERS,
];

/// The reader of a part of a layer. The directory of the layer is valid.
pub const LAYER_PARTS: Target = Target {
    name: "layer_parts",
    read: |bytes| {
        let sample = &*SAMPLE_LAYER;
        let mut manifest = sample.manifest.clone();
        manifest.tables[0].parts[0].file = file_of(bytes);
        read_layer(&manifest, [bytes, &sample.narrow, &sample.directory])
    },
    seeds: || vec![SAMPLE_LAYER.part.clone()],
};

/// The reader of a part of a layer that leaves out zeros. The directory of the layer is valid.
pub const SPARSE_PARTS: Target = Target {
    name: "sparse_parts",
    read: |bytes| {
        let sample = &*SPARSE_LAYER;
        let mut manifest = sample.manifest.clone();
        manifest.tables[0].parts[0].file = file_of(bytes);
        read_layer(&manifest, [bytes, &sample.narrow, &sample.directory])
    },
    seeds: || vec![SPARSE_LAYER.part.clone()],
};

/// The reader of the directory of a layer. The parts of the layer are valid.
pub const LAYER_DIRECTORIES: Target = Target {
    name: "layer_directories",
    read: |bytes| {
        let sample = &*SAMPLE_LAYER;
        let manifest = LayerManifest { directory: file_of(bytes), ..sample.manifest.clone() };
        read_layer(&manifest, [&sample.part, &sample.narrow, bytes])
    },
    seeds: || vec![SAMPLE_LAYER.directory.clone()],
};

/// The reader of the hot keys of a layer. The other files of the layer are valid.
pub const HOT_KEYS: Target = Target {
    name: "hot_keys",
    read: |bytes| {
        let sample = &*HOT_LAYER;
        let manifest = LayerManifest { hot: vec![file_of(bytes)], ..sample.manifest.clone() };
        read_layer(&manifest, [&sample.part, &sample.narrow, &sample.directory, bytes])
    },
    seeds: || vec![HOT_LAYER.hot.clone()],
};

/// The reader of the pack of a layer. The writer of a bucket can let the manifest of a version fit
/// any pack.
pub const LAYER_PACKS: Target = Target {
    name: "layer_packs",
    read: |bytes| {
        let index = index_of(bytes);
        let sum = |of: fn(&LayerTable) -> u64| {
            let tables = index.iter().flat_map(|layer| &layer.tables);
            tables.fold(0u64, |sum, table| sum.wrapping_add(of(table)))
        };
        let entry = LayerPack {
            blake3: file_of(bytes).blake3,
            bytes: bytes.len() as u64,
            rows: sum(|table| table.rows),
            tombstones: sum(|table| table.tombstones),
        };
        let pack = OpenPack::open("pack".into(), &entry, Bytes::copy_from_slice(bytes));
        let Ok(pack) = pack else { return false };
        read_layer_at(&pack, pack.layer())
    },
    seeds: || {
        let pack = |sample: &SampleLayer| {
            let folder = folder();
            let files = [&sample.part, &sample.narrow, &sample.directory];
            for (file, bytes) in sample.manifest.files().zip(files) {
                fs::write(folder.path().join(file.name()), bytes).expect("a file can be written");
            }
            let packed = pack_layer(folder.path(), &sample.manifest).expect("the files are there");
            packed.expect("the sample is small").1.to_vec()
        };
        vec![pack(&SAMPLE_LAYER), pack(&SPARSE_LAYER)]
    },
};

/// The reader of a part of a checkpoint.
pub const TABLE_PARTS: Target = Target {
    name: "table_parts",
    read: |bytes| {
        let folder = folder();
        let shape = shape();
        let part = place(folder.path(), &shape, "part", bytes);
        let listed = TableParts { parts: vec![part], ..listed(KEYS.len()) };
        let shapes = [&shape];
        let Ok(tables) = listed_parts(&shapes, std::slice::from_ref(&listed)) else { return false };
        let all = [ALL_SLOTS];
        let opened = open_rows(&workers(), folder.path(), &shapes, &tables, &all, Need::State);
        let Ok(opened) = opened else { return false };
        for part in opened.iter().flatten() {
            for row in part.rows_in(&(0..SLOTS)) {
                let stored = part.stored(row);
                let _ = (stored.weights.to_floats(), stored.meta, stored.used);
                assert!(part.find(part.key(row)).is_some(), "every row is found by its key");
            }
        }
        true
    },
    seeds: || {
        let (folder, shape) = (folder(), shape());
        let mut rows = PartRows::with_capacity(KEYS.len(), &shape);
        let state = vec![0.5; shape.state_width];
        for (key, count) in KEYS.into_iter().zip(1..) {
            let meta = Meta { count, last_step: 7, dirty_epoch: 1 };
            let weights = RowWeights::F32(&[1.0, 2.0, 3.0, 4.0, 5.0]);
            let row =
                StoredRow { weights, state: &state, meta, used: Use::default(), is_narrow: false };
            rows.push(FeatureKey(key), row);
        }
        fs::create_dir_all(folder.path().join("tables/a")).expect("a folder can be made");
        let info = write_rows(&Files::new(), folder.path(), &shape, whole(), (rows, false));
        vec![written(folder.path(), &info.expect("a part can be written").0)]
    },
};

/// The reader of the keys of a checkpoint that wait for admission.
pub const CANDIDATES: Target = Target {
    name: "candidates",
    read: |bytes| {
        let (folder, shape) = (folder(), shape());
        let part = place(folder.path(), &shape, "candidates", bytes);
        let candidates = ListedParts { rows: KEYS.len() as u64, parts: vec![part] };
        let listed = TableParts { candidates: Some(candidates), ..listed(0) };
        let all = [ALL_SLOTS];
        let opened = open_candidates(&workers(), folder.path(), &[&shape], &[&listed], &all);
        let Ok(opened) = opened else { return false };
        let all = opened.iter().flatten();
        all.for_each(|stored| assert_eq!(stored.in_slots(&(0..SLOTS)).count(), KEYS.len()));
        true
    },
    seeds: || {
        let (folder, shape) = (folder(), shape());
        fs::create_dir_all(folder.path().join("tables/a")).expect("a folder can be made");
        let one = |(key, count)| (FeatureKey(key), Candidate { count, last_step: 9 });
        let all = KEYS.into_iter().zip(1..).map(one);
        let info = write_candidates(&Files::new(), folder.path(), &shape, whole(), all);
        vec![written(folder.path(), &info.expect("a part can be written").0)]
    },
};

/// The reader of the filter in which a checkpoint counts waiting keys.
pub const FILTERS: Target = Target {
    name: "filters",
    read: |bytes| {
        let (folder, shape) = (folder(), filtered_shape());
        let part = place(folder.path(), &shape, "filter", bytes);
        let filter = ListedParts { rows: 3, parts: vec![part] };
        let listed = TableParts { filter: Some(filter), ..listed(0) };
        let all = [ALL_SLOTS];
        let opened = open_filters(&workers(), folder.path(), &[&shape], &[&listed], &all);
        let Ok(opened) = opened else { return false };
        let all = opened.iter().flatten();
        all.for_each(|stored| assert_eq!(stored.in_slots(&(0..SLOTS)).count(), 3));
        true
    },
    seeds: || {
        let (folder, shape) = (folder(), filtered_shape());
        fs::create_dir_all(folder.path().join("tables/a")).expect("a folder can be made");
        let filter = shape.filter.as_ref().expect("the table has a filter");
        let blocks = [0, 5, SLOTS - 1].map(|slot| (slot, 0, [0x11; BLOCK_WORDS]));
        let blocks = blocks.into_iter();
        let shape = (&shape, filter);
        let info = write_filter(&Files::new(), folder.path(), shape, whole(), blocks);
        vec![written(folder.path(), &info.expect("a part can be written").0)]
    },
};

/// The keys of the samples. Some of them share an entry of the directory.
const KEYS: [u64; 9] = [0, 1, 2, 3 << 40, 1 << 62, (1 << 62) + 1, 1 << 63, u64::MAX - 9, u64::MAX];

/// A valid layer: its manifest and the bytes of its files.
struct SampleLayer {
    manifest: LayerManifest,
    part: Vec<u8>,
    narrow: Vec<u8>,
    directory: Vec<u8>,
    /// The file with the hot keys; empty if the layer lists none.
    hot: Vec<u8>,
}

static SAMPLE_LAYER: LazyLock<SampleLayer> = LazyLock::new(|| sample_of([1.0, 2.0, 3.0, 4.0], 0));

/// A layer that lists hot keys.
static HOT_LAYER: LazyLock<SampleLayer> = LazyLock::new(|| sample_of([1.0, 2.0, 3.0, 4.0], 5));

/// A layer whose parts leave out zeros.
static SPARSE_LAYER: LazyLock<SampleLayer> = LazyLock::new(|| {
    let sample = sample_of([0.0, 0.0, 0.0, 4.0], 0);
    assert!(sample.manifest.sparsity().is_some(), "the parts leave out zeros");
    sample
});

/// Returns a layer whose rows end with the given weights, and which lists some hot keys.
fn sample_of(last: [f32; 4], hot_keys: u32) -> SampleLayer {
    let (folder, files, mut throttle) = (folder(), Files::new(), Unthrottled);
    let mut writer = LayerWriter::new(&files, folder.path(), &mut throttle);
    let layout = TableSpec { hot_keys, ..spec() }.layout();
    let written = writer.table_of_rows(&layout, 6, 3).and_then(|()| {
        for (at, key) in KEYS.into_iter().enumerate() {
            let weights = [at as f32, last[0], last[1], last[2], last[3]];
            // Some keys have narrow rows, and one key is removed.
            let row = match at % 3 {
                0 => Some(&weights[..3]),
                _ => Some(&weights[..]).filter(|_| at != 5),
            };
            match row {
                Some(row) => writer.push_used(FeatureKey(key), row, at as u32, 90 - at as u32)?,
                None => writer.push(FeatureKey(key), None, at as u32)?,
            }
        }
        writer.finish()
    });
    let manifest = written.expect("the sample can be written");
    let bytes = |file: &LayerFile| fs::read(folder.path().join(file.name())).expect("it exists");
    let table = &manifest.tables[0];
    let narrow = table.narrow.as_ref().expect("the sample has narrow rows");
    SampleLayer {
        part: bytes(&table.parts[0].file),
        narrow: bytes(&narrow.parts[0].file),
        directory: bytes(&manifest.directory),
        hot: manifest.hot.first().map(bytes).unwrap_or_default(),
        manifest: manifest.clone(),
    }
}

/// Returns the index of a pack, if it can be parsed.
fn index_of(pack: &[u8]) -> Option<LayerManifest> {
    let end = pack.len().checked_sub(20)?;
    let length = u64::from_le_bytes(pack.get(end..end + 8)?.try_into().ok()?);
    let start = end.checked_sub(usize::try_from(length).ok()?)?;
    serde_json::from_slice(&pack[start..end]).ok()
}

/// Opens a layer with a part of full rows, a part of narrow rows, a directory and perhaps hot keys.
/// Verifies the layer and reads all its rows. Returns whether the layer is valid.
fn read_layer<const FILES: usize>(manifest: &LayerManifest, files: [&[u8]; FILES]) -> bool {
    let folder = folder();
    for (file, bytes) in manifest.files().zip(files) {
        fs::write(folder.path().join(file.name()), bytes).expect("a file can be written");
    }
    read_layer_at(folder.path(), manifest)
}

/// Opens, verifies and reads a layer whose files are at `places`.
fn read_layer_at(places: &(impl LayerPlaces + ?Sized), manifest: &LayerManifest) -> bool {
    let layouts = [spec().layout()];
    let Ok(layer) = Layer::open(places, manifest, &layouts) else { return false };
    let is_valid = verify_layer(places, manifest, &layouts, &mut Unthrottled).is_ok();
    // A server that has verified the hashes reads the rows without another check.
    for key in KEYS.iter().flat_map(|&key| [key, key ^ 1, key.swap_bytes()]) {
        let _ = layer.find(0, FeatureKey(key));
    }
    if let Some(list) = layer.hot(0) {
        assert!(list.keys().len() <= KEYS.len(), "a layer lists no more keys than it has");
        for &hot in list.keys() {
            assert!(list.decayed_count(hot) <= hot.count, "a decayed count is not larger");
        }
    }
    for (key, _) in layer.iter(0).filter(|_| is_valid) {
        assert!(layer.find(0, key).is_some(), "key {} of a valid layer is lost", key.0);
    }
    let workers = Arc::new(workers());
    let source = LayerSource::new(&[spec()], vec![layer.clone(), layer], workers);
    let source = source.expect("two layers are allowed");
    let width = |(_, row): (_, zillion_rows::layer::WholeRow<'_>)| row.weights.len();
    assert!(source.whole_rows_of(0).map(width).all(|width| width == 5), "rows have all floats");
    is_valid
}

/// Returns the manifest entry for a file with these bytes.
fn file_of(bytes: &[u8]) -> LayerFile {
    LayerFile { blake3: blake3::hash(bytes).to_hex().to_string(), bytes: bytes.len() as u64 }
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}

fn workers() -> Workers {
    Workers::new(NonZeroUsize::MIN).expect("one thread needs no start")
}

fn spec() -> TableSpec {
    let segment = |name: &str, dim| {
        let initializer = InitializerSpec::Normal { mean: 0.0, std: 0.1 };
        SegmentSpec::new(name, dim, initializer, OptimizerSpec::Sgd { lr: 0.1 })
    };
    TableSpec {
        grow: Some(Growth { at: 3, from: Some(2) }),
        ..TableSpec::new("a", vec![segment("factors", 4), segment("linear", 1)])
    }
}

fn shape() -> RowShape {
    let spec = TableSpec { admission: Admission::Count { at_least: 100 }, ..spec() };
    RowShape::new(spec).expect("the sample is a valid table")
}

fn filtered_shape() -> RowShape {
    let admission = Admission::Bloom { at_least: 5, keys: 1000, error: 0.01 };
    RowShape::new(TableSpec { admission, ..spec() }).expect("the sample is a valid table")
}

/// Returns the place of a file that has all slots of a table.
fn whole() -> Place {
    cut(&ALL_SLOTS, &[0; SLOTS], 1)[0]
}

/// Returns the manifest entry of a table with `rows` rows and no files.
fn listed(rows: usize) -> TableParts {
    TableParts {
        table: "a".to_owned(),
        rows: rows as u64,
        dirty_epoch: 1,
        parts: Vec::new(),
        narrow: None,
        candidates: None,
        filter: None,
        changes: None,
        digest: None,
    }
}

/// Writes a file of a checkpoint, and returns its entry with the hash of exactly these bytes.
fn place(folder: &Path, shape: &RowShape, kind: &str, bytes: &[u8]) -> PartInfo {
    let file = format!("tables/{}/{kind}-00000.arrow", shape.name());
    fs::create_dir_all(folder.join("tables").join(shape.name())).expect("a folder can be made");
    fs::write(folder.join(&file), bytes).expect("a file can be written");
    let rows = if kind == "filter" { 3 } else { KEYS.len() as u64 };
    let LayerFile { blake3, bytes } = file_of(bytes);
    PartInfo { file, rows, bytes, blake3, slots: None }
}

/// Returns the bytes of a file that a checkpoint entry names.
fn written(folder: &Path, info: &PartInfo) -> Vec<u8> {
    fs::read(folder.join(&info.file)).expect("the file was written")
}
