//! The expansion of a file list (paths, directories, globs) to files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{ReaderError, Result};
use crate::stores::{Stores, url_of};

/// Returns the files that match the entries of a list. The result follows the order of the list;
/// the files of one entry are sorted.
///
/// # Errors
/// Returns an error if an entry is not a valid glob or matches no file, or if two entries match the
/// same file.
pub(crate) fn expand(root: &Path, entries: &[String], stores: &Stores) -> Result<Vec<PathBuf>> {
    let mut seen = BTreeMap::new();
    let mut files = Vec::new();
    let places: Vec<PathBuf> = entries.iter().map(|entry| locate(root, Path::new(entry))).collect();
    stores.inspect_all(places.iter().filter_map(|place| url_of(place)))?;
    for (entry, place) in entries.iter().zip(places) {
        let found = match url_of(&place) {
            Some(url) => stores.expand(url)?,
            None => expand_one(root, entry, &place)?,
        };
        if found.is_empty() {
            return Err(ReaderError::NoFiles { pattern: entry.clone(), looked_for: place });
        }
        for path in found {
            // Two spellings of a path, such as `a.csv` and `./a.csv`, name one file.
            let real = match url_of(&path) {
                Some(_) => path.clone(),
                None => fs::canonicalize(&path).unwrap_or_else(|_| path.clone()),
            };
            if let Some(first) = seen.insert(real, path.clone()) {
                return Err(ReaderError::ListedTwice { path, first });
            }
            files.push(path);
        }
    }
    Ok(files)
}

/// Returns the path or the URL that an entry of a list stands for. `root` may be a URL too.
pub(crate) fn locate(root: &Path, entry: &Path) -> PathBuf {
    if url_of(entry).is_some() {
        return entry.to_owned();
    }
    match entry.to_str().and_then(|entry| entry.strip_prefix("file://")) {
        Some(path) => PathBuf::from(path),
        None => root.join(entry),
    }
}

fn expand_one(root: &Path, entry: &str, path: &Path) -> Result<Vec<PathBuf>> {
    // A name that looks like a glob may also be the name of an existing file.
    if path.exists() {
        return if path.is_dir() { list_directory(path) } else { Ok(vec![path.to_owned()]) };
    }
    let entry = entry.strip_prefix("file://").unwrap_or(entry);
    if !entry.contains(['*', '?', '[']) {
        return Ok(Vec::new());
    }
    // The root is a path and not a pattern, so its own brackets and stars are literal.
    let escaped_root = glob::Pattern::escape(&root.to_string_lossy());
    let pattern = Path::new(&escaped_root).join(entry);
    let options = glob::MatchOptions { require_literal_leading_dot: true, ..Default::default() };
    let matches = glob::glob_with(&pattern.to_string_lossy(), options).map_err(|e| {
        ReaderError::BadPattern { problem: e.msg.to_owned(), pattern: entry.to_owned() }
    })?;
    let mut files = Vec::new();
    for found in matches {
        let found = found.map_err(|e| {
            let path = e.path().to_owned();
            ReaderError::io("list the folder", &path)(e.into())
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

/// Returns all files in a directory and its subdirectories, sorted. Names that start with `.` or
/// `_` are skipped, because other programs write such files beside their data (`_SUCCESS`,
/// `.part-0.crc`).
fn list_directory(directory: &Path) -> Result<Vec<PathBuf>> {
    let failed = ReaderError::io("list the folder", directory);
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
        let files = expand(root, &entries, &Stores::default()).map_err(|e| e.to_string())?;
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
        assert!(error.starts_with("`b*.csv` matches no file (looked for "), "{error}");
        let error = names(folder.path(), &["a.csv", "*.csv"]).unwrap_err();
        assert!(error.contains("is listed twice"), "{error}");
        touch(folder.path(), "b/c.csv");
        let error = names(folder.path(), &["a.csv", "./b/../a.csv"]).unwrap_err();
        assert!(error.contains("a.csv is listed twice"), "{error}");
        let error = names(folder.path(), &["a[.csv"]).unwrap_err();
        assert!(error.starts_with("`a[.csv` is not a valid glob"), "{error}");
        fs::create_dir(folder.path().join("empty")).unwrap();
        assert!(
            names(folder.path(), &["empty"]).unwrap_err().starts_with("`empty` matches no file")
        );
    }
}
