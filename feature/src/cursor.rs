//! A position in the order of rows.

use serde::{Deserialize, Serialize};

/// The position of training in the data: `row` rows of epoch `epoch` are done.
///
/// The order of rows is a pure function of (seed, epoch, file list), so these two numbers are all
/// that a checkpoint needs to go on exactly where it stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cursor {
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// The number of rows of this epoch that have been consumed.
    pub row: u64,
}
