//! The opening of a layer of a version. It reads the directory and the footers of the files, and
//! does not read the rows.
//!
//! Files are hashed once, when they arrive. Opening a layer maps its files and finds their columns,
//! which takes the same time for ten rows and for ten million rows. A verification reads every byte
//! of the files (see [`verify_layer`](super::verify_layer)).

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_buffer::{Buffer, ScalarBuffer};
use arrow_schema::Field;
use bytes::Bytes;
use zillion_device::{DeviceError, machine, mmap};

use super::hot::{HotKeys, HotTable};
use super::part::{Found, PartColumns, TableRows, WidthRows};
use super::records::Records;
use super::schemas::{directory_fields, part_fields, part_label};
use super::sparse::PartWeights;
use super::weights::WeightFormat;
use super::{FORMAT, LayerFile, LayerManifest, LayerPart, LayerTable, Throttle, part_format};
use crate::arrow_file::ArrowFile;
use crate::error::{Error, Result};
use crate::layout::TableLayout;
use crate::row_type::RowType;
use zillion_feature::{FeatureKey, SLOTS};

/// A mapping from the name of a file to its path.
pub trait Places {
    /// Returns the path of the file with this name.
    fn path(&self, name: &str) -> PathBuf;

    /// Returns the bytes of the file with this name. The bytes are a mapping of the file, unless
    /// the implementation keeps copies.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    fn read(&self, name: &str) -> Result<Bytes, DeviceError> {
        mmap::map(self.path(name))
    }
}

/// A folder that contains all files of a layer.
impl Places for Path {
    fn path(&self, name: &str) -> PathBuf {
        self.join(name)
    }
}

impl<F: Fn(&str) -> PathBuf> Places for F {
    fn path(&self, name: &str) -> PathBuf {
        self(name)
    }
}

pub(super) const REMEDY: &str = "fetch the layer again, or publish a new base";

/// A layer of a version, whose files are mapped. A clone is cheap. The mappings exist until the
/// last clone is dropped.
#[derive(Clone, Debug)]
pub struct Layer {
    pub(super) tables: Arc<[TableRows]>,
    pub(super) hot: Arc<HotKeys>,
}

impl Layer {
    /// Returns whether any row or directory entry lies in one of the address ranges. The ranges are
    /// those of mapped files that have lost pages.
    pub fn overlaps(&self, ranges: &[Range<usize>]) -> bool {
        self.tables.iter().any(|table| table.overlaps(ranges))
    }

    /// Opens the layer whose files are at the paths that `places` returns. `layouts` are the
    /// layouts of the tables of the version's job.
    ///
    /// # Errors
    /// Returns [`Error::Part`] with the file and the fault if a file is missing, damaged, or does
    /// not fit the manifest or the job.
    pub fn open(
        places: &(impl Places + ?Sized),
        manifest: &LayerManifest,
        layouts: &[TableLayout],
    ) -> Result<Self> {
        let listing = places.path(&manifest.directory.name());
        let refuse = |reason: String| Error::Part { path: listing.clone(), reason };
        check_listing(manifest, layouts).map_err(refuse)?;
        let directories = manifest.directories().map(|file| open_directory(places, file));
        let starts = directories.collect::<Result<Vec<_>>>()?;
        let tables = manifest.tables.iter().map(|table| {
            let rows = |parts: &[LayerPart], segments: &[(String, usize)], is_narrow: bool| {
                let format = WeightFormat::new(table.row_type, segments);
                let listed = Listed { table: &table.table, parts, format: &format, is_narrow };
                let parts = (0..parts.len()).map(|i| open_part(places, &listed, i, &starts));
                let parts = parts.collect::<Result<_>>()?;
                Ok::<_, Error>(WidthRows { format, parts })
            };
            Ok(TableRows {
                full: rows(&table.parts, &table.segments, false)?,
                narrow: match &table.narrow {
                    Some(narrow) => rows(&narrow.parts, &narrow.segments, true)?,
                    None => rows(&[], &[], true)?,
                },
                records: None,
            })
        });
        let tables = tables.collect::<Result<Vec<_>>>()?.into();
        Ok(Self { tables, hot: Arc::new(open_hot(places, manifest, layouts)?) })
    }

    /// Returns the hot keys of a table; `None` if the layer does not list them.
    pub fn hot(&self, table: usize) -> Option<&HotTable> {
        self.hot.table(table)
    }

    /// Copies the rows into memory as records, from which lookups of the returned layer read. The
    /// files stay mapped for merges and for [`Layer::iter`].
    ///
    /// # Errors
    /// Returns an error if the machine has less free memory than the records need.
    pub fn with_records(&self, throttle: &mut dyn Throttle) -> Result<Self> {
        let needed: u64 = self.tables.iter().map(Records::bytes_of).sum();
        if let Some(free) = machine::available_memory().filter(|&free| needed > free) {
            return Err(Error::misuse(format!(
                "the rows need {needed} bytes of memory as records, but {free} bytes are free; \
                 look them up in the mapped files (without `row_records`), or publish them in a \
                 smaller number type (`publish.rows`)"
            )));
        }
        let tables = self.tables.iter().map(|table| {
            let records = Arc::new(Records::copy(table, throttle)?);
            Ok(TableRows { records: Some(records), ..table.clone() })
        });
        Ok(Self { tables: tables.collect::<Result<Vec<_>>>()?.into(), hot: self.hot.clone() })
    }

    /// Returns whether lookups read records in memory instead of the mapped files.
    pub fn has_records(&self) -> bool {
        self.tables.iter().all(|table| table.records.is_some())
    }

    /// Returns whether another clone of this layer is alive.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.tables) > 1
    }

    /// Returns the entry of a key, or `None` if the layer does not have the key.
    pub fn find(&self, table: usize, key: FeatureKey) -> Option<Found<'_>> {
        let rows = self.tables.get(table)?;
        rows.find(key).map(|place| rows.at(place))
    }

    /// Returns the number of narrow rows of a table.
    pub(super) fn narrow_rows(&self, table: usize) -> u64 {
        let rows = self.tables.get(table).map(|rows| &rows.narrow.parts);
        rows.into_iter().flatten().map(|part| part.keys.len() as u64).sum()
    }

    /// Returns the number of keys of a table, including tombstones.
    pub fn rows(&self, table: usize) -> u64 {
        self.tables.get(table).map_or(0, |rows| rows.rows() as u64)
    }

    /// Returns the number of mapped bytes of a table: the bytes of its rows and of its entries in
    /// the directory.
    pub fn bytes(&self, table: usize) -> u64 {
        self.tables.get(table).map_or(0, |rows| rows.bytes() as u64)
    }

    /// Yields the keys of a table, first those of full rows and then those of narrow ones: each
    /// with the number of pushes of its row, or `None` for a tombstone. The weights are not read.
    pub fn counts(&self, table: usize) -> impl Iterator<Item = (FeatureKey, Option<u32>)> {
        let rows = self.tables.get(table).into_iter();
        let parts = rows.flat_map(|rows| rows.full.parts.iter().chain(&rows.narrow.parts));
        parts.flat_map(|part| {
            let rows = part.keys.iter().zip(part.counts.iter()).zip(part.tombstones.iter());
            rows.map(|((&key, &count), &gone)| (FeatureKey(key), (gone == 0).then_some(count)))
        })
    }

    /// Returns whether two values are the same open layer. A layer that was opened twice is not.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.tables, &other.tables)
    }

    /// Yields the keys of a table in ascending order, with their entries.
    pub fn iter(&self, table: usize) -> impl Iterator<Item = (FeatureKey, Found<'_>)> {
        self.tables.get(table).into_iter().flat_map(TableRows::iter)
    }
}

/// Checks the manifest against the layouts of the job, before any file is opened.
fn check_listing(manifest: &LayerManifest, layouts: &[TableLayout]) -> Result<(), String> {
    if manifest.tables.len() != layouts.len() {
        let (found, wanted) = (manifest.tables.len(), layouts.len());
        return Err(format!("the layer has {found} tables, but the job has {wanted}; {REMEDY}"));
    }
    for (table, layout) in manifest.tables.iter().zip(layouts) {
        let segments: Vec<_> = layout.segments.iter().map(|s| (s.name.clone(), s.dim)).collect();
        if table.table != layout.name || table.segments != segments {
            let (found, wanted) = (&table.segments, &segments);
            return Err(format!(
                "table `{}` of the layer has segments {found:?}, but table `{}` of the job has {wanted:?}; {REMEDY}",
                table.table, layout.name
            ));
        }
        if table.row_type != layout.published {
            let (found, wanted) = (table.row_type.name(), layout.published.name());
            return Err(format!(
                "table `{}` of the layer has rows of the type {found}, but those of the job have \
                 the type {wanted}; {REMEDY}",
                table.table
            ));
        }
        for parts in
            [table.parts.len()].into_iter().chain(table.narrow.iter().map(|n| n.parts.len()))
        {
            if parts > SLOTS || !(parts == 0 || parts.is_power_of_two()) {
                return Err(format!(
                    "table `{}` has {parts} parts instead of a power of two up to {SLOTS}; {REMEDY}",
                    table.table
                ));
            }
        }
        check_narrow(table, layout)?;
        let weights = table.rows.saturating_mul(table.width() as u64);
        if table.clamped > weights || (table.clamped > 0 && table.row_type != RowType::F16) {
            return Err(format!(
                "table `{}` lists {} weights beyond the numbers of f16, but has {weights} weights in \
                 {}; {REMEDY}",
                table.table,
                table.clamped,
                table.row_type.name()
            ));
        }
        let narrow = table.narrow.as_ref().map_or(0, |narrow| narrow.rows);
        let rows = table.parts.iter().map(|p| p.rows).sum::<u64>().saturating_add(narrow);
        if rows != table.rows || table.tombstones > table.rows {
            return Err(format!(
                "table `{}`: the parts have {rows} rows, but the table has {} rows and {} tombstones; {REMEDY}",
                table.table, table.rows, table.tombstones
            ));
        }
    }
    Ok(())
}

/// Checks that narrow rows have the segments that the job gives them. Otherwise, a reader would put
/// floats into wrong places.
fn check_narrow(table: &LayerTable, layout: &TableLayout) -> Result<(), String> {
    let Some(narrow) = &table.narrow else { return Ok(()) };
    let wanted = layout.narrow.iter().flatten().map(|s| (s.name.clone(), s.dim));
    let wanted: Vec<_> = wanted.collect();
    if narrow.segments != wanted || wanted.is_empty() {
        return Err(format!(
            "the narrow rows of the layer's table `{}` have segments {:?}, but those of the job have {wanted:?}; {REMEDY}",
            table.table, narrow.segments
        ));
    }
    let rows: u64 = narrow.parts.iter().map(|part| part.rows).sum();
    if rows != narrow.rows {
        return Err(format!(
            "table `{}`: the parts have {rows} narrow rows, but the table has {}; {REMEDY}",
            table.table, narrow.rows
        ));
    }
    Ok(())
}

fn open_directory(places: &(impl Places + ?Sized), file: &LayerFile) -> Result<ScalarBuffer<u32>> {
    open_file(places, file, |file| {
        check_schema(file, "directory", FORMAT, &directory_fields())?;
        file.columns().numbers::<u32>("start")
    })
}

fn open_hot(
    places: &(impl Places + ?Sized),
    manifest: &LayerManifest,
    layouts: &[TableLayout],
) -> Result<HotKeys> {
    let rows: Vec<u64> = manifest.tables.iter().map(|table| table.rows).collect();
    let mut hot = HotKeys::default();
    for file in &manifest.hot {
        open_file(places, file, |file| hot.add_file(file, &rows))?;
    }
    if manifest.hot.len() > 1 {
        hot.sort();
        hot.shorten(layouts);
    }
    Ok(hot)
}

/// The parts of a table with rows of one width, as the manifest lists them.
struct Listed<'a> {
    table: &'a str,
    parts: &'a [LayerPart],
    format: &'a WeightFormat,
    is_narrow: bool,
}

fn open_part(
    places: &(impl Places + ?Sized),
    table: &Listed<'_>,
    index: usize,
    directories: &[ScalarBuffer<u32>],
) -> Result<PartColumns> {
    let LayerPart { file, rows, first_entry, bits, directory, stored } = &table.parts[index];
    open_file(places, file, |file| {
        let format = table.format;
        let is_sparse = stored.is_some();
        let version = part_format(format.row_type, is_sparse);
        check_schema(file, "part", version, &part_fields(format, is_sparse))?;
        if file.rows as u64 != *rows {
            let found = file.rows;
            return Err(format!("the file has {found} rows, but the manifest lists {rows}"));
        }
        let metadata = |key: &str| file.metadata(key);
        let expected = part_label(index, table.parts.len(), table.is_narrow);
        if metadata("zillion.table") != table.table || metadata("zillion.part") != expected {
            return Err(format!(
                "the file is part {} of table `{}` instead of part {expected} of table `{}`",
                metadata("zillion.part"),
                metadata("zillion.table"),
                table.table
            ));
        }
        let outside = || "the entries of the part lie outside of the directory".to_owned();
        if !(1..=u32::BITS).contains(bits) {
            return Err(outside());
        }
        let starts = directories.get(*directory as usize).ok_or_else(|| {
            let count = directories.len();
            format!("the part is in directory {directory}, but the layer has {count} directories")
        })?;
        let first = usize::try_from(*first_entry).map_err(|_| outside())?;
        let entries = (1usize << bits) + 1;
        if first.checked_add(entries).is_none_or(|end| end > starts.len()) {
            return Err(outside());
        }
        let mut columns = file.columns();
        Ok(PartColumns {
            bits: *bits,
            starts: starts.slice(first, entries),
            keys: columns.numbers("key")?,
            weights: PartWeights::read(&mut columns, format, *stored)?,
            counts: columns.numbers("count")?,
            tombstones: columns.numbers("tombstone")?,
        })
    })
}

fn check_schema(
    file: &ArrowFile<'_>,
    what: &str,
    format: &str,
    fields: &[Field],
) -> Result<(), String> {
    let metadata = |key: &str| file.metadata(key);
    let schema = &file.schema;
    if metadata("zillion.format") != format || metadata("zillion.layer") != what {
        return Err(format!(
            "the file is a `{}` of format `{}` instead of a `{what}` of format `{format}`",
            metadata("zillion.layer"),
            metadata("zillion.format")
        ));
    }
    let found = schema.fields().iter().map(AsRef::as_ref);
    if !found.eq(fields.iter()) {
        let names: Vec<_> = schema.fields().iter().map(|f| f.to_string()).collect();
        return Err(format!(
            "the file does not have the columns of a {what}: it has {}",
            names.join(", ")
        ));
    }
    Ok(())
}

fn open_file<T>(
    places: &(impl Places + ?Sized),
    file: &LayerFile,
    read: impl FnOnce(&ArrowFile<'_>) -> Result<T, String>,
) -> Result<T> {
    let path = places.path(&file.name());
    let bytes = places.read(&file.name())?;
    let refuse = |reason: String| Error::Part { path, reason: format!("{reason}; {REMEDY}") };
    if bytes.len() as u64 != file.bytes {
        return Err(refuse(format!(
            "the file has {} bytes, but the manifest lists {}; the file was truncated or changed",
            bytes.len(),
            file.bytes
        )));
    }
    ArrowFile::open(&Buffer::from(bytes)).and_then(|file| read(&file)).map_err(refuse)
}
