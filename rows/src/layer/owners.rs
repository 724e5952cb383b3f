//! The layers of several writers, each of which owns some slots of every table: the common cut of a
//! table into parts, and the merging of the manifests.
//!
//! # Invariants
//! * A bound between two owners is a bound between two parts. So every part has one writer, and a
//!   reader finds the part of a key as in a layer of one writer.
//! * The part of a key, and the bytes of the part, depend only on the rows and on the cut.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use zillion_feature::SLOTS;

use super::{LayerManifest, LayerPart, LayerTable, NarrowRows, part_count};
use crate::error::{Error, Result};
use crate::layout::TableLayout;

/// The numbers of parts into which several writers cut one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerCut {
    /// The number of parts of full rows and tombstones.
    pub full: usize,
    /// The number of parts of narrow rows.
    pub narrow: usize,
}

impl LayerCut {
    /// Returns the cut of a table with `full` full rows and `narrow` narrow rows on all writers
    /// together. `bounds` are the first slots of the owners and the slots after their last ones.
    pub fn of_rows(
        layout: &TableLayout,
        (full, narrow): (u64, u64),
        bounds: impl Iterator<Item = usize>,
    ) -> Self {
        // Parts of `SLOTS / parts` slots are small enough if this number divides every bound.
        let fine = bounds.map(|bound| bound.trailing_zeros().min(SLOTS.trailing_zeros())).min();
        let needed = SLOTS >> fine.unwrap_or(SLOTS.trailing_zeros());
        let parts = |rows: u64, width: usize| match part_count(rows, width) {
            0 => 0,
            parts => parts.max(needed),
        };
        Self { full: parts(full, layout.width()), narrow: parts(narrow, layout.narrow_width()) }
    }

    /// Returns the parts of an owner of `slots`, if the table is cut into `parts` parts.
    pub(super) fn own(
        self,
        table: &str,
        parts: usize,
        slots: &Range<usize>,
    ) -> Result<Range<usize>> {
        if parts == 0 || slots.is_empty() {
            return Ok(0..0);
        }
        let is_possible = parts.is_power_of_two() && parts <= SLOTS;
        let each = if is_possible { SLOTS / parts } else { SLOTS };
        let is_bound = |slot: usize| slot.is_multiple_of(each) && slot <= SLOTS;
        if !is_possible || !is_bound(slots.start) || !is_bound(slots.end) {
            let reason = format!(
                "the slots {}..{} are not whole parts of a cut into {parts} parts; cut at the \
                 bounds of all owners",
                slots.start, slots.end
            );
            return Err(Error::mismatch(table, reason));
        }
        Ok(slots.start / each..slots.end / each)
    }
}

impl LayerManifest {
    /// Merges the manifests of several writers, which are in the order of their slots. All have cut
    /// their tables by the same [`LayerCut`]s. Every writer has a directory of its own.
    ///
    /// # Errors
    /// Returns an error if there is no manifest, or if the manifests have different tables.
    pub fn merge(owners: &[Self]) -> Result<Self> {
        let Some((first, others)) = owners.split_first() else {
            return Err(Error::misuse("a layer has no writer; give the manifest of each writer"));
        };
        let mut merged = first.clone();
        for (directory, other) in (1..).zip(others) {
            if other.tables.len() != merged.tables.len() {
                let reason = "the writers of a layer have different numbers of tables; use writers \
                              of the same job";
                return Err(Error::misuse(reason));
            }
            for (table, more) in merged.tables.iter_mut().zip(&other.tables) {
                append(table, more, directory)?;
            }
            merged.more_directories.push(other.directory.clone());
            merged.hot.extend(other.hot.iter().cloned());
        }
        Ok(merged)
    }
}

/// Appends the parts of another writer to the entry of a table.
fn append(table: &mut LayerTable, more: &LayerTable, directory: u32) -> Result<()> {
    let segments = |narrow: &NarrowRows| narrow.segments.clone();
    if table.table != more.table
        || table.row_type != more.row_type
        || table.segments != more.segments
        || table.narrow.as_ref().map(segments) != more.narrow.as_ref().map(segments)
    {
        let reason = format!(
            "another writer wrote table `{}` with other segments or another number type in its \
             place; use writers of the \
             same job",
            more.table
        );
        return Err(Error::mismatch(&table.table, reason));
    }
    let placed = |part: &LayerPart| LayerPart { directory, ..part.clone() };
    table.rows += more.rows;
    table.tombstones += more.tombstones;
    table.clamped = table.clamped.saturating_add(more.clamped);
    table.parts.extend(more.parts.iter().map(placed));
    if let (Some(narrow), Some(more)) = (&mut table.narrow, &more.narrow) {
        narrow.rows += more.rows;
        narrow.parts.extend(more.parts.iter().map(placed));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use zillion_device::Files;
    use zillion_feature::FeatureKey;
    use zillion_feature::random::mix64;

    use super::*;
    use crate::RowType;
    use crate::layer::{Layer, LayerWriter, Unthrottled, verify_layer};
    use crate::layout::SegmentLayout;

    fn layouts() -> Vec<TableLayout> {
        let segments = || vec![SegmentLayout { name: "vector".to_owned(), offset: 0, dim: 3 }];
        let table = |name: &str| TableLayout {
            name: name.to_owned(),
            segments: segments(),
            narrow: None,
            published: RowType::F32,
            hot: None,
            stride: 4,
        };
        vec![table("ids"), table("empty")]
    }

    /// Writes the rows of the keys in `slots`.
    fn write(
        keys: &[u64],
        slots: &Range<usize>,
        cut: LayerCut,
        folder: &std::path::Path,
    ) -> LayerManifest {
        let (files, pace, layouts) = (Files::new(), &mut Unthrottled, layouts());
        let mut writer = LayerWriter::new(&files, folder, pace);
        writer.owned_table(&layouts[0], cut, slots).unwrap();
        for &key in keys.iter().filter(|key| slots.contains(&FeatureKey(**key).slot())) {
            let weights = [key as f32, 1.0, 2.0];
            writer.push(FeatureKey(key), Some(&weights), 1).unwrap();
        }
        writer.owned_table(&layouts[1], LayerCut { full: 0, narrow: 0 }, slots).unwrap();
        writer.finish().unwrap()
    }

    #[test]
    fn layers_of_owners_are_one_layer() {
        let folder = tempfile::tempdir().unwrap();
        let layouts = layouts();
        let mut keys: Vec<u64> = (0..3000).map(mix64).collect();
        keys.sort_unstable();
        for bounds in [vec![0, SLOTS], vec![0, 2048, SLOTS], vec![0, 64, 64, 1344, SLOTS]] {
            let cut = LayerCut::of_rows(&layouts[0], (3000, 0), bounds.iter().copied());
            let owners: Vec<LayerManifest> = bounds
                .windows(2)
                .map(|pair| write(&keys, &(pair[0]..pair[1]), cut, folder.path()))
                .collect();
            let merged = LayerManifest::merge(&owners).unwrap();
            assert_eq!((merged.rows(), merged.tables[0].parts.len()), (3000, cut.full));
            assert_eq!(merged.directories().count(), bounds.len() - 1);
            verify_layer(folder.path(), &merged, &layouts, &mut Unthrottled).unwrap();
            let layer = Layer::open(folder.path(), &merged, &layouts).unwrap();
            assert!(layer.iter(0).map(|(key, _)| key.0).eq(keys.iter().copied()));
            assert!(keys.iter().all(|&key| layer.find(0, FeatureKey(key)).is_some()));
            assert!(layer.find(0, FeatureKey(keys[0] + 1)).is_none());
            // The parts of one writer with the same cut have the same bytes.
            let alone = write(&keys, &(0..SLOTS), cut, folder.path());
            let files = |manifest: &LayerManifest| {
                let parts = manifest.tables.iter().flat_map(|table| table.parts.iter());
                parts.map(|part| part.file.clone()).collect::<Vec<_>>()
            };
            assert_eq!(files(&merged), files(&alone));
            // A manifest with several directories is read back, and one with one directory does
            // not mention the others.
            let value = toml::Value::try_from(&merged).unwrap();
            assert_eq!(value.get("more_directories").is_some(), bounds.len() > 2);
            assert_eq!(value.try_into::<LayerManifest>().unwrap(), merged);
            // A directory that is not there is refused.
            let mut wrong = merged.clone();
            wrong.tables[0].parts[0].directory = 9;
            let error = Layer::open(folder.path(), &wrong, &layouts).unwrap_err().to_string();
            assert!(error.contains("directory 9"), "{error}");
        }
    }

    #[test]
    fn a_cut_has_the_bounds_of_all_owners() {
        let layout = &layouts()[0];
        let full = |rows, bounds: &[usize]| {
            LayerCut::of_rows(layout, (rows, 0), bounds.iter().copied()).full
        };
        assert_eq!(full(0, &[0, 64, SLOTS]), 0);
        assert_eq!(full(9, &[0, SLOTS]), 1);
        assert_eq!(full(9, &[0, 2048, SLOTS]), 2);
        assert_eq!(full(9, &[0, 1344, 2752, SLOTS]), 64);
        assert_eq!(full(1 << 24, &[0, 2048, SLOTS]), 16);
        let cut = LayerCut { full: 2, narrow: 0 };
        for slots in [0..64, 64..2048, 0..SLOTS + 1] {
            let error = cut.own("ids", 2, &slots).unwrap_err().to_string();
            assert!(error.contains("`ids`") && error.contains("whole parts"), "{error}");
        }
        assert!(cut.own("ids", 3, &(0..SLOTS)).is_err());
        assert_eq!(cut.own("ids", 2, &(2048..SLOTS)).unwrap(), 1..2);
    }

    #[test]
    fn layers_of_different_tables_are_not_merged() {
        let folder = tempfile::tempdir().unwrap();
        let cut = LayerCut { full: 2, narrow: 0 };
        let owners = [0..2048, 2048..SLOTS].map(|slots| write(&[1], &slots, cut, folder.path()));
        let mut other = owners.clone();
        other[1].tables[0].table = "users".to_owned();
        let error = LayerManifest::merge(&other).unwrap_err().to_string();
        assert!(error.contains("`ids`") && error.contains("`users`"), "{error}");
        other[1].tables.clear();
        assert!(LayerManifest::merge(&other).is_err());
        assert!(LayerManifest::merge(&[]).is_err());
    }
}
