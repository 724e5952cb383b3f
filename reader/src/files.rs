//! From the entries of a file list to files: paths, directories, globs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::config::{Format, TextFormat};
use crate::error::{ReaderError, Result};

/// How a file is compressed as a whole; Parquet and Arrow compress inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
}

/// How a file is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileFormat {
    Parquet,
    Arrow,
    Text(TextFormat, Compression),
}

/// The files that `entries` stand for: sorted within each entry, entries in their order.
pub(crate) fn expand(root: &Path, entries: &[String]) -> Result<Vec<PathBuf>> {
    let mut seen = BTreeSet::new();
    let mut files = Vec::new();
    for entry in entries {
        let found = expand_one(root, entry)?;
        if found.is_empty() {
            return Err(ReaderError::NoFiles {
                pattern: entry.clone(),
                looked_for: root.join(entry),
            });
        }
        for path in found {
            if !seen.insert(path.clone()) {
                return Err(ReaderError::ListedTwice { path });
            }
            files.push(path);
        }
    }
    Ok(files)
}

fn expand_one(root: &Path, entry: &str) -> Result<Vec<PathBuf>> {
    let path = root.join(entry);
    // A file whose name looks like a glob is still that file.
    if path.exists() {
        return if path.is_dir() { list_directory(&path) } else { Ok(vec![path]) };
    }
    if !entry.contains(['*', '?', '[']) {
        return Ok(Vec::new());
    }
    // The root is a place, not a pattern: its own brackets and stars are literal.
    let escaped_root = glob::Pattern::escape(&root.to_string_lossy());
    let pattern = Path::new(&escaped_root).join(entry);
    let options = glob::MatchOptions { require_literal_leading_dot: true, ..Default::default() };
    let matches = glob::glob_with(&pattern.to_string_lossy(), options).map_err(|e| {
        ReaderError::BadPattern { problem: e.msg.to_owned(), pattern: entry.to_owned() }
    })?;
    let mut files = Vec::new();
    for found in matches {
        let found = found.map_err(|e| ReaderError::Io {
            what: "list the folder",
            path: e.path().to_owned(),
            source: e.into(),
        })?;
        if found.is_dir() {
            files.extend(list_directory(&found)?);
        } else {
            files.push(found);
        }
    }
    files.sort_unstable();
    files.dedup();
    Ok(files)
}

/// Every file below a directory, sorted. Names that start with `.` or `_` are what writers leave
/// beside their data (`_SUCCESS`, `.part-0.crc`) and are passed over.
fn list_directory(directory: &Path) -> Result<Vec<PathBuf>> {
    let failed =
        |source| ReaderError::Io { what: "list the folder", source, path: directory.to_owned() };
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_name().to_string_lossy().starts_with(['.', '_']) {
            continue;
        }
        let path = entry.path();
        if path.is_dir() {
            files.extend(list_directory(&path)?);
        } else {
            files.push(path);
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// The format of a file, by the job's setting and the file's ending.
pub(crate) fn format_of(path: &Path, setting: Format) -> Result<FileFormat> {
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

    fn touch(root: &Path, name: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    }

    fn names(root: &Path, entries: &[&str]) -> std::result::Result<Vec<String>, String> {
        let entries: Vec<String> = entries.iter().map(|&e| e.to_owned()).collect();
        let files = expand(root, &entries).map_err(|e| e.to_string())?;
        let name = |p: &PathBuf| p.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        Ok(files.iter().map(name).collect())
    }

    #[test]
    fn paths_directories_and_globs_expand_in_order() {
        let folder = tempfile::Builder::new().prefix("odd[1]*").tempdir().unwrap();
        let root = folder.path();
        for name in
            ["b/2.csv", "b/1.csv", "b/_SUCCESS", "b/.1.crc", "b/day=2/0.csv", "a.csv", "z?.csv"]
        {
            touch(root, name);
        }
        assert_eq!(
            names(root, &["b", "a.csv"]).unwrap(),
            ["b/1.csv", "b/2.csv", "b/day=2/0.csv", "a.csv"]
        );
        assert_eq!(names(root, &["b/*.csv"]).unwrap(), ["b/1.csv", "b/2.csv"]);
        assert_eq!(names(root, &["**/*.csv"]).unwrap().len(), 5);
        assert_eq!(names(root, &["z?.csv"]).unwrap(), ["z?.csv"]);
    }

    #[test]
    fn what_leads_nowhere_is_named() {
        let folder = tempfile::tempdir().unwrap();
        touch(folder.path(), "a.csv");
        let error = names(folder.path(), &["a.csv", "b*.csv"]).unwrap_err();
        assert!(
            error.starts_with("no file matches; check the path and `data.root`: `b*.csv`"),
            "{error}"
        );
        let error = names(folder.path(), &["a.csv", "*.csv"]).unwrap_err();
        assert!(error.starts_with("listed twice"), "{error}");
        let error = names(folder.path(), &["a[.csv"]).unwrap_err();
        assert!(error.starts_with("not a valid glob"), "{error}");
        fs::create_dir(folder.path().join("empty")).unwrap();
        assert!(names(folder.path(), &["empty"]).unwrap_err().starts_with("no file matches"));
    }

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
