//! The items of a loaded version, and the user's tower with which they are retrieved.
//!
//! The vectors of the items are a file of the version ([`ItemVectors`]), so the user's tower and
//! the items are always of one version. A later version of the same training whose items have not
//! changed shares them.

use std::time::Instant;

use zillion_device::Workers;
use zillion_feature::{Batch, Encoder, RawColumns};
use zillion_rows::layer::Throttle;

use crate::error::{Error, Result};
use crate::items::ItemVectors;
use crate::late::LateCheck;
use crate::nearest::{Choice, Found, find_near, find_nearest};
use crate::rounded_items::RoundedItems;
use crate::scorer::Scorer;
use crate::scratch::{Scratch, ScratchPool, request_size};

/// The number of items below which a search is exact unless a request asks for something else. A
/// search of so many items takes about a millisecond.
pub const EXACT_BELOW: usize = 100_000;

/// The items that a version can retrieve.
#[derive(Debug)]
pub struct Retrievable {
    items: ItemVectors,
    /// The vectors of `items`, rounded for the first look of an approximate search.
    rounded: RoundedItems,
    /// The encoder of the inputs of the user's tower.
    encoder: Encoder,
    /// The buffers of the user's tower.
    scratches: ScratchPool,
}

/// The items that were retrieved for a user.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Retrieved {
    /// The items, the best first.
    pub found: Vec<Found>,
    /// The number of keys that a side table does not contain, summed over all side tables.
    pub missing_side_rows: u64,
    /// Whether the search was exact, so that no better item is missing.
    pub is_exact: bool,
}

impl Retrievable {
    /// Prepares items for searches. `encoder` is the encoder of the version, and `scorer` has the
    /// user's tower of its graph.
    ///
    /// # Errors
    /// Returns an error if the items name a feature that the version does not have, or if their
    /// vectors have another length than those of the user's tower.
    pub(crate) fn new(
        items: ItemVectors,
        encoder: &Encoder,
        scorer: Scorer,
        pace: &mut dyn Throttle,
    ) -> Result<Self> {
        let features = &encoder.schema().features;
        if items.user_features().len() > features.len() {
            return Err(Error::Items("they name more features than the version has".to_owned()));
        }
        let is_known = |name: &&String| features.iter().any(|feature| feature.name == **name);
        if let Some(name) = items.user_features().iter().find(|name| !is_known(name)) {
            let name: String = name.chars().take(100).collect();
            return Err(Error::Items(format!(
                "they name the feature `{name}`, which the version does not have"
            )));
        }
        let mut names: Vec<&String> = items.user_features().iter().collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::Items(format!("they name the feature `{}` twice", pair[0])));
        }
        let floats = scorer.output_columns();
        if floats != Some(items.dim()) {
            return Err(Error::Items(format!(
                "they have {} floats, but the vectors of users have {}; publish the version again",
                items.dim(),
                floats.unwrap_or_default()
            )));
        }
        let encoder = encoder.for_features(items.user_features());
        let scratches = ScratchPool::default();
        // The program was planned to find out whether the graph has the tower. It is not thrown
        // away.
        scratches.put(Scratch::new(scorer), 0, Instant::now());
        let rounded = RoundedItems::new(&items, pace)?;
        Ok(Self { items, rounded, encoder, scratches })
    }

    /// Returns the vectors of the items.
    pub fn items(&self) -> &ItemVectors {
        &self.items
    }

    /// Returns the encoder of the inputs of the user's tower.
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// Returns the number of bytes that the items need in memory, near enough for a gauge.
    pub fn bytes(&self) -> usize {
        self.items.bytes() + self.rounded.bytes()
    }

    /// Returns the `k` items with the highest scores for the vector of a user, the best first, and
    /// whether the search was exact. `exact` asks for an exact or an approximate search; if it is
    /// `None`, the search is exact below [`EXACT_BELOW`] items. A search among items that `choice`
    /// names is always exact.
    pub(crate) fn find(
        &self,
        user: &[f32],
        k: usize,
        exact: Option<bool>,
        choice: Choice,
        workers: &Workers,
        is_late: Option<LateCheck<'_>>,
    ) -> Result<(Vec<Found>, bool)> {
        let is_exact = choice.only.is_some() || exact.unwrap_or(self.items.len() < EXACT_BELOW);
        let found = match is_exact {
            true => find_nearest(&self.items, user, k, choice, workers, is_late),
            false => find_near(&self.items, &self.rounded, user, k, choice, workers, is_late),
        };
        Ok((found?, is_exact))
    }

    /// Encodes the inputs of one user.
    pub(crate) fn encode(&self, columns: &RawColumns<'_>) -> Result<Batch> {
        Ok(self.encoder.encode(1, columns)?)
    }

    pub(crate) fn take_scratch(&self) -> Option<Scratch> {
        self.scratches.take()
    }

    pub(crate) fn put_scratch(&self, scratch: Scratch, batch: &Batch) {
        self.scratches.put(scratch, request_size(batch), Instant::now());
    }

    pub(crate) fn release_idle(&self) {
        self.scratches.release_idle(Instant::now());
    }
}
