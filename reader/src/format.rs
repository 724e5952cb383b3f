//! The formats of data files, and the rule that decides the format of a file.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{ReaderError, Result};

/// The setting for the format of data files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// The extension of each file decides: `.parquet`, `.arrow`, `.feather`, `.ipc`, `.csv`,
    /// `.tsv`, `.jsonl`, `.ndjson`, `.libsvm`, `.svm`, `.libfm`, `.libffm`. The extension of a text
    /// file may be followed by `.gz` or `.zst`.
    #[default]
    Auto,
    /// All files are Parquet.
    Parquet,
    /// All files are Arrow IPC, which is Feather V2.
    Arrow,
    /// All files are text, by default with commas between cells.
    Csv,
    /// All files are text, by default with tabs between cells.
    Tsv,
    /// All files are JSON lines, with one object in each line.
    Jsonl,
    /// All files are libsvm, libfm or libffm, with one sparse vector in each line.
    Libsvm,
}

/// The formats of text files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextFormat {
    /// Records of cells, by default with commas between them.
    Csv,
    /// Records of cells, by default with tabs between them.
    Tsv,
    /// Lines with one JSON object each.
    Json,
    /// Lines with one sparse vector each: libsvm, libfm and libffm.
    Svm,
}

/// The compression of a whole text file. Parquet and Arrow files compress their parts themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// The file is not compressed.
    None,
    /// The file is a gzip stream.
    Gzip,
    /// The file is a zstd stream.
    Zstd,
}

/// The format of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// The file is Parquet.
    Parquet,
    /// The file is Arrow IPC, which is Feather V2.
    Arrow,
    /// The file is text in this format and with this compression.
    Text(TextFormat, Compression),
}

/// Returns the format of a file. If the setting names a format, this is the result. Otherwise, the
/// extension of the file decides.
///
/// # Errors
/// Returns an error if the setting is [`Format::Auto`] and the extension is not known.
pub fn format_of(path: &Path, setting: Format) -> Result<FileFormat> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let (stem, compression) = match name.rsplit_once('.') {
        Some((stem, "gz")) => (stem, Compression::Gzip),
        Some((stem, "zst")) => (stem, Compression::Zstd),
        _ => (name.as_str(), Compression::None),
    };
    let by_ending = match stem.rsplit_once('.').map(|(_, ending)| ending) {
        Some("parquet" | "pq") if compression == Compression::None => Some(FileFormat::Parquet),
        Some("arrow" | "feather" | "ipc") if compression == Compression::None => {
            Some(FileFormat::Arrow)
        }
        Some("csv") => Some(FileFormat::Text(TextFormat::Csv, compression)),
        Some("tsv" | "tab") => Some(FileFormat::Text(TextFormat::Tsv, compression)),
        Some("jsonl" | "ndjson") => Some(FileFormat::Text(TextFormat::Json, compression)),
        Some("libsvm" | "svm" | "svmlight" | "libfm" | "libffm" | "ffm") => {
            Some(FileFormat::Text(TextFormat::Svm, compression))
        }
        _ => None,
    };
    match setting {
        Format::Auto => {
            by_ending.ok_or_else(|| ReaderError::UnknownFormat { path: path.to_owned() })
        }
        Format::Parquet => Ok(FileFormat::Parquet),
        Format::Arrow => Ok(FileFormat::Arrow),
        Format::Csv => Ok(FileFormat::Text(TextFormat::Csv, compression)),
        Format::Tsv => Ok(FileFormat::Text(TextFormat::Tsv, compression)),
        Format::Jsonl => Ok(FileFormat::Text(TextFormat::Json, compression)),
        Format::Libsvm => Ok(FileFormat::Text(TextFormat::Svm, compression)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_follows_the_ending_unless_set() {
        let of = |name: &str, setting| format_of(Path::new(name), setting).ok();
        let text = |format, compression| Some(FileFormat::Text(format, compression));
        assert_eq!(of("a.parquet", Format::Auto), Some(FileFormat::Parquet));
        assert_eq!(of("a.CSV", Format::Auto), text(TextFormat::Csv, Compression::None));
        assert_eq!(of("a.b.tsv.gz", Format::Auto), text(TextFormat::Tsv, Compression::Gzip));
        assert_eq!(of("a.csv.zst", Format::Auto), text(TextFormat::Csv, Compression::Zstd));
        assert_eq!(of("day_0.gz", Format::Auto), None);
        assert_eq!(of("day_0.gz", Format::Tsv), text(TextFormat::Tsv, Compression::Gzip));
        assert_eq!(of("notes.md", Format::Auto), None);
        assert_eq!(of("notes.md", Format::Parquet), Some(FileFormat::Parquet));
    }
}
