//! The places where a run over streams has published: the models, and the pointers that it moved.
//!
//! The registry does not tell this for ever. Versions and moves of pointers are removed, and other
//! runs publish. So the run writes it down in its folder, after its first publication there.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use zillion_device::{DeviceError, Files};
use zillion_registry::VersionId;

use crate::error::{Error, Result};

/// The name of the file in the folder of a run.
const FILE: &str = "publications.json";

/// A model in which a run has published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    registry: String,
    model: String,
    /// The number of the first version of the run.
    first: VersionId,
    /// The pointers that the run has moved.
    pointers: Vec<String>,
}

/// The places where a run has published.
#[derive(Debug)]
pub(super) struct Places {
    files: Files,
    path: PathBuf,
    places: Vec<Place>,
}

impl Places {
    /// Reads the places from the folder of a run. A run that has published nothing has none.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub(super) fn read(run: &Path, files: &Files) -> Result<Self> {
        let path = run.join(FILE);
        let places = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| Error::Checkpoint {
                path: path.clone(),
                problem: format!(
                    "the list of publications does not parse ({error}); restore the file, or \
                     remove it if no other run publishes to the same pointer"
                ),
            })?,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(Error::io("cannot read the publications", &path)(error)),
        };
        Ok(Self { files: files.clone(), path, places })
    }

    /// Returns the number of the first version of the run in a model.
    pub(super) fn first(&self, registry: &str, model: &str) -> Option<VersionId> {
        self.find(registry, model).map(|place| place.first)
    }

    /// Returns whether the run has moved a pointer of a model.
    pub(super) fn has_moved(&self, registry: &str, model: &str, pointer: &str) -> bool {
        let place = self.find(registry, model);
        place.is_some_and(|place| place.pointers.iter().any(|moved| moved == pointer))
    }

    /// Writes down that a version of the run exists in a model, and that the run has moved a
    /// pointer to it. Writes nothing if both were known.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub(super) fn note(
        &mut self,
        (registry, model): (&str, &str),
        version: VersionId,
        pointer: Option<&str>,
    ) -> Result<()> {
        let pointer = pointer.filter(|pointer| !self.has_moved(registry, model, pointer));
        let is_known = self.find(registry, model).is_some();
        if is_known && pointer.is_none() {
            return Ok(());
        }
        let mut places = self.places.clone();
        if !is_known {
            places.push(Place {
                registry: registry.to_owned(),
                model: model.to_owned(),
                first: version,
                pointers: Vec::new(),
            });
        }
        let is_here = |place: &&mut Place| place.registry == registry && place.model == model;
        for place in places.iter_mut().filter(is_here) {
            place.pointers.extend(pointer.map(str::to_owned));
        }
        let bytes = serde_json::to_vec(&places)
            .map_err(|error| DeviceError::file("write", &self.path, std::io::Error::from(error)))?;
        self.files.write_bytes(&self.path, &bytes)?;
        self.places = places;
        Ok(())
    }

    fn find(&self, registry: &str, model: &str) -> Option<&Place> {
        self.places.iter().find(|place| place.registry == registry && place.model == model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_again() {
        let run = tempfile::tempdir().unwrap();
        let files = Files::new().scratch();
        let read = || Places::read(run.path(), &files).unwrap();
        let mut places = read();
        assert_eq!(places.first("r", "m"), None);
        places.note(("r", "m"), VersionId(3), None).unwrap();
        places.note(("r", "m"), VersionId(4), Some("stable")).unwrap();
        places.note(("r", "other"), VersionId(9), Some("new")).unwrap();
        for places in [&places, &read()] {
            assert_eq!(places.first("r", "m"), Some(VersionId(3)));
            assert_eq!(places.first("r", "other"), Some(VersionId(9)));
            assert_eq!(places.first("elsewhere", "m"), None);
            assert!(places.has_moved("r", "m", "stable") && !places.has_moved("r", "m", "new"));
            assert!(!places.has_moved("r", "other", "stable"));
        }
        // What is known is not written again.
        std::fs::remove_file(run.path().join(FILE)).unwrap();
        places.note(("r", "m"), VersionId(5), Some("stable")).unwrap();
        assert!(!run.path().join(FILE).exists());
        std::fs::write(run.path().join(FILE), "[{").unwrap();
        let error = Places::read(run.path(), &files).unwrap_err().to_string();
        assert!(error.contains("publications.json") && error.contains("restore"), "{error}");
    }
}
