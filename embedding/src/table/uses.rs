//! Statistics of use: shows and clicks of a row, decayed when it is pushed.

use zillion_feature::Use;

use crate::shape::TableShape;
use zillion_rows::UseStatistics;

/// Adds what a row was used for, after what it had has decayed. To be called before a push is noted
/// in its metadata: the step of the last one says by how much.
#[inline(always)]
pub(crate) fn note_use(
    shape: &TableShape,
    statistics: &UseStatistics,
    companion: &mut [u32],
    now: Use,
    step: u32,
) {
    let before = shape.used(companion);
    let left = statistics.left(shape.meta(companion).last_step, step);
    let shows = before.shows * left + now.shows;
    let clicks = before.clicks * left + now.clicks;
    shape.set_used(companion, Use { shows, clicks });
}
