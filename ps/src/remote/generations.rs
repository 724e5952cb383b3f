//! The log of the generations of a run: small numbered objects in the store, each created once.
//!
//! The log decides which of two processes begins a generation, and is the record of who served the
//! run when.

use serde::{Deserialize, Serialize};
use zillion_device::Files;
use zillion_store::Store;

use super::options::RemoteOptions;
use crate::error::{Result, start_error};

/// A generation in the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    /// The number of the generation.
    pub(super) generation: u64,
    /// The name of the run.
    pub(super) run: String,
    /// The BLAKE3 of the job.
    pub(super) job: String,
    /// The number of trainers.
    pub(super) trainers: usize,
    /// The address of each server, and the number that it drew when it started.
    pub(super) servers: Vec<(String, u64)>,
    /// The bounds of the slots of the servers: one more than there are servers.
    pub(super) bounds: Vec<usize>,
}

/// The log of the generations of a run.
pub(super) struct Generations {
    store: Store,
    folder: String,
}

impl Generations {
    pub(super) fn open(options: &RemoteOptions) -> Result<Self> {
        let url = options.store.to_string_lossy();
        let store = Store::create_at(&url, Files::new())
            .map_err(|e| start_error(format!("cannot open the store: {e}")))?;
        // The name of a run can have any characters.
        let run = blake3::hash(options.run.as_bytes()).to_hex();
        Ok(Self { store, folder: format!("ps/generations/{}", &run[..32]) })
    }

    /// Returns the number of the newest generation, or 0 if there is none.
    pub(super) fn newest(&self) -> Result<u64> {
        let listing = self
            .store
            .list(&self.folder)
            .map_err(|e| start_error(format!("cannot read the log of generations: {e}")))?;
        let number = |name: &str| name.strip_suffix(".json")?.parse().ok();
        Ok(listing.objects.iter().filter_map(|object| number(&object.name)).max().unwrap_or(0))
    }

    /// Adds a generation.
    ///
    /// # Errors
    /// Returns an error if another process has added the same generation.
    pub(super) fn append(&self, entry: &Entry) -> Result<()> {
        let name = format!("{}/{:020}.json", self.folder, entry.generation);
        let bytes = serde_json::to_vec_pretty(entry)
            .expect("an entry is plain data with text keys, which JSON can always hold");
        let created = self
            .store
            .create(&name, bytes.into())
            .map_err(|e| start_error(format!("cannot write the log of generations: {e}")))?;
        if created {
            return Ok(());
        }
        Err(start_error(format!(
            "another process has begun generation {} of the run `{}`; only one process may be \
             trainer 0",
            entry.generation, entry.run
        )))
    }
}
