//! The kinds of problems with the versions of a model.
//!
//! The reason of a problem may name folders, buckets and the origin of credentials, so that callers
//! see its kind instead.

use zillion_registry::Error as RegistryError;
use zillion_scorer::Error;
use zillion_store::Error as StoreError;

/// The kind of a problem with the versions of a model, which every caller may see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProblemKind {
    /// The newest version is damaged, or this server cannot use it.
    #[default]
    VersionRefused,
    /// The registry cannot be read.
    RegistryUnreachable,
    /// No version was published, or the followed pointer was never set.
    NoVersion,
}

impl ProblemKind {
    /// Returns the kind of a failure to load a version.
    pub(crate) fn of(error: &Error) -> Self {
        let Error::Registry(error) = error else { return Self::VersionRefused };
        match error {
            RegistryError::NoModel { .. }
            | RegistryError::NoVersion { .. }
            | RegistryError::NoPointer { .. } => Self::NoVersion,
            RegistryError::Store(StoreError::Missing { .. }) => Self::VersionRefused,
            RegistryError::Store(_) => Self::RegistryUnreachable,
            _ => Self::VersionRefused,
        }
    }

    /// Returns the code of the kind.
    pub fn code(self) -> &'static str {
        match self {
            Self::VersionRefused => "version_refused",
            Self::RegistryUnreachable => "registry_unreachable",
            Self::NoVersion => "no_version",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_has_a_code_without_detail() {
        let store = |error: StoreError| Error::Registry(RegistryError::Store(error));
        let text = || "s3://bucket/secret".to_owned();
        for (error, code) in [
            (Error::Registry(RegistryError::NoPointer { pointer: text() }), "no_version"),
            (Error::Registry(RegistryError::NoModel { model: text() }), "no_version"),
            (store(StoreError::StoreOpen { url: text(), reason: text() }), "registry_unreachable"),
            (store(StoreError::Missing { path: text() }), "version_refused"),
            (Error::Refused(text()), "version_refused"),
        ] {
            assert_eq!(ProblemKind::of(&error).code(), code, "{error}");
        }
    }
}
