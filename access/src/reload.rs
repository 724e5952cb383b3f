//! Values that are read from files, and are read again when the files have changed.
//!
//! # Concurrency
//! A reader gets a reference-counted value, and can use it for any length of time. Only one thread
//! at a time reads the files again.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

/// The size and the modification time of each file, by which a change is detected. `None` if the
/// file does not exist.
type Stamps = Vec<Option<(u64, SystemTime)>>;

/// The result of reading a value: the value, and the paths of the files that contain it.
type Loaded<T, E> = Result<(T, Vec<PathBuf>), E>;

/// A value that is read again when its files have changed.
pub struct Reloading<T, E> {
    load: Box<dyn Fn() -> Loaded<T, E> + Send + Sync>,
    value: RwLock<Arc<T>>,
    seen: Mutex<(Vec<PathBuf>, Stamps)>,
}

impl<T, E> std::fmt::Debug for Reloading<T, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reloading").finish_non_exhaustive()
    }
}

impl<T, E> Reloading<T, E> {
    /// Reads the value for the first time.
    ///
    /// # Errors
    /// Returns the error of `load`.
    pub fn new(load: impl Fn() -> Loaded<T, E> + Send + Sync + 'static) -> Result<Self, E> {
        let (value, files) = load()?;
        let stamps = stamps(&files);
        Ok(Self {
            load: Box::new(load),
            value: RwLock::new(Arc::new(value)),
            seen: Mutex::new((files, stamps)),
        })
    }

    /// Returns the present value.
    pub fn get(&self) -> Arc<T> {
        self.value.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the value again if its files have changed since the last call. Returns whether they
    /// have changed. If the new files are not valid, the present value stays, and a further call
    /// does not report this change again.
    ///
    /// # Errors
    /// Returns the error of `load`.
    pub fn refresh(&self) -> Result<bool, E> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = stamps(&seen.0);
        if now == seen.1 {
            return Ok(false);
        }
        seen.1 = now;
        let (value, files) = (self.load)()?;
        let stamps = stamps(&files);
        *seen = (files, stamps);
        *self.value.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(value);
        Ok(true)
    }
}

fn stamps(files: &[PathBuf]) -> Stamps {
    let stamp = |path: &PathBuf| {
        let about = fs::metadata(path).ok()?;
        Some((about.len(), about.modified().ok()?))
    };
    files.iter().map(stamp).collect()
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
}
