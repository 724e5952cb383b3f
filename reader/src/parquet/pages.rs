//! The decoding of a column directly from its pages, without Arrow arrays.
//!
//! Most columns of a log are stored with a dictionary: the dictionary has one entry for each
//! distinct value, and each row has the number of an entry. This module decodes each entry once
//! (with its mixing, hashing or transform), and then copies the decoded entry to each row.
//!
//! This module decodes only flat columns of numbers and strings without errors. It gives up in all
//! other cases: a value that may be refused, an encoding that this module does not know, or damaged
//! bytes. The row group is then decoded through Arrow, starting at the same row, and Arrow's
//! decoder reports the error.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, Int64Array,
    UInt8Array, UInt16Array, UInt32Array, UInt64Array, new_null_array,
};
use arrow_schema::DataType;
use bytes::Bytes;
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::basic::{Compression, Encoding, Type};
use parquet::column::page::{Page, PageReader};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::serialized_reader::SerializedPageReader;
use zillion_feature::{FeatureKey, LabelColumn, RawType};

use super::positioned::PositionedFile;
use super::runs::Runs;
use crate::arrays::{DictionaryKeys, PagedFields, TextRules, append, plain_type, without_panic};
use crate::block::{Column, ColumnView};
use crate::field::{Field, Role};

/// The number of rows that are decoded at a time. It is small enough that their dictionary indices
/// fit into the first-level cache.
const ROWS: usize = 4096;

/// The columns of a row group that are decoded from their pages.
pub(super) struct PagedColumns {
    /// The columns, one entry for each field of the part. An entry is `None` if the column is not
    /// decoded from its pages.
    columns: Vec<Option<PagedColumn>>,
    inflater: Inflater,
}

impl PagedColumns {
    /// Opens the columns that can be decoded from their pages. Returns `None` if there is no such
    /// column.
    pub(super) fn open(
        file: &Arc<PositionedFile>,
        metadata: &ArrowReaderMetadata,
        group: usize,
        (columns, fields): (&[usize], &[Field]),
        rules: &TextRules,
    ) -> Option<Self> {
        let paged = columns.iter().zip(fields).map(|(&column, field)| {
            let uses = columns.iter().filter(|&&other| other == column).count();
            let found = plain_type(metadata.schema().field(column).data_type());
            let of_group = (metadata.metadata().as_ref(), group, column);
            let open = || PagedColumn::open(file, of_group, &found, &field.role, rules);
            (uses == 1).then(|| without_panic(|| Ok::<_, String>(open())).ok().flatten()).flatten()
        });
        let columns: Vec<Option<PagedColumn>> = paged.collect();
        let any = columns.iter().any(Option::is_some);
        any.then(|| Self { columns, inflater: Inflater::default() })
    }
}

impl PagedFields for PagedColumns {
    fn has(&self, field: usize) -> bool {
        self.columns.get(field).is_some_and(Option::is_some)
    }

    fn decode(&mut self, rows: usize, fields: &[Field], columns: &mut [Column]) -> bool {
        for ((paged, field), column) in self.columns.iter_mut().zip(fields).zip(columns) {
            let Some(paged) = paged else { continue };
            let mut decode = || paged.decode(rows, &field.role, column, &mut self.inflater);
            if !without_panic(|| Ok::<_, String>(decode())).is_ok_and(|done| done.is_some()) {
                return false;
            }
        }
        true
    }
}

/// A column of a row group that is decoded from its pages.
struct PagedColumn {
    pages: SerializedPageReader<PositionedFile>,
    /// Whether the pages are compressed with zstd. If so, the [`Inflater`] decompresses them.
    is_zstd: bool,
    physical: Type,
    found: DataType,
    nullable: bool,
    rules: TextRules,
    /// The decoded entries of the dictionary, or `None` before a dictionary has been read. The next
    /// field holds the decoded missing value.
    entries: Option<Column>,
    missing: Option<Column>,
    page: Option<DataPage>,
    numbers: Vec<u32>,
    levels: Vec<u32>,
}

struct DataPage {
    /// The number of rows of the page that have not been decoded yet.
    left: usize,
    levels: Option<Runs>,
    values: Values,
}

enum Values {
    Entries(Runs),
    Plain(Bytes),
}

impl PagedColumn {
    /// Opens the column at position `column` of a row group. `found` is its type in Arrow. Returns
    /// `None` if the column cannot be decoded from its pages for this role.
    fn open(
        file: &Arc<PositionedFile>,
        (metadata, group, column): (&ParquetMetaData, usize, usize),
        found: &DataType,
        role: &Role,
        rules: &TextRules,
    ) -> Option<Self> {
        let schema = metadata.file_metadata().schema_descr();
        let leaf = (0..schema.num_columns()).find(|&l| schema.get_column_root_idx(l) == column)?;
        let descriptor = schema.column(leaf);
        let is_flat = descriptor.max_rep_level() == 0 && descriptor.max_def_level() <= 1;
        let physical = descriptor.physical_type();
        let fits = match (physical, role) {
            (_, Role::Ids { .. } | Role::RawIds { .. } | Role::RawId { .. }) => false,
            (_, Role::RawTime { .. } | Role::Kept) => false,
            (_, Role::Vector { .. } | Role::RawVector { .. }) => false,
            (Type::BYTE_ARRAY, Role::Id { raw: RawType::String, .. }) => *found == DataType::Utf8,
            (Type::INT32 | Type::INT64 | Type::FLOAT | Type::DOUBLE, _) => {
                numbers(physical, found, &[0; 8]).is_some()
            }
            _ => false,
        };
        if !is_flat || !fits {
            return None;
        }
        let group = metadata.row_groups().get(group)?;
        let rows = usize::try_from(group.num_rows()).ok()?;
        let mut chunk = group.column(leaf).clone();
        let is_zstd = matches!(chunk.compression(), Compression::ZSTD(_));
        if is_zstd {
            // The page reader of the library would make a decompressor for every column of every
            // row group.
            let builder = chunk.into_builder().set_compression(Compression::UNCOMPRESSED);
            chunk = builder.build().ok()?;
        }
        let pages = SerializedPageReader::new(file.clone(), &chunk, rows, None).ok()?;
        let mut column = Self {
            pages,
            is_zstd,
            physical,
            found: found.clone(),
            nullable: descriptor.max_def_level() == 1,
            rules: rules.clone(),
            entries: None,
            missing: None,
            page: None,
            numbers: vec![0; ROWS],
            levels: vec![0; ROWS],
        };
        column.missing = column.make(role, &new_null_array(found, 1));
        Some(column)
    }

    /// Appends the next `rows` rows to the column. Returns `None` if they cannot be decoded here.
    /// In this case, the column may already hold some of the rows.
    fn decode(
        &mut self,
        rows: usize,
        role: &Role,
        column: &mut Column,
        inflater: &mut Inflater,
    ) -> Option<()> {
        let mut left = rows;
        while left > 0 {
            if self.page.as_ref().is_none_or(|page| page.left == 0) {
                self.next_page(role, inflater)?;
                continue;
            }
            let page = self.page.as_mut()?;
            let rows = left.min(page.left).min(ROWS);
            let mut levels = None;
            if let Some(runs) = &mut page.levels
                && !runs.pass_over(rows, 1)
            {
                let read = &mut self.levels[..rows];
                runs.fill(read)?;
                levels = Some(&*read);
            }
            let present = levels.map_or(rows, |levels| levels.iter().filter(|&&l| l == 1).count());
            page.left -= rows;
            left -= rows;
            match &mut page.values {
                Values::Entries(entries) => {
                    let numbers = &mut self.numbers[..present];
                    entries.fill(numbers)?;
                    gather(column, self.entries.as_ref()?, self.missing.as_ref(), numbers, levels)?;
                }
                Values::Plain(bytes) => {
                    let bytes = take_plain(bytes, self.physical, present)?;
                    let plain = |column: &mut Column| {
                        decode_plain(&bytes, self.physical, &self.found, role, &self.rules, column)
                    };
                    if levels.is_none() {
                        plain(column)?;
                        continue;
                    }
                    let mut values = Column::with_capacity(role, present);
                    plain(&mut values)?;
                    let numbers = &mut self.numbers[..present];
                    numbers.iter_mut().zip(0..).for_each(|(number, i)| *number = i);
                    gather(column, &values, self.missing.as_ref(), numbers, levels)?;
                }
            }
        }
        Some(())
    }

    fn next_page(&mut self, role: &Role, inflater: &mut Inflater) -> Option<()> {
        let is_zstd = self.is_zstd;
        let mut inflate = |buf: Bytes, compressed: bool| match compressed && is_zstd {
            true => inflater.inflate(&buf),
            false => Some(buf),
        };
        let (mut bytes, rows, encoding, levels) = match self.pages.get_next_page().ok()?? {
            Page::DictionaryPage { buf, num_values, .. } => {
                let mut buf = inflate(buf, true)?;
                let values = take_plain(&mut buf, self.physical, num_values as usize)?;
                let mut entries = Column::with_capacity(role, num_values as usize);
                let Self { physical, found, rules, .. } = self;
                decode_plain(&values, *physical, found, role, rules, &mut entries)?;
                self.entries = Some(entries);
                return Some(());
            }
            Page::DataPage { buf, num_values, encoding, def_level_encoding, .. } => {
                let mut buf = inflate(buf, true)?;
                let mut levels = None;
                if self.nullable {
                    if def_level_encoding != Encoding::RLE {
                        return None;
                    }
                    let size = u32::from_le_bytes(*buf.first_chunk()?) as usize;
                    buf.get(4..)?.get(..size)?;
                    levels = Some(buf.slice(4..4 + size));
                    buf = buf.slice(4 + size..);
                }
                (buf, num_values, encoding, levels)
            }
            Page::DataPageV2 {
                buf,
                num_values,
                encoding,
                def_levels_byte_len,
                is_compressed,
                rep_levels_byte_len: 0,
                ..
            } => {
                let size = def_levels_byte_len as usize;
                if size > buf.len() {
                    return None;
                }
                let levels = self.nullable.then(|| buf.slice(..size));
                (inflate(buf.slice(size..), is_compressed)?, num_values, encoding, levels)
            }
            Page::DataPageV2 { .. } => return None,
        };
        let levels = match levels {
            Some(levels) => Some(Runs::new(levels, 1)?),
            None => None,
        };
        let values = match encoding {
            Encoding::PLAIN => Values::Plain(bytes),
            Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY => {
                // A page that has only missing values may have no bytes at all.
                let width = if bytes.is_empty() { 0 } else { usize::from(bytes.split_to(1)[0]) };
                Values::Entries(Runs::new(bytes, width)?)
            }
            _ => return None,
        };
        self.page = Some(DataPage { left: rows as usize, levels, values });
        Some(())
    }

    /// Decodes an array by the role. Returns `None` if the role refuses a value of the array.
    fn make(&self, role: &Role, array: &ArrayRef) -> Option<Column> {
        let mut column = Column::with_capacity(role, array.len());
        let mut unused = DictionaryKeys::default();
        append(&mut column, role, array, &self.rules, &mut unused).ok()?;
        Some(column)
    }
}

/// A decompressor of pages, which all columns of a part share.
#[derive(Default)]
struct Inflater(Option<zstd::bulk::Decompressor<'static>>);

/// The maximum number of bytes of a page after decompression. If a page declares more bytes,
/// Arrow's decoder decodes it and reports the error.
const LARGEST_PAGE: u64 = 256 << 20;

impl Inflater {
    /// Decompresses a page. Returns `None` if the page is damaged, is too large or does not declare
    /// its size.
    fn inflate(&mut self, bytes: &[u8]) -> Option<Bytes> {
        if bytes.is_empty() {
            return Some(Bytes::new());
        }
        let size = zstd::zstd_safe::get_frame_content_size(bytes).ok()??;
        if size > LARGEST_PAGE {
            return None;
        }
        let decompressor = match &mut self.0 {
            Some(decompressor) => decompressor,
            none => none.insert(zstd::bulk::Decompressor::new().ok()?),
        };
        // If the length after decompression is not the declared length, Arrow's decoder decodes the
        // page.
        let inflated = decompressor.decompress(bytes, size as usize).ok()?;
        (inflated.len() as u64 == size).then(|| inflated.into())
    }
}

/// Removes `count` values in plain encoding from the front of `bytes` and returns their bytes.
/// Returns `None` if there are fewer values.
fn take_plain(bytes: &mut Bytes, physical: Type, count: usize) -> Option<Bytes> {
    let size = match physical {
        Type::INT32 | Type::FLOAT => count.checked_mul(4)?,
        Type::INT64 | Type::DOUBLE => count.checked_mul(8)?,
        _ => {
            let mut end = 0usize;
            for _ in 0..count {
                let size = u32::from_le_bytes(*bytes.get(end..)?.first_chunk()?);
                end = end.checked_add(4)?.checked_add(size as usize)?;
            }
            end
        }
    };
    (size <= bytes.len()).then(|| bytes.split_to(size))
}

/// Decodes values in plain encoding by the role and appends them to the column. Returns `None` if
/// the values cannot be decoded here.
fn decode_plain(
    bytes: &Bytes,
    physical: Type,
    found: &DataType,
    role: &Role,
    rules: &TextRules,
    column: &mut Column,
) -> Option<()> {
    if let (Type::BYTE_ARRAY, Role::Id { missing, .. }, Column::Keys(keys)) =
        (physical, role, &mut *column)
    {
        let mut rest = &bytes[..];
        while let Some((size, behind)) = rest.split_first_chunk() {
            let (text, behind) = behind.split_at_checked(u32::from_le_bytes(*size) as usize)?;
            rest = behind;
            // A text that stands for a missing value must be UTF-8 too.
            let key = FeatureKey::from_text(std::str::from_utf8(text).ok()?);
            keys.push(if rules.is_missing(text) { *missing } else { key });
        }
        return rest.is_empty().then_some(());
    }
    let array = numbers(physical, found, bytes)?;
    append(column, role, &array, rules, &mut DictionaryKeys::default()).ok()
}

/// Returns numbers in plain encoding as an array of their Arrow type, or `None` for a type that
/// this module does not decode.
fn numbers(physical: Type, found: &DataType, bytes: &[u8]) -> Option<ArrayRef> {
    macro_rules! array {
        ($array:ty, $physical:ty, $native:ty) => {
            Arc::new(<$array>::from_iter_values(
                bytes
                    .as_chunks::<{ size_of::<$physical>() }>()
                    .0
                    .iter()
                    .map(|&b| <$physical>::from_le_bytes(b) as $native),
            ))
        };
    }
    Some(match (physical, found) {
        (Type::INT32, DataType::Int8) => array!(Int8Array, i32, i8),
        (Type::INT32, DataType::Int16) => array!(Int16Array, i32, i16),
        (Type::INT32, DataType::Int32) => array!(Int32Array, i32, i32),
        (Type::INT32, DataType::UInt8) => array!(UInt8Array, i32, u8),
        (Type::INT32, DataType::UInt16) => array!(UInt16Array, i32, u16),
        (Type::INT32, DataType::UInt32) => array!(UInt32Array, i32, u32),
        (Type::INT64, DataType::Int64) => array!(Int64Array, i64, i64),
        (Type::INT64, DataType::UInt64) => array!(UInt64Array, i64, u64),
        (Type::FLOAT, DataType::Float32) => array!(Float32Array, f32, f32),
        (Type::DOUBLE, DataType::Float64) => array!(Float64Array, f64, f64),
        _ => return None,
    })
}

/// Appends one decoded value for each row. The next element of `numbers` is the index of the row's
/// entry in the dictionary. If `levels` is given, a row whose level is not 1 takes the missing
/// value and no element of `numbers`.
///
/// Returns `None` if an index is too large, if `numbers` has too few elements, or if the column is
/// not of a kind that can be gathered.
fn gather(
    column: &mut Column,
    entries: &Column,
    missing: Option<&Column>,
    numbers: &[u32],
    levels: Option<&[u32]>,
) -> Option<()> {
    match column {
        Column::Keys(out) => gather_values(out, entries, missing, numbers, levels),
        Column::Floats(out) => gather_values(out, entries, missing, numbers, levels),
        Column::Numbers(out) => gather_values(out, entries, missing, numbers, levels),
        Column::Rows(out) => gather_values(out, entries, missing, numbers, levels),
        Column::Words(out) => gather_values(out, entries, missing, numbers, levels),
        Column::Times(out) => gather_values(out, entries, missing, numbers, levels),
        Column::Labels(LabelColumn { values: out, mask }) => {
            if let Some(mask) = mask {
                match levels {
                    Some(levels) => mask.extend(levels.iter().map(|&level| level == 1)),
                    None => mask.resize(mask.len() + numbers.len(), true),
                }
            }
            gather_values(out, entries, missing, numbers, levels)
        }
        // Lists, and columns that may have fewer values than rows, are not gathered.
        _ => None,
    }
}

fn gather_values<T: Copy>(
    out: &mut Vec<T>,
    entries: &Column,
    missing: Option<&Column>,
    numbers: &[u32],
    levels: Option<&[u32]>,
) -> Option<()>
where
    [T]: ColumnView,
{
    let entries: &[T] = entries.view();
    let largest = numbers.iter().fold(0, |largest, &number| number.max(largest));
    if !numbers.is_empty() && largest as usize >= entries.len() {
        return None;
    }
    let Some(levels) = levels else {
        out.extend(numbers.iter().map(|&number| entries[number as usize]));
        return Some(());
    };
    let missing = *missing?.view::<[T]>().first()?;
    let mut numbers = numbers.iter();
    for &level in levels {
        out.push(match level {
            1 => entries[*numbers.next()? as usize],
            _ => missing,
        });
    }
    Some(())
}
