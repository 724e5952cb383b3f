//! The watch on the pointers of a model in the registry.
//!
//! The followed pointer decides whether the model can be loaded, so its errors are errors. The
//! problems of other pointers are warnings: a stray folder or a damaged entry of a trial must not
//! keep a server from its version.
//!
//! The numbers of versions and moves have no gap. So a look asks only for the next number, which
//! costs the same after any number of versions, and lists folders once in a while.

use std::collections::{BTreeMap, BTreeSet};

use zillion_registry::{Error, Model, PointerMove, Quarantine, VersionId};

use crate::config::Follow;

/// The number of looks between two that list the folders of versions and moves.
const LOOKS_BETWEEN_LISTINGS: u64 = 16;

/// The largest number of pointers that are read. The followed pointer and those of the traffic come
/// first, and the others in the order of their names.
const MAX_POINTERS: usize = 64;

/// The answer of the registry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Look {
    /// The version that answers by default, if there is one.
    pub(super) current: Option<VersionId>,
    /// The version of each pointer, by the name of the pointer.
    pub(super) labels: BTreeMap<String, VersionId>,
    /// The chain hash that the moves of pointers name for a version.
    pub(super) chains: BTreeMap<VersionId, String>,
}

/// The state of the pointers at the last look.
#[derive(Debug, Default)]
pub(super) struct Watch {
    moves: BTreeMap<String, PointerMove>,
    latest: Option<VersionId>,
    /// The quarantine at the last look, with what is known about the ancestors of versions.
    quarantine: Quarantine,
    looks: u64,
    /// The present problems of pointers that are not followed. Each is logged once.
    warnings: BTreeSet<String>,
    /// The errors of pointers that are not followed and that nobody has taken yet.
    refused: Vec<Error>,
}

impl Watch {
    /// Reads the version to serve and the other pointers, those in `first` before the others.
    ///
    /// # Errors
    /// Returns an error if the followed pointer, or the number of the newest version, cannot be
    /// read.
    pub(super) fn look(
        &mut self,
        model: &Model,
        follow: &Follow,
        first: &[&str],
    ) -> Result<Look, Error> {
        let is_listing = self.looks.is_multiple_of(LOOKS_BETWEEN_LISTINGS);
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
        self.read_others(model, followed, first, is_listing);
        let labels: BTreeMap<String, VersionId> =
            self.moves.iter().map(|(name, moved)| (name.clone(), moved.to.version)).collect();
        let current = match followed {
            None => self.newest_usable(model)?,
            Some(pointer) => labels.get(pointer).copied(),
        };
        let link = |moved: &PointerMove| (moved.to.version, moved.to.chain.clone());
        let mut chains: BTreeMap<VersionId, String> = self.moves.values().map(link).collect();
        // Another pointer does not decide about the version of the followed one.
        chains.extend(followed.and_then(|pointer| self.moves.get(pointer)).map(link));
        Ok(Look { current, labels, chains })
    }

    /// Returns the newest version that is not in quarantine by the last moves of the pointers. A
    /// base that only repeats an earlier version is passed over.
    fn newest_usable(&mut self, model: &Model) -> Result<Option<VersionId>, Error> {
        let versions: BTreeSet<VersionId> =
            self.moves.values().flat_map(|moved| moved.quarantined.iter().copied()).collect();
        if *self.quarantine.versions() != versions {
            self.quarantine = Quarantine::of(versions);
        }
        match self.latest {
            Some(latest) => self.quarantine.newest_usable(model, latest),
            None => Ok(None),
        }
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
    fn read_others(
        &mut self,
        model: &Model,
        followed: Option<&str>,
        first: &[&str],
        is_listing: bool,
    ) {
        let mut problems = BTreeSet::new();
        let mut names: BTreeSet<String> = self.moves.keys().cloned().collect();
        // The pointers of a folder of this machine are few names, which cost less than a request.
        if is_listing || !model.store().is_remote() {
            match model.pointers() {
                Ok(listed) => {
                    names = choose_pointers(listed, followed, first, &mut problems);
                    self.moves
                        .retain(|name, _| names.contains(name) || followed == Some(name.as_str()));
                }
                Err(error) => _ = problems.insert(format!("cannot list the pointers: {error}")),
            }
        }
        for name in names.iter().filter(|&name| followed != Some(name.as_str())) {
            if let Err(error) = self.read(model, name, is_listing) {
                let problem = format!("pointer `{name}` is left out: {error}");
                if !self.warnings.contains(&problem) {
                    self.refused.push(error);
                }
                problems.insert(problem);
            }
        }
        for problem in problems.difference(&self.warnings) {
            tracing::warn!(model = model.name(), "{problem}");
        }
        self.warnings = problems;
    }

    /// Takes the errors of pointers that are not followed, each once.
    pub(super) fn take_refused(&mut self) -> Vec<Error> {
        std::mem::take(&mut self.refused)
    }

    /// Returns the present problems of pointers that are not followed.
    #[cfg(test)]
    pub(super) fn warnings(&self) -> &BTreeSet<String> {
        &self.warnings
    }
}

/// Chooses the pointers to read, of which a bucket can have any number.
fn choose_pointers(
    listed: Vec<String>,
    followed: Option<&str>,
    first: &[&str],
    problems: &mut BTreeSet<String>,
) -> BTreeSet<String> {
    let is_first = |name: &str| followed == Some(name) || first.contains(&name);
    let (mut chosen, others): (Vec<String>, Vec<String>) =
        listed.into_iter().partition(|name| is_first(name));
    let room = MAX_POINTERS.saturating_sub(chosen.len());
    if others.len() > room {
        problems.insert(format!(
            "the model has more than {MAX_POINTERS} pointers, of which the last by name are left out; remove \
             pointers that nobody uses"
        ));
    }
    chosen.extend(others.into_iter().take(room));
    chosen.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pointers_of_the_traffic_come_before_the_others() {
        let listed: Vec<String> = (0..200).map(|number| format!("p{number:03}")).collect();
        let mut problems = BTreeSet::new();
        let first = ["p150", "none"];
        let chosen = choose_pointers(listed.clone(), Some("p199"), &first, &mut problems);
        assert_eq!(chosen.len(), MAX_POINTERS);
        assert!(["p000", "p061", "p150", "p199"].iter().all(|&name| chosen.contains(name)));
        assert_eq!(problems.len(), 1);
        problems.clear();
        let few = listed[..MAX_POINTERS].to_vec();
        assert_eq!(choose_pointers(few, None, &[], &mut problems).len(), MAX_POINTERS);
        assert!(problems.is_empty());
    }
}
