//! The names of folders below the store of the servers, as a client gives them.

use std::path::Path;

use zillion_store::is_bucket;

use crate::error::{Error, Result};
use crate::folder::{StoreFolder, check_plain};

/// The rules by which a path becomes a name below the store.
#[derive(Debug)]
pub(super) enum Names {
    /// The store is a folder. A path of this machine that lies below it has a name.
    Folder(StoreFolder),
    /// The store is a bucket. A relative path is a name.
    Bucket,
}

impl Names {
    /// Opens the rules of a store: a folder, or the URL of a bucket.
    pub(super) fn open(store: &Path) -> Result<Self> {
        match is_bucket(&store.to_string_lossy()) {
            true => Ok(Self::Bucket),
            false => StoreFolder::open(store).map(Self::Folder),
        }
    }

    /// Returns whether the store is a bucket.
    pub(super) fn is_bucket(&self) -> bool {
        matches!(self, Self::Bucket)
    }

    /// Returns the name of a folder below the store.
    ///
    /// # Errors
    /// Returns an error if the folder does not lie below the store.
    pub(super) fn name(&self, call: &'static str, folder: &Path) -> Result<String> {
        match self {
            Self::Folder(store) => store.name(call, folder),
            Self::Bucket => {
                let name = folder.to_str().unwrap_or_default();
                if folder.is_absolute() || name.is_empty() {
                    let reason = format!(
                        "the folder `{}` is on this machine, but the servers keep checkpoints in a \
                         bucket; begin from a version (`train.warm_start`), or resume the run",
                        folder.display()
                    );
                    return Err(Error::Argument { call, reason });
                }
                check_plain(call, name)?;
                Ok(name.to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_has_relative_names_only() {
        let names = Names::open(Path::new("s3://bucket/prefix")).unwrap();
        assert!(names.is_bucket());
        assert_eq!(names.name("restore", Path::new("a/checkpoints/b")).unwrap(), "a/checkpoints/b");
        for path in ["/a", "", "../a", "a/../../b"] {
            let error = names.name("restore", Path::new(path)).unwrap_err().to_string();
            assert!(error.contains("bucket") || error.contains("below the store"), "{error}");
        }
        let folder = tempfile::tempdir().unwrap();
        assert!(!Names::open(folder.path()).unwrap().is_bucket());
    }
}
