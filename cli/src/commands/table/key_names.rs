//! The ids from which a table's keys were made. An integer is computed from its key by inverting
//! the mixing function. The key of a missing value is computed from the name of its feature. A text
//! is found in files that contain it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use zillion_datatools::{ProfileSpec, profile};
use zillion_device::Workers;
use zillion_feature::{FeatureKey, FeatureSpec, TableId};
use zillion_trainer::Job;

use crate::ids::IdKind;

/// The known ids of the keys of one table.
pub(super) struct KeyNames {
    features: Vec<FeatureSpec>,
    texts: BTreeMap<FeatureKey, String>,
}

impl KeyNames {
    /// Collects the features that read a table.
    pub(super) fn of(job: &Job, table: &str) -> Self {
        let id = job.schema.tables.iter().position(|name| name == table);
        let id = id.map(|at| TableId(at as u16));
        let reads = |f: &&FeatureSpec| f.table() == id;
        let features = job.schema.features.iter().filter(reads).cloned().collect();
        Self { features, texts: BTreeMap::new() }
    }

    /// Searches files for the texts of the given keys. The files must have the format of the job's
    /// data.
    pub(super) fn find_texts(
        &mut self,
        job: &Job,
        files: &[PathBuf],
        keys: impl Iterator<Item = FeatureKey>,
        workers: &Workers,
    ) -> Result<()> {
        let look = ProfileSpec { wanted: keys.collect(), ..ProfileSpec::default() };
        self.texts.append(&mut profile(&job.data, files, &look, workers)?.texts);
        Ok(())
    }

    /// Returns the id from which a key was made, or `None` if it is not known.
    pub(super) fn name(&self, key: FeatureKey) -> Option<String> {
        let is_missing = |f: &&FeatureSpec| FeatureKey::missing(&f.name) == key;
        if let Some(feature) = self.features.iter().find(is_missing) {
            return Some(format!("no value of {}", feature.name));
        }
        if let Some(text) = self.texts.get(&key) {
            return Some(text.clone());
        }
        // If features of different kinds share the table, the feature of a key is unknown.
        let mut kinds = self.features.iter().map(|feature| IdKind::of(&feature.kind));
        let first = kinds.next()?;
        first.filter(|_| kinds.all(|kind| kind == first))?.recover(key)
    }

    /// Returns the keys that an id of the data may have in this table, the most likely key first.
    pub(super) fn possible_keys(&self, id: &str) -> Vec<FeatureKey> {
        let hex = id.strip_prefix("0x").filter(|digits| digits.len() == 16);
        if let Some(key) = hex.and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
            return vec![FeatureKey(key)];
        }
        let mut keys = Vec::new();
        for feature in &self.features {
            let key = IdKind::of(&feature.kind).and_then(|kind| kind.make_key(id));
            keys.extend(key.filter(|key| !keys.contains(key)));
        }
        keys
    }
}
