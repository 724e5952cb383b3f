//! Statistics of use: shows and clicks of a row, decayed when it is pushed.

use zillion_device::slab::Slab;
use zillion_feature::Use;

use super::DROPPED;
use crate::life::UseStatistics;
use crate::shape::TableShape;

/// Adds what the rows of a block were used for, after what they had has decayed. To be called before a push is
/// noted in their metadata: the step of the last one says by how much.
pub(super) fn note_uses(
    shape: &TableShape,
    statistics: &UseStatistics,
    companion: &mut Slab<u32>,
    rows: &[u32],
    uses: &[Use],
    step: u32,
) {
    for (&row, now) in rows.iter().zip(uses).filter(|(row, _)| **row != DROPPED) {
        let companion = companion.row_mut(row);
        let before = shape.used(companion);
        let left = statistics.left(shape.meta(companion).last_step, step);
        let shows = before.shows * left + now.shows;
        let clicks = before.clicks * left + now.clicks;
        shape.set_used(companion, Use { shows, clicks });
    }
}
