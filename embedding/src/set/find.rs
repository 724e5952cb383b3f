//! The data of live tables about one key, for people.

use zillion_feature::{FeatureKey, TableId, Use};

use crate::error::Result;
use crate::set::TableSet;
use crate::view::Waiting;

/// The data of a live table about one key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LiveKey {
    /// The row of the key; `None` if the key has no row.
    pub row: Option<LiveRow>,
    /// The count of the key while it waits for a row; `None` if there is no count.
    pub waiting: Option<Waiting>,
}

/// A row of a live table.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveRow {
    /// The weights of all segments. A narrow row has only the weights of its first segments.
    pub weights: Vec<f32>,
    /// The optimizer state of these segments.
    pub state: Vec<f32>,
    /// The number of pushes.
    pub count: u32,
    /// The step of the last push.
    pub last_step: u32,
    /// The dirty epoch in which the row changed last.
    pub dirty_epoch: u32,
    /// The shows and clicks of the row; zero if the table keeps no statistics of use.
    pub used: Use,
    /// Whether the row is narrow.
    pub is_narrow: bool,
}

impl TableSet {
    /// Returns the data of a table about a key. Changes nothing. A key of a slot that this set does
    /// not own has no data.
    ///
    /// # Errors
    /// Returns an error if the table is unknown, or if a row on disk cannot be read.
    pub fn find(&self, table: TableId, key: FeatureKey) -> Result<LiveKey> {
        self.shape(table)?;
        if !self.owned(table).contains(&key.slot()) {
            return Ok(LiveKey::default());
        }
        let owner = self.owner(table.index(), key.slot());
        let mut found = LiveKey::default();
        if let Some(entry) = owner.index.get(key) {
            owner.for_each_row(&[(key, entry)], |_, stored| {
                let meta = self.generations.stored(stored).meta;
                found.row = Some(LiveRow {
                    weights: stored.weights.to_floats().into_owned(),
                    state: stored.state.to_vec(),
                    count: meta.count,
                    last_step: meta.last_step,
                    dirty_epoch: meta.dirty_epoch,
                    used: stored.used,
                    is_narrow: stored.is_narrow,
                });
            })?;
        }
        found.waiting = owner
            .counts()
            .and_then(|counts| counts.find(key))
            .map(|candidate| Waiting { count: candidate.count, last_step: candidate.last_step });
        Ok(found)
    }
}
