//! The folder that servers and trainers share, and the names below a store that clients may give.
//! Clients name files only relative to the store.

use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result, start_error};

/// The folder of the store.
#[derive(Clone, Debug)]
pub(crate) struct StoreFolder {
    root: PathBuf,
}

impl StoreFolder {
    /// Opens the folder.
    ///
    /// # Errors
    /// Returns an error if there is no such folder.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let root = std::fs::canonicalize(path).map_err(|e| {
            start_error(format!(
                "cannot open the store `{}`: {e}; give an existing folder that servers and \
                 trainers share",
                path.display()
            ))
        })?;
        if !root.is_dir() {
            return Err(start_error(format!(
                "the store `{}` is not a folder; give a folder that servers and trainers share",
                path.display()
            )));
        }
        Ok(Self { root })
    }

    /// Returns the path of a folder that a client has named.
    ///
    /// # Errors
    /// Returns an error if the name could lead out of the store.
    pub(crate) fn path(&self, call: &'static str, name: &str) -> Result<PathBuf> {
        check_plain(call, name)?;
        Ok(self.root.join(name))
    }

    /// Returns the name of a folder relative to the store.
    ///
    /// # Errors
    /// Returns an error if the folder is not below the store.
    pub(crate) fn name(&self, call: &'static str, path: &Path) -> Result<String> {
        let real = canonical(path);
        match real.strip_prefix(&self.root).map(Path::to_str) {
            Ok(Some(name)) if !name.is_empty() => Ok(name.to_owned()),
            _ => {
                let reason = format!(
                    "the folder `{}` is not below the store `{}`, which the servers share with the \
                     trainers; set `run.output` to a folder below `ps.store`",
                    path.display(),
                    self.root.display()
                );
                Err(Error::Argument { call, reason })
            }
        }
    }
}

/// Checks that a name which a client has given leads to a place below the store.
///
/// # Errors
/// Returns an error if the name could lead out of the store.
pub(crate) fn check_plain(call: &'static str, name: &str) -> Result<()> {
    let is_plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    if !name.is_empty() && is_plain {
        return Ok(());
    }
    let shown: String = name.chars().take(100).collect();
    let reason = format!(
        "`{shown}` is not a folder below the store of the servers; give a relative path without \
         `..`"
    );
    Err(Error::Argument { call, reason })
}

/// Returns the real path of a folder that may not exist yet.
fn canonical(path: &Path) -> PathBuf {
    if let Ok(real) = std::fs::canonicalize(path) {
        return real;
    }
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) if !parent.as_os_str().is_empty() => {
            canonical(parent).join(name)
        }
        _ => std::env::current_dir().unwrap_or_default().join(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_below_the_store() {
        let root = tempfile::tempdir().unwrap();
        let store = StoreFolder::open(root.path()).unwrap();
        for name in ["", "..", "a/../b", "/etc", "a/./../..", "../x"] {
            let error = store.path("restore", name).unwrap_err().to_string();
            assert!(error.contains("below the store"), "{error}");
        }
        assert!(store.path("restore", "runs/a").unwrap().starts_with(&store.root));
        let below = root.path().join("runs/new");
        assert_eq!(store.name("restore", &below).unwrap(), "runs/new");
        assert!(store.name("restore", Path::new("/")).is_err());
        assert!(store.name("restore", root.path()).is_err());
    }
}
