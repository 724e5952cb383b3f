//! Values that are read from files, and are read again when the files have changed.
//!
//! # Concurrency
//! A reader gets a reference-counted value, and can use it for any length of time. Only one thread
//! at a time reads the files again.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// The largest number of times that changing files are read before their value is taken.
const MOST_TRIES: usize = 3;

/// The facts by which a change of a file is recognised: its device, inode and size, and the
/// seconds and nanoseconds of its last write and of its last change.
type Stamp = (u64, u64, u64, [i64; 4]);

/// The stamps of files. A file that is not there has none.
type Stamps = Vec<Option<Stamp>>;

/// The result of reading a value: the value, and the paths of the files that contain it.
type Loaded<T, E> = Result<(T, Vec<PathBuf>), E>;

/// A value that is read again when its files have changed.
pub struct Reloading<T, E> {
    load: Box<dyn Fn() -> Loaded<T, E> + Send + Sync>,
    value: RwLock<Arc<T>>,
    seen: Mutex<Seen>,
}

/// The files of the present value.
struct Seen {
    files: Vec<PathBuf>,
    /// The stamps that the files had before they were read.
    stamps: Stamps,
    /// The error of the last attempt to read changed files.
    failure: Option<String>,
}

impl<T, E> fmt::Debug for Reloading<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloading").finish_non_exhaustive()
    }
}

impl<T, E: fmt::Display> Reloading<T, E> {
    /// Reads the value for the first time.
    ///
    /// # Errors
    /// Returns the error of `load`.
    pub fn new(load: impl Fn() -> Loaded<T, E> + Send + Sync + 'static) -> Result<Self, E> {
        let (value, seen) = load_settled(&load, Vec::new())?;
        Ok(Self {
            load: Box::new(load),
            value: RwLock::new(Arc::new(value)),
            seen: Mutex::new(seen),
        })
    }

    /// Returns the present value.
    pub fn get(&self) -> Arc<T> {
        self.value.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the value again if its files changed since they were read last, and returns whether it
    /// was replaced. The present value stays where the files are not valid. They are then read at
    /// each call, because a file that they name may come later, and an error is returned again only
    /// if its text changes.
    ///
    /// # Errors
    /// Returns the error of `load`.
    pub fn refresh(&self) -> Result<bool, E> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.failure.is_none() && stamp(&seen.files) == seen.stamps {
            return Ok(false);
        }
        match load_settled(&self.load, seen.files.clone()) {
            Ok((value, now)) => {
                *seen = now;
                *self.value.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(value);
                Ok(true)
            }
            Err(error) => {
                let text = Some(error.to_string());
                if seen.failure == text {
                    return Ok(false);
                }
                seen.failure = text;
                Err(error)
            }
        }
    }
}

/// Reads the value until its files were the same before and after. `files` are those that it came
/// from last. Where they never rest, their stamps are left out, so that they are read again.
fn load_settled<T, E>(
    load: &dyn Fn() -> Loaded<T, E>,
    mut files: Vec<PathBuf>,
) -> Result<(T, Seen), E> {
    let mut tries = 0;
    loop {
        let before = stamp(&files);
        let (value, found) = load()?;
        tries += 1;
        let is_settled = found == files && stamp(&files) == before;
        files = found;
        if is_settled || tries == MOST_TRIES {
            let stamps = if is_settled { before } else { Vec::new() };
            return Ok((value, Seen { files, stamps, failure: None }));
        }
    }
}

fn stamp(files: &[PathBuf]) -> Stamps {
    let of = |path: &PathBuf| {
        let about = fs::metadata(path).ok()?;
        let times = [about.mtime(), about.mtime_nsec(), about.ctime(), about.ctime_nsec()];
        Some((about.dev(), about.ino(), about.len(), times))
    };
    files.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_read_once_and_a_bad_change_keeps_the_value() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("number");
        fs::write(&path, "1").unwrap();
        let at = path.clone();
        let value = Reloading::new(move || {
            let text = fs::read_to_string(&at).map_err(|e| e.to_string())?;
            let number: u32 = text.parse().map_err(|_| format!("{text} is not a number"))?;
            Ok::<_, String>((number, vec![at.clone()]))
        })
        .unwrap();
        assert_eq!((*value.get(), value.refresh()), (1, Ok(false)));
        fs::write(&path, "22").unwrap();
        assert_eq!((value.refresh(), *value.get()), (Ok(true), 22));
        fs::write(&path, "bad").unwrap();
        assert!(value.refresh().is_err());
        assert_eq!((value.refresh(), *value.get()), (Ok(false), 22));
        fs::write(&path, "4444").unwrap();
        assert_eq!((value.refresh(), *value.get()), (Ok(true), 4444));
    }

    /// Returns a reader of the text of `path`, which makes a change after each of the first reads.
    fn reader(path: PathBuf, changes: Vec<&'static str>) -> Reloading<String, String> {
        let changes = Mutex::new(changes.into_iter());
        let load = move || {
            let text = fs::read_to_string(&path).map_err(|e| e.to_string())?;
            if let Some(next) = changes.lock().unwrap().next() {
                // Another file takes the place of the file, as programs that renew keys do it.
                let other = path.with_extension("new");
                fs::write(&other, next).unwrap();
                fs::rename(&other, &path).unwrap();
            }
            Ok((text, vec![path.clone()]))
        };
        Reloading::new(load).unwrap()
    }

    #[test]
    fn a_change_while_files_are_read_is_not_missed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("value");
        fs::write(&path, "a").unwrap();
        let value = reader(path.clone(), vec!["b"]);
        assert_eq!((value.get().as_str(), value.refresh()), ("b", Ok(false)));
        fs::write(&path, "a").unwrap();
        let value = reader(path, vec!["b", "c", "d", "e"]);
        // The files change while the server starts, and it goes on with the last that it read.
        assert_eq!(value.get().as_str(), "c");
        assert_eq!((value.refresh(), value.get().as_str()), (Ok(true), "e"));
        assert_eq!(value.refresh(), Ok(false));
    }

    #[test]
    fn a_file_that_comes_after_an_error_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("first"), folder.path().join("second"));
        fs::write(&first, "alone").unwrap();
        let (named, later) = (first.clone(), second.clone());
        let value = Reloading::new(move || {
            let text = fs::read_to_string(&named).map_err(|e| e.to_string())?;
            if text == "alone" {
                return Ok::<_, String>((text, vec![named.clone()]));
            }
            let text = fs::read_to_string(&later).map_err(|e| e.to_string())?;
            Ok((text, vec![named.clone(), later.clone()]))
        })
        .unwrap();
        fs::write(&first, "names the second").unwrap();
        assert!(value.refresh().is_err());
        // The error is said once.
        assert_eq!((value.refresh(), value.get().as_str()), (Ok(false), "alone"));
        fs::write(&second, "the second").unwrap();
        assert_eq!((value.refresh(), value.get().as_str()), (Ok(true), "the second"));
        assert_eq!(value.refresh(), Ok(false));
    }
}
