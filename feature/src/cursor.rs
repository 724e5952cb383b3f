//! The position of training in the order of rows.

use serde::{Deserialize, Serialize};

/// The position of training in the data: training has finished `row` rows of epoch `epoch`.
///
/// The order of rows is a pure function of the seed, the epoch and the list of files. Therefore a
/// checkpoint needs only these two numbers to continue exactly at this position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cursor {
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// The number of rows of this epoch that have been consumed.
    pub row: u64,
}
