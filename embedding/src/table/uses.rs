//! The statistics of use: the shows and clicks of a row. They decay when the row is pushed.

use zillion_feature::Use;

use crate::shape::TableShape;
use zillion_rows::UseStatistics;

/// Decays the statistics of a row and adds its new use. The caller must call this function before
/// it records the push in the row's metadata, because the decay depends on the time of the previous
/// push. `time` is in the unit of the table.
#[inline(always)]
pub(crate) fn note_use(
    shape: &TableShape,
    statistics: &UseStatistics,
    companion: &mut [u32],
    now: Use,
    time: u32,
) {
    let before = shape.used(companion);
    let left = statistics.left(shape.meta(companion).last_step, time);
    let shows = before.shows * left + now.shows;
    let clicks = before.clicks * left + now.clicks;
    shape.set_used(companion, Use { shows, clicks });
}
