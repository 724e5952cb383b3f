//! The files of an audit log: the one that lines are written to, and the full ones before it, whose
//! names end in a number.

use std::fs;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::line::{BEFORE_HASH, MOST_LINE_BYTES};
use crate::error::{Error, Result};

/// Opens a file for appending, and locks it against other processes.
pub(super) fn open_locked(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    let file = options.create(true).read(true).append(true).open(path);
    let file = file.map_err(Error::file("open", path))?;
    if file.try_lock().is_err() {
        let reason = "another process writes to this audit log; give each server its own file";
        return Err(Error::invalid(path, reason));
    }
    Ok(file)
}

/// Lists the full files of a log with their numbers, the oldest first.
pub(super) fn list_full(path: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let folder = find_folder(path);
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned() + ".";
    let mut full = Vec::new();
    for entry in fs::read_dir(folder).map_err(Error::file("read", folder))? {
        let entry = entry.map_err(Error::file("read", folder))?;
        let entry_name = entry.file_name();
        let number = entry_name.to_str().and_then(|entry| entry.strip_prefix(&name));
        let number = number.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        if let Some(number) = number.and_then(|text| text.parse().ok()) {
            full.push((number, entry.path()));
        }
    }
    full.sort();
    Ok(full)
}

/// Returns the name that the file of a log gets when it is full.
pub(super) fn choose_next_name(path: &Path) -> Result<PathBuf> {
    let number = list_full(path)?.last().map_or(1, |(number, _)| number + 1);
    let mut full = path.as_os_str().to_owned();
    full.push(format!(".{number}"));
    Ok(full.into())
}

/// Gives the file of a log the next number, and returns a new file of the log.
pub(super) fn rotate(path: &Path) -> Result<File> {
    let full = choose_next_name(path)?;
    fs::rename(path, &full).map_err(Error::file("rename", path))?;
    let folder = find_folder(path);
    let opened = open_locked(path).and_then(|file| {
        let folder_file = File::open(folder).map_err(Error::file("open", folder))?;
        folder_file.sync_all().map_err(Error::file("synchronise", folder))?;
        Ok(file)
    });
    if opened.is_err() {
        // The log goes on in the file that it has, under its usual name.
        let _ = fs::rename(&full, path);
    }
    opened
}

/// Returns the hash of the last line of a full file, or `None` if the file has none.
pub(super) fn read_last_hash(path: &Path) -> Result<Option<String>> {
    let mut file = File::open(path).map_err(Error::file("read", path))?;
    let length = file.metadata().map_err(Error::file("read", path))?.len();
    let mut end = Vec::new();
    file.seek(SeekFrom::Start(length.saturating_sub(MOST_LINE_BYTES)))
        .and_then(|_| file.read_to_end(&mut end))
        .map_err(Error::file("read", path))?;
    let text = String::from_utf8_lossy(&end);
    let line = text.strip_suffix("\"}\n").and_then(|text| text.rsplit('\n').next());
    Ok(line.and_then(|line| Some(line.rsplit_once(BEFORE_HASH)?.1.to_owned())))
}

fn find_folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}
