//! The watch on the pointers of a model in the registry.
//!
//! The followed pointer decides whether the model can be loaded, so its errors are errors. The
//! problems of other pointers are warnings: a stray folder or a damaged entry of a trial must not
//! keep a server from its version.
//!
//! The numbers of versions and moves have no gap. So a look at a bucket asks only for the next
//! number, and lists folders once in a while.

use std::collections::{BTreeMap, BTreeSet};

use zillion_registry::{Error, Model, PointerMove, VersionId};

use crate::config::Follow;

/// The number of looks at a bucket between two that list its folders.
const LOOKS_BETWEEN_LISTINGS: u64 = 16;

/// The answer of the registry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Look {
    /// The version that answers by default, if there is one.
    pub(super) current: Option<VersionId>,
    /// The version of each pointer, by the name of the pointer.
    pub(super) labels: BTreeMap<String, VersionId>,
}

/// The state of the pointers at the last look.
#[derive(Debug, Default)]
pub(super) struct Watch {
    moves: BTreeMap<String, PointerMove>,
    latest: Option<VersionId>,
    looks: u64,
    /// The present problems of pointers that are not followed. Each is logged once.
    warnings: BTreeSet<String>,
}

impl Watch {
    /// Reads the version to serve and all pointers.
    ///
    /// # Errors
    /// Returns an error if the followed pointer, or the number of the newest version, cannot be
    /// read.
    pub(super) fn look(&mut self, model: &Model, follow: &Follow) -> Result<Look, Error> {
        let is_listing =
            !model.store().is_remote() || self.looks.is_multiple_of(LOOKS_BETWEEN_LISTINGS);
        let followed = match follow {
            Follow::Latest => {
                self.latest = match self.latest.filter(|_| !is_listing) {
                    Some(known) => model.latest_since(known)?,
                    None => model.latest()?,
                };
                None
            }
            Follow::Pointer(pointer) => {
                self.read(model, pointer, is_listing)?;
                Some(pointer.as_str())
            }
        };
        self.looks += 1;
        self.read_others(model, followed, is_listing);
        let labels: BTreeMap<String, VersionId> =
            self.moves.iter().map(|(name, moved)| (name.clone(), moved.to.version)).collect();
        let current = match followed {
            None => self.latest,
            Some(pointer) => labels.get(pointer).copied(),
        };
        Ok(Look { current, labels })
    }

    /// Reads one pointer. A pointer that was never set, or was removed, is forgotten.
    fn read(&mut self, model: &Model, pointer: &str, is_listing: bool) -> Result<(), Error> {
        let moved = match self.moves.get(pointer).filter(|_| !is_listing) {
            Some(known) => model.pointer_since(pointer, known),
            None => model.pointer(pointer),
        };
        match moved {
            Ok(moved) => drop(self.moves.insert(pointer.to_owned(), moved)),
            Err(Error::NoPointer { .. }) => drop(self.moves.remove(pointer)),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Reads the pointers that are not followed. A pointer that cannot be read keeps its version.
    fn read_others(&mut self, model: &Model, followed: Option<&str>, is_listing: bool) {
        let mut problems = BTreeSet::new();
        let mut names: BTreeSet<String> = self.moves.keys().cloned().collect();
        if is_listing {
            match model.pointers() {
                Ok(listed) => {
                    names = listed.into_iter().collect();
                    self.moves
                        .retain(|name, _| names.contains(name) || followed == Some(name.as_str()));
                }
                Err(error) => _ = problems.insert(format!("cannot list the pointers: {error}")),
            }
        }
        for name in names.iter().filter(|&name| followed != Some(name.as_str())) {
            if let Err(error) = self.read(model, name, is_listing) {
                problems.insert(format!("pointer `{name}` is left out: {error}"));
            }
        }
        for problem in problems.difference(&self.warnings) {
            tracing::warn!(model = model.name(), "{problem}");
        }
        self.warnings = problems;
    }

    /// Returns the present problems of pointers that are not followed.
    #[cfg(test)]
    pub(super) fn warnings(&self) -> &BTreeSet<String> {
        &self.warnings
    }
}
