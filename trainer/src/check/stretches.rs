//! The places of the training data from which a check draws its sample.
//!
//! Logs are sorted by time, so the first rows show only the first hours: few of the ids, and a
//! share of the label that changes later. A sample therefore comes from stretches of rows at equal
//! distances over all files. In Parquet and Arrow files a stretch begins at a row, in text without
//! compression at the first line behind a byte. Compressed text and text in UTF-16 cannot be read
//! from the middle, so their sample is their beginning.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor as Bytes, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use zillion_feature::{Cursor, Schema};
use zillion_reader::{
    Compression, DataConfig, Dataset, FileFormat, Format, Header, Labels, ReaderError, TextFormat,
    format_of,
};

use crate::error::Result;

/// The number of stretches of a sample.
const STRETCHES: u64 = 16;
/// The number of bytes of a line in which the search for the end of the line gives up.
const LONGEST_LINE: u64 = 16 << 20;

/// The stretches of a sample.
pub(super) struct Stretches {
    pub(super) places: Vec<Place>,
    /// The reason why the sample is the beginning of the data, or `None` if it is spread over all
    /// files or has all rows.
    pub(super) not_spread: Option<NotSpread>,
}

/// The reason why a sample is the beginning of the data, and the remedy.
pub(super) struct NotSpread {
    pub(super) reason: String,
    pub(super) remedy: &'static str,
}

/// The place of a stretch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The row of the data at which the stretch begins, counted from 0.
    Row(u64),
    /// The first line of a text file behind a byte.
    Byte(PathBuf, u64),
}

impl Stretches {
    /// Chooses the places of a sample of `sample` rows. `rows` is the number of rows of the data,
    /// if it is known.
    pub(super) fn choose(
        config: &DataConfig,
        data: &Dataset,
        rows: Option<u64>,
        sample: u64,
    ) -> Self {
        let whole = |not_spread| Self { places: vec![Place::Row(0)], not_spread };
        if rows.is_some_and(|rows| rows <= sample) {
            return whole(None);
        }
        if config.sample.is_some() || config.negatives.is_some() {
            // Stretches of drawn rows are longer than they have rows, so they could overlap.
            let reason = "`data.sample` or `data.negatives` draws its rows".to_owned();
            return whole(Some(NotSpread { reason, remedy: "examine more rows" }));
        }
        // Each place has at least one row.
        let count = STRETCHES.min(sample);
        if let Some(rows) = data.rows() {
            let start = |at: u64| (u128::from(rows) * u128::from(at) / u128::from(count)) as u64;
            return Self {
                places: (0..count).map(|at| Place::Row(start(at))).collect(),
                not_spread: None,
            };
        }
        match text_places(config, data, count) {
            Ok(places) => Self { places, not_spread: None },
            Err(reason) => {
                whole(Some(NotSpread { reason, remedy: "convert the files to Parquet" }))
            }
        }
    }
}

/// Returns places at equal distances over the bytes of text files, or the reason why the files
/// cannot be read from the middle.
fn text_places(
    config: &DataConfig,
    data: &Dataset,
    count: u64,
) -> std::result::Result<Vec<Place>, String> {
    let encoding = config.encoding.name();
    if encoding.starts_with("utf-16") {
        return Err(format!("text in {encoding} cannot be read from the middle"));
    }
    let mut files = Vec::new();
    for path in data.paths() {
        let is_plain =
            matches!(format_of(path, config.format), Ok(FileFormat::Text(_, Compression::None)));
        match std::fs::metadata(path) {
            Ok(facts) if is_plain && facts.is_file() => files.push((path.to_owned(), facts.len())),
            Ok(_) => return Err("compressed text cannot be read from the middle".to_owned()),
            Err(_) => return Err("text in a bucket is not read from the middle".to_owned()),
        }
    }
    let total: u64 = files.iter().map(|(_, bytes)| bytes).sum();
    let place = |at: u64| {
        let mut byte = (u128::from(total) * u128::from(at) / u128::from(count)) as u64;
        for (path, bytes) in &files {
            if byte < *bytes {
                return Some(Place::Byte(path.clone(), byte));
            }
            byte -= bytes;
        }
        None
    };
    Ok((0..count).filter_map(place).collect())
}

impl Place {
    /// Opens the data at the place. Returns it with the position of the first row of the stretch.
    /// `data` is the opened data, which has the rows of all files.
    pub(super) fn open(
        &self,
        config: &DataConfig,
        data: &Dataset,
        schema: &Schema,
    ) -> Result<(Dataset, Cursor)> {
        match self {
            Self::Row(row) => Ok((data.clone(), Cursor { row: *row, ..Cursor::default() })),
            Self::Byte(path, 0) => {
                let files = [path.clone()];
                Ok((Dataset::open(config, &files, schema)?, Cursor::default()))
            }
            Self::Byte(path, byte) => {
                let format = format_of(path, config.format)?;
                let config = DataConfig { format: text_format(format), ..config.clone() };
                let text =
                    open_behind(path, *byte, has_header(&config, format)).map_err(|source| {
                        ReaderError::Io { what: "read", source, path: path.clone() }
                    })?;
                let name = format!("{} (behind byte {byte})", path.display());
                let dataset = Dataset::from_reader(&config, text, &name, schema, Labels::Required)?;
                Ok((dataset, Cursor::default()))
            }
        }
    }

    /// Returns whether an error of the stretch may come from its beginning: the line feed before it
    /// may be a part of a quoted cell.
    pub(super) fn may_begin_in_quotes(&self, config: &DataConfig) -> bool {
        let (Self::Byte(path, byte), Some(quote)) = (self, config.quote.byte()) else {
            return false;
        };
        let look = || -> io::Result<Vec<u8>> {
            let mut file = File::open(path)?;
            file.seek(SeekFrom::Start(*byte))?;
            let mut text = Vec::new();
            file.take(1 << 16).read_to_end(&mut text)?;
            Ok(text)
        };
        *byte > 0 && look().is_ok_and(|text| text.contains(&quote))
    }
}

/// Returns whether the first line of a text file has the names of the columns.
fn has_header(config: &DataConfig, format: FileFormat) -> bool {
    let has_cells = matches!(format, FileFormat::Text(TextFormat::Csv | TextFormat::Tsv, _));
    has_cells && config.header == Header::Yes
}

/// Returns the setting that names a text format, because a stretch has no extension.
fn text_format(format: FileFormat) -> Format {
    match format {
        FileFormat::Text(TextFormat::Tsv, _) => Format::Tsv,
        FileFormat::Text(TextFormat::Json, _) => Format::Jsonl,
        FileFormat::Text(TextFormat::Svm, _) => Format::Libsvm,
        _ => Format::Csv,
    }
}

/// Opens a text file at the first line behind a byte. The header of the file comes first.
fn open_behind(path: &Path, byte: u64, has_header: bool) -> io::Result<impl Read + Send + 'static> {
    let mut file = BufReader::new(File::open(path)?);
    let mut header = Vec::new();
    if has_header {
        (&mut file).take(LONGEST_LINE).read_until(b'\n', &mut header)?;
    }
    // The byte before the place is read too, so that a line that begins at the place is whole.
    file.seek(SeekFrom::Start(byte.saturating_sub(1).max(header.len() as u64)))?;
    let mut skipped = Vec::new();
    if byte > header.len() as u64 {
        (&mut file).take(LONGEST_LINE).read_until(b'\n', &mut skipped)?;
    }
    Ok(Bytes::new(header).chain(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_begin_at_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.csv");
        std::fs::write(&path, "a,b\n1,2\n3,4\n5,6\n").unwrap();
        let behind = |byte, has_header| {
            let mut text = String::new();
            open_behind(&path, byte, has_header).unwrap().read_to_string(&mut text).unwrap();
            text
        };
        assert_eq!(behind(8, true), "a,b\n3,4\n5,6\n");
        assert_eq!(behind(9, true), "a,b\n5,6\n");
        assert_eq!(behind(4, true), "a,b\n1,2\n3,4\n5,6\n");
        assert_eq!(behind(2, true), "a,b\n1,2\n3,4\n5,6\n");
        assert_eq!(behind(13, false), "");
        assert_eq!(behind(5, false), "3,4\n5,6\n");
    }
}
