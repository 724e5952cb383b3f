//! The log of the generations of a run in the store: small numbered objects, each created once.

use zillion_device::Files;
use zillion_store::Store;

use crate::error::{Result, start_error};
use crate::map::{ClusterMap, MapEntry, entry_name, read_entry, run_hash};

/// The log of generations in the store.
#[derive(Debug)]
pub(super) struct Generations {
    store: Store,
}

impl Generations {
    /// Opens the log in a folder or a bucket.
    pub(super) fn open(url: &str) -> Result<Self> {
        let store = Store::create_at(url, Files::new())
            .map_err(|e| start_error(format!("cannot open the store: {e}")))?;
        Ok(Self { store })
    }
}

/// Returns the name of the folder of a run.
fn folder(run: &str) -> String {
    format!("ps/generations/{}", run_hash(run))
}

/// Returns the name of the object of an entry.
fn object(run: &str, number: u64) -> String {
    format!("{}/{}.json", folder(run), entry_name(number))
}

impl ClusterMap for Generations {
    fn newest(&self, run: &str) -> Result<u64> {
        let listing = self
            .store
            .list(&folder(run))
            .map_err(|e| start_error(format!("cannot read the log of generations: {e}")))?;
        let number = |name: &str| name.strip_suffix(".json")?.parse().ok();
        Ok(listing.objects.iter().filter_map(|object| number(&object.name)).max().unwrap_or(0))
    }

    fn entry(&self, run: &str, number: u64) -> Result<Option<MapEntry>> {
        let name = object(run, number);
        let bytes = self
            .store
            .get(&name)
            .map_err(|e| start_error(format!("cannot read the log of generations: {e}")))?;
        bytes.map(|bytes| read_entry(&name, &bytes)).transpose()
    }

    fn create(&self, entry: &MapEntry) -> Result<bool> {
        let name = object(&entry.run, entry.generation);
        let created = self
            .store
            .create(&name, entry.to_bytes().into())
            .map_err(|e| start_error(format!("cannot write the log of generations: {e}")))?;
        // A call whose answer was lost may have created the entry.
        Ok(created || self.entry(&entry.run, entry.generation)?.as_ref() == Some(entry))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_store_is_a_home_of_the_map() {
        let folder = tempfile::tempdir().unwrap();
        let url = folder.path().to_str().unwrap().to_owned();
        crate::conformance::check_map(&|| Arc::new(Generations::open(&url).unwrap()));
    }

    #[test]
    fn entries_of_earlier_programs_are_read() {
        let text = r#"{"generation": 3, "run": "r", "job": "j", "trainers": 1, "servers": [],
                       "bounds": [0]}"#;
        let entry = read_entry("r/3", text.as_bytes()).unwrap();
        assert_eq!((entry.generation, entry.process), (3, 0));
        let later = text.replace("\"run\"", "\"kind\": \"move\", \"run\"");
        let error = read_entry("r/3", later.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("`r/3`") && error.contains("same version"), "{error}");
    }
}
