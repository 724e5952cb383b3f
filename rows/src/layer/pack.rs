//! The pack of a layer: one file that holds all files of a small layer.
//!
//! A delta of many tables has a file for each table and row width, and a directory. Most of these
//! files are a few kilobytes, and a store asks for each of them by itself. A pack has the same
//! files one after the other, so that a delta is one object. The files keep their format: a reader
//! maps the pack and finds the rows in place.
//!
//! | bytes | contents |
//! |---|---|
//! | from 0 | the files in the order of [`LayerManifest::files`], each at a multiple of 64 |
//! | from the next multiple of 64 | the index: the [`LayerManifest`] as JSON |
//! | 8 before the last 12 | the number of bytes of the index |
//! | 4 before the last 8 | the version of the format, 1 |
//! | the last 8 | the magic `zillionK` |
//!
//! Integers are little-endian. The sizes of the files in the index say where they lie, so the index
//! has no offsets that could disagree with them.
//!
//! # Invariants
//! * The bytes of a pack depend only on the files of the layer.
//! * The files and the index fill the pack without gaps, so that a reader that has checked the sum
//!   of the sizes needs no other check of a range.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use zillion_device::{DeviceError, mmap};

use super::{LayerFile, LayerManifest, PART_BYTES, Places, deserialize_hash};
use crate::error::{Error, Result};

/// The largest number of bytes of the files that are packed. A packer holds the pack in memory, so
/// the limit is that of a part.
pub const MAX_PACKED_BYTES: u64 = PART_BYTES;

/// The multiple at which a file begins. Arrow aligns its buffers to this inside of a file.
const ALIGNMENT: usize = 64;
/// The magic at the end of a pack.
const MAGIC: &[u8; 8] = b"zillionK";
/// The version of the format.
const VERSION: u32 = 1;
/// The number of bytes behind the index.
const TRAILER: usize = 20;

/// The entry of a pack in the manifest of a version. The name of the file is `<blake3>.pack`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerPack {
    /// The BLAKE3 hash of the file, in hexadecimal.
    #[serde(deserialize_with = "deserialize_hash")]
    pub blake3: String,
    /// The size of the file in bytes.
    pub bytes: u64,
    /// The number of keys in all tables together, including tombstones.
    pub rows: u64,
    /// The number of tombstones in all tables together.
    pub tombstones: u64,
}

impl LayerPack {
    /// Returns the name of the file in any store.
    pub fn name(&self) -> String {
        format!("{}.pack", self.blake3)
    }

    /// Returns the hash and the size of the file.
    pub fn file(&self) -> LayerFile {
        LayerFile { blake3: self.blake3.clone(), bytes: self.bytes }
    }
}

/// An opened pack, which gives the files of its layer by their names.
#[derive(Clone, Debug)]
pub struct OpenPack {
    path: PathBuf,
    bytes: Bytes,
    layer: LayerManifest,
    places: BTreeMap<String, Range<usize>>,
}

/// Packs the files of a layer, which are in `folder`. Returns `None` if they are too large, or if
/// several writers have written the layer.
///
/// # Errors
/// Returns an error if a file cannot be read or has another size than the manifest lists.
pub fn pack_layer(folder: &Path, layer: &LayerManifest) -> Result<Option<(LayerPack, Bytes)>> {
    let sum = layer.files().fold(0u64, |sum, file| sum.saturating_add(file.bytes));
    if sum > MAX_PACKED_BYTES || !layer.more_directories.is_empty() {
        return Ok(None);
    }
    let mut pack = Vec::new();
    for file in layer.files() {
        let path = folder.join(file.name());
        let bytes = mmap::map(&path)?;
        if bytes.len() as u64 != file.bytes {
            let (found, wanted) = (bytes.len(), file.bytes);
            let reason = format!("the file has {found} bytes instead of {wanted}; write it again");
            return Err(Error::Part { path, reason });
        }
        pack.resize(pack.len().next_multiple_of(ALIGNMENT), 0);
        pack.extend_from_slice(&bytes);
    }
    pack.resize(pack.len().next_multiple_of(ALIGNMENT), 0);
    let index = serde_json::to_vec(layer).map_err(|error| {
        Error::misuse(format!(
            "the index of a pack cannot be written ({error}); report this defect"
        ))
    })?;
    pack.extend_from_slice(&index);
    pack.extend_from_slice(&(index.len() as u64).to_le_bytes());
    pack.extend_from_slice(&VERSION.to_le_bytes());
    pack.extend_from_slice(MAGIC);
    let entry = LayerPack {
        blake3: blake3::hash(&pack).to_hex().to_string(),
        bytes: pack.len() as u64,
        rows: layer.rows(),
        tombstones: layer.tombstones(),
    };
    Ok(Some((entry, pack.into())))
}

impl OpenPack {
    /// Opens the pack with these bytes. `path` is the place of the pack for errors. The hash of the
    /// bytes is not checked, as with other files of a layer.
    ///
    /// # Errors
    /// Returns [`Error::Part`] if the bytes are not the pack that `entry` describes.
    pub fn open(path: PathBuf, entry: &LayerPack, bytes: Bytes) -> Result<Self> {
        let refuse = |reason: String| Error::Part { path: path.clone(), reason };
        if bytes.len() as u64 != entry.bytes {
            return Err(refuse(format!(
                "the pack has {} bytes, but the manifest lists {}; fetch the layer again, or \
                 publish a new base",
                bytes.len(),
                entry.bytes
            )));
        }
        let (layer, places) = read_index(&bytes).map_err(|reason| {
            refuse(format!("{reason}; fetch the layer again, or publish a new base"))
        })?;
        if (layer.rows(), layer.tombstones()) != (entry.rows, entry.tombstones) {
            return Err(refuse(format!(
                "the pack has {} keys and {} tombstones, but the manifest lists {} and {}; publish \
                 a new base",
                layer.rows(),
                layer.tombstones(),
                entry.rows,
                entry.tombstones
            )));
        }
        Ok(Self { path, bytes, layer, places })
    }

    /// Returns the manifest of the layer.
    pub fn layer(&self) -> &LayerManifest {
        &self.layer
    }
}

impl Places for OpenPack {
    fn path(&self, _: &str) -> PathBuf {
        self.path.clone()
    }

    fn read(&self, name: &str) -> Result<Bytes, DeviceError> {
        // A layer asks only for the files of its manifest, each of which has a place.
        let place = self.places.get(name).cloned().unwrap_or(0..0);
        Ok(self.bytes.slice(place))
    }
}

/// Reads the index of a pack, and finds the place of each file.
fn read_index(pack: &[u8]) -> Result<(LayerManifest, BTreeMap<String, Range<usize>>), String> {
    let end = pack.len().checked_sub(TRAILER).ok_or("the file is too short for a pack")?;
    let (body, trailer) = pack.split_at(end);
    let (length, rest) = trailer.split_at(8);
    let (version, magic) = rest.split_at(4);
    if magic != MAGIC {
        return Err("the file does not end like a pack".to_owned());
    }
    let version = version.try_into().map(u32::from_le_bytes).unwrap_or_default();
    if version != VERSION {
        return Err(format!(
            "the pack has format {version}, but this program reads format {VERSION}"
        ));
    }
    let length = length.try_into().map(u64::from_le_bytes).unwrap_or_default();
    let start = usize::try_from(length).ok().and_then(|length| body.len().checked_sub(length));
    let start = start.ok_or("the index is longer than the pack")?;
    let layer: LayerManifest = serde_json::from_slice(&body[start..])
        .map_err(|error| format!("the index of the pack cannot be parsed: {error}"))?;
    let mut places = BTreeMap::new();
    let mut at = 0usize;
    for file in layer.files() {
        let begin = at.checked_next_multiple_of(ALIGNMENT);
        let size = usize::try_from(file.bytes).ok();
        let end = begin.zip(size).and_then(|(begin, size)| begin.checked_add(size));
        let (Some(begin), Some(end)) = (begin, end.filter(|&end| end <= start)) else {
            return Err("the files of the index are larger than the pack".to_owned());
        };
        places.insert(file.name(), begin..end);
        at = end;
    }
    if at.checked_next_multiple_of(ALIGNMENT) != Some(start) {
        return Err("the files of the index do not fill the pack".to_owned());
    }
    let has_sums = layer.tables.iter().try_fold((0u64, 0u64), |(rows, gone), table| {
        Some((rows.checked_add(table.rows)?, gone.checked_add(table.tombstones)?))
    });
    if has_sums.is_none() {
        return Err("the numbers of rows in the index are out of range".to_owned());
    }
    Ok((layer, places))
}

#[cfg(test)]
mod tests {
    use zillion_device::Files;
    use zillion_feature::FeatureKey;

    use super::*;
    use crate::layer::{Layer, LayerWriter, Unthrottled, verify_layer};
    use crate::{InitializerSpec, OptimizerSpec, SegmentSpec, TableLayout, TableSpec};

    fn layouts() -> Vec<TableLayout> {
        let table = |name: &str, dim: usize| {
            let initializer = InitializerSpec::Constant { value: 0.5 };
            let segment = SegmentSpec::new("s", dim, initializer, OptimizerSpec::Sgd { lr: 0.1 });
            TableSpec::new(name, vec![segment]).layout()
        };
        vec![table("a", 3), table("empty", 2), table("b", 5)]
    }

    fn write(folder: &Path) -> LayerManifest {
        let (files, mut pace) = (Files::new(), Unthrottled);
        let mut writer = LayerWriter::new(&files, folder, &mut pace);
        for (layout, rows) in layouts().iter().zip([40u64, 0, 7]) {
            writer.table_of_rows(layout, rows, 0).unwrap();
            for row in 0..rows {
                let weights = vec![row as f32; layout.width()];
                let weights = Some(&weights[..]).filter(|_| row % 5 != 4);
                writer.push(FeatureKey(row << 50), weights, 1).unwrap();
            }
        }
        writer.finish().unwrap()
    }

    #[test]
    fn a_pack_has_the_rows_of_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = write(folder.path());
        let (entry, bytes) = pack_layer(folder.path(), &manifest).unwrap().unwrap();
        assert_eq!((entry.rows, entry.tombstones), (47, 9));
        assert_eq!(entry.blake3, blake3::hash(&bytes).to_hex().as_str());
        let path = folder.path().join(entry.name());
        std::fs::write(&path, &bytes).unwrap();
        let mapped = mmap::map(&path).unwrap();
        let pack = OpenPack::open(path, &entry, mapped).unwrap();
        assert_eq!(*pack.layer(), manifest);
        verify_layer(&pack, pack.layer(), &layouts(), &mut Unthrottled).unwrap();
        let packed = Layer::open(&pack, pack.layer(), &layouts()).unwrap();
        let apart = Layer::open(folder.path(), &manifest, &layouts()).unwrap();
        for table in 0..3 {
            assert!(packed.iter(table).eq(apart.iter(table)), "table {table}");
        }
        assert_eq!(packed.rows(0), 40);
    }

    #[test]
    fn a_damaged_pack_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = write(folder.path());
        let (entry, bytes) = pack_layer(folder.path(), &manifest).unwrap().unwrap();
        let open = |entry: &LayerPack, bytes: &[u8]| {
            let entry = LayerPack { bytes: bytes.len() as u64, ..entry.clone() };
            OpenPack::open(PathBuf::from("p"), &entry, Bytes::copy_from_slice(bytes))
                .map_err(|error| error.to_string())
        };
        assert!(open(&entry, &bytes).is_ok());
        let tail = |at: usize, byte: u8| {
            let mut changed = bytes.to_vec();
            let at = changed.len() - at;
            changed[at] = byte;
            changed
        };
        for (changed, words) in [
            (tail(1, b'X'), "does not end like a pack"),
            (tail(12, 9), "format 9"),
            (tail(13, 0xff), "longer than the pack"),
            (tail(20, 0), "cannot be parsed"),
            (bytes[64..].to_vec(), "larger than the pack"),
            ([&[0; 64], &bytes[..]].concat(), "do not fill the pack"),
            (bytes[..7].to_vec(), "too short"),
        ] {
            let said = open(&entry, &changed).unwrap_err();
            assert!(said.contains(words), "{words}: {said}");
        }
        let said = open(&LayerPack { rows: 1, ..entry.clone() }, &bytes).unwrap_err();
        assert!(said.contains("47 keys"), "{said}");
        let cut = OpenPack::open(PathBuf::from("p"), &entry, bytes.slice(1..)).unwrap_err();
        assert!(cut.to_string().contains("the manifest lists"), "{cut}");
    }
}
