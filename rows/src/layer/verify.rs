//! The verification of a layer, which reads every byte of its files.

use zillion_feature::FeatureKey;

use super::open::{Layer, Places, REMEDY};
use super::part::{Found, TableRows, WidthRows};
use super::{LayerFile, LayerManifest, LayerTable, Throttle, entry_of, part_of};
use crate::error::{Error, Result};
use crate::layout::TableLayout;

/// Verifies every byte of a layer: checks the hashes of the files, the order of the keys, and the
/// entries of the directory against the keys.
///
/// # Errors
/// Returns [`Error::Part`] with the first damaged file and the row if a check fails.
pub fn verify_layer(
    places: &(impl Places + ?Sized),
    manifest: &LayerManifest,
    layouts: &[TableLayout],
    throttle: &mut dyn Throttle,
) -> Result<()> {
    for file in manifest.files() {
        verify_file(places, file, throttle)?;
    }
    let layer = Layer::open(places, manifest, layouts)?;
    for (table, rows) in manifest.tables.iter().zip(layer.tables.iter()) {
        let mut tombstones = 0;
        let narrow = table.narrow.iter().flat_map(|narrow| &narrow.parts);
        let full = (0..rows.full.parts.len()).map(|index| (&rows.full, index));
        let all = full.chain((0..rows.narrow.parts.len()).map(|index| (&rows.narrow, index)));
        for ((rows, index), listed) in all.zip(table.parts.iter().chain(narrow)) {
            verify_rows(rows, index).map_err(|reason| Error::Part {
                path: places.path(&listed.file.name()),
                reason: format!("{reason}; {REMEDY}"),
            })?;
            let column = &rows.parts[index].tombstones;
            tombstones += column.iter().map(|&t| u64::from(t)).sum::<u64>();
            throttle.piece();
        }
        verify_narrow(table, rows)
            .map_err(|(file, reason)| Error::Part { path: places.path(&file.name()), reason })?;
        if tombstones != table.tombstones {
            let reason = format!(
                "table `{}` has {tombstones} tombstones, but the manifest lists {}; {REMEDY}",
                table.table, table.tombstones
            );
            return Err(Error::Part { path: places.path(&manifest.directory.name()), reason });
        }
    }
    verify_hot(&layer).map_err(|reason| Error::Part {
        path: places.path(&manifest.hot.first().unwrap_or(&manifest.directory).name()),
        reason: format!("{reason}; {REMEDY}"),
    })
}

/// Checks that each hot key has a row with the listed count.
fn verify_hot(layer: &Layer) -> Result<(), String> {
    for (table, hot) in layer.hot.all() {
        match layer.find(table, hot.key) {
            Some(Found::Row(row)) if row.count == hot.count => {}
            _ => {
                let (key, count) = (hot.key.0, hot.count);
                return Err(format!(
                    "the hot key {key:#018x} of table {table} has no row with {count} pushes"
                ));
            }
        }
    }
    Ok(())
}

fn verify_file(
    places: &(impl Places + ?Sized),
    file: &LayerFile,
    throttle: &mut dyn Throttle,
) -> Result<()> {
    let path = places.path(&file.name());
    let bytes = places.read(&file.name())?;
    let mut hasher = blake3::Hasher::new();
    for piece in bytes.chunks(256 << 10) {
        hasher.update(piece);
        throttle.piece();
    }
    let hash = hasher.finalize().to_hex();
    if hash.as_str() != file.blake3 || bytes.len() as u64 != file.bytes {
        let reason = format!(
            "the file has {} bytes with the BLAKE3 hash {hash}, but {} bytes with another hash were published; {REMEDY}",
            bytes.len(),
            file.bytes
        );
        return Err(Error::Part { path, reason });
    }
    Ok(())
}

/// Checks that no narrow row is a tombstone, and that no key has both a full row and a narrow row.
fn verify_narrow(table: &LayerTable, rows: &TableRows) -> Result<(), (LayerFile, String)> {
    let listed = table.narrow.iter().flat_map(|narrow| &narrow.parts);
    for (part, listed) in rows.narrow.parts.iter().zip(listed) {
        let refuse = |reason: String| Err((listed.file.clone(), format!("{reason}; {REMEDY}")));
        if let Some(row) = part.tombstones.iter().position(|&t| t != 0) {
            return refuse(format!("row {row}: a narrow row is a tombstone"));
        }
        let is_full = |&key: &u64| rows.full.find(FeatureKey(key)).is_some();
        if let Some(row) = part.keys.iter().position(is_full) {
            let key = part.keys[row];
            return refuse(format!(
                "row {row}: key {key:#018x} has a narrow row here and a full row in another part"
            ));
        }
    }
    Ok(())
}

fn verify_rows(rows: &WidthRows, index: usize) -> Result<(), String> {
    let (part, parts) = (&rows.parts[index], rows.parts.len());
    let keys = &part.keys[..];
    if let Some(row) = keys.windows(2).position(|pair| pair[0] >= pair[1]) {
        let key = keys[row + 1];
        return Err(format!(
            "row {}: key {key:#018x} is not greater than the key before it",
            row + 1
        ));
    }
    if let Some(row) = keys.iter().position(|&key| part_of(key, parts) != index) {
        return Err(format!("row {row}: key {:#018x} belongs to another part", keys[row]));
    }
    if let Some(row) = part.tombstones.iter().position(|&t| t > 1) {
        return Err(format!(
            "row {row}: column `tombstone` has {} instead of 0 or 1",
            part.tombstones[row]
        ));
    }
    part.weights.verify(rows.format.width)?;
    for (entry, &start) in part.starts.iter().enumerate() {
        let before = |&key: &u64| entry_of(key, parts, part.bits) < entry;
        if keys.partition_point(before) != start as usize {
            return Err(format!(
                "entry {entry} of the directory does not agree with the keys of the part"
            ));
        }
    }
    Ok(())
}
