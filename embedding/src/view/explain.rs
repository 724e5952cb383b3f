//! A report on one key: all data that a checkpoint has about the key, and a forecast of its
//! admission and eviction.

use serde::Serialize;
use zillion_device::Workers;
use zillion_feature::FeatureKey;

use crate::eviction::Due;
use crate::eviction::clock::Moment;
use crate::view::{TableView, Waiting, norm};
use zillion_rows::{Admission, EventSpan, Eviction};

/// The largest number of steps in which every slot has one turn for eviction.
const ROUND: u64 = zillion_feature::SLOTS as u64;

/// A report on one key of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeyReport {
    /// The name of the table.
    pub table: String,
    /// The key that the report is about, in its mixed form. The key is not serialised, because many
    /// JSON readers can hold only integers of up to 53 bits.
    #[serde(skip)]
    pub key: FeatureKey,
    /// The slot of the key.
    pub slot: usize,
    /// The number of rows of the whole table.
    pub rows: u64,
    /// The row of the key; `None` if the key has no row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row: Option<RowReport>,
    /// The count of the key while it waits for a row; `None` if there is no count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// The forecast of the key's admission.
    pub admission: AdmissionForecast,
    /// The forecast of the key's eviction; `None` if the table has neither a row nor a count of the
    /// key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eviction: Option<EvictionForecast>,
}

/// A report on a row, compared with the other rows of its table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RowReport {
    /// The number of pushes after which the narrow row becomes full; `None` if the row is full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grows_at: Option<u32>,
    /// The number of pushes of the row.
    pub count: u32,
    /// The share of the table's rows that have had fewer pushes.
    pub count_above: f64,
    /// The step of the last push, or its event time in seconds since the first step if the table
    /// goes by event time.
    pub last_step: u32,
    /// The share of the table's rows whose last push is older.
    pub last_step_above: f64,
    /// The dirty epoch in which the row changed last.
    pub dirty_epoch: u32,
    /// The L2 norm of the whole row.
    pub norm: f32,
    /// The share of the table's rows with a smaller norm.
    pub norm_above: f64,
    /// The segments of the row, in order.
    pub segments: Vec<SegmentReport>,
}

/// A report on a segment of a row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SegmentReport {
    /// The name of the segment.
    pub name: String,
    /// The number of floats of the segment.
    pub dim: usize,
    /// The L2 norm of the weights.
    pub norm: f32,
    /// The share of the table's rows whose segment has a smaller norm.
    pub norm_above: f64,
}

/// The information about the training run that a forecast needs in addition to the settings of the
/// table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outlook {
    /// The number of steps that have been done in training.
    pub step: u64,
    /// Whether the table is frozen.
    pub is_frozen: bool,
    /// Whether all tables share one limit in bytes.
    pub shares_limit: bool,
    /// The event time of the training, in seconds since its first step; `None` if it is not known.
    pub event_seconds: Option<u32>,
}

/// A forecast of the admission of a key.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum AdmissionForecast {
    /// The key has a row.
    HasRow,
    /// The next push creates the row of the key.
    NextPush,
    /// The key waits. The push with the last missing occurrence will create its row.
    Waits {
        /// The number of occurrences that are missing.
        missing: u32,
        /// The number of occurrences at which the table admits a key.
        at_least: u32,
    },
    /// The key waits, but its occurrences are counted in a filter, so the report cannot tell how
    /// many are missing.
    Filtered {
        /// The number of occurrences at which the table admits a key.
        at_least: u32,
    },
    /// Each occurrence creates the row of the key with some probability.
    Drawn {
        /// The probability for one occurrence.
        p: f64,
    },
    /// The key never gets a row, because it is not in the fixed vocabulary of a dense table.
    Never,
    /// The table is frozen, so the key gets no row while it is frozen.
    Frozen,
}

/// A forecast of the eviction of a key, for the case that the key is not seen again.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum EvictionForecast {
    /// The key stays in the table.
    Stays,
    /// The row is pinned, so it is never evicted.
    Pinned,
    /// The table is frozen, so the key stays while it is frozen.
    Frozen,
    /// The key waits for its row. Its count is dropped if its slot has too many waiting keys. The
    /// counts of the keys that were not seen for the longest time are dropped first.
    Crowded {
        /// The largest number of counts of a slot by the table's own settings; `None` if they set
        /// no limit.
        #[serde(skip_serializing_if = "Option::is_none")]
        most_in_slot: Option<usize>,
    },
    /// The row is evicted if it has a lower priority than other rows when room is needed.
    Ranked {
        /// The kind of the eviction, which defines the priority of rows.
        by: &'static str,
        /// The value below which a row is evicted in the turn of its slot; `None` if rows are
        /// evicted only to make room.
        #[serde(skip_serializing_if = "Option::is_none")]
        below: Option<f64>,
        /// The largest number of rows of the table by its own settings; `None` if they set no
        /// limit.
        #[serde(skip_serializing_if = "Option::is_none")]
        most_rows: Option<u64>,
    },
    /// The key is evicted at the end of a step that is known.
    Goes {
        /// The step at whose end the key is evicted.
        at_step: u64,
        /// The number of steps without a push after which the table evicts a key.
        unseen: u64,
        /// Whether the key may be evicted earlier, to make room for other keys at a limit.
        or_before: bool,
    },
    /// The key is evicted when the event time has moved on.
    Expires {
        /// The number of seconds by which the event time must move on before the key may be
        /// evicted; 0 if the key may be evicted at any step. The eviction follows at most an eighth
        /// of the span later. `None` if the present event time is not known.
        #[serde(skip_serializing_if = "Option::is_none")]
        in_seconds: Option<u64>,
        /// The span without a push after which the table evicts a key, in seconds.
        unseen_seconds: u64,
        /// Whether the key may be evicted earlier, to make room for other keys at a limit.
        or_before: bool,
    },
}

/// Returns the number of seconds of event time after which a key with its last push at `last` may
/// be evicted, if `now` is known.
fn seconds_left(span: EventSpan, last: u32, now: Option<u32>) -> Option<u64> {
    let expired = u64::from(last) + u64::from(span.seconds()) + 1;
    now.map(|now| expired.saturating_sub(now.into()))
}

/// Returns the step at whose end a key of slot `slot` is evicted, or `None` if the key stays. The
/// last push of the key was in step `last_step`, and the forecast assumes that the key is not seen
/// again. `now` is the number of steps that have been done.
pub(super) fn eviction_step(
    eviction: &Eviction,
    slot: usize,
    last_step: u32,
    now: u64,
) -> Option<u64> {
    let Eviction::Unseen { steps } = *eviction else { return None };
    let expired = u64::from(last_step).saturating_add(steps).saturating_add(1);
    let first = expired.max(now + 1);
    let is_turn = |&step: &u64| {
        let due = u32::try_from(step)
            .ok()
            .and_then(|step| Due::new(eviction, None, Moment::of_step(step)));
        due.is_some_and(|due| due.turn.slots(slot..slot + 1).next().is_some())
    };
    (first..first.saturating_add(ROUND)).find(is_turn)
}

impl TableView {
    /// Returns a report on a key. The key's row is compared with all other rows in one pass over
    /// the table.
    pub fn explain(&self, workers: &Workers, key: FeatureKey, outlook: Outlook) -> KeyReport {
        let slot = key.slot();
        let waiting = self.waiting(key);
        let row = self.row_report(workers, key);
        let spec = &self.shape.spec;
        let admission = match (spec.admission, &waiting) {
            _ if row.is_some() => AdmissionForecast::HasRow,
            _ if spec.dense => AdmissionForecast::Never,
            _ if outlook.is_frozen => AdmissionForecast::Frozen,
            (Admission::All, _) => AdmissionForecast::NextPush,
            (Admission::Count { at_least }, waiting) => {
                let seen = waiting.map_or(0, |w| w.count);
                AdmissionForecast::Waits { missing: at_least.saturating_sub(seen), at_least }
            }
            (Admission::Bloom { at_least, .. }, _) => AdmissionForecast::Filtered { at_least },
            (Admission::Probability { p }, _) => AdmissionForecast::Drawn { p },
        };
        let eviction = match (&row, &waiting) {
            (None, None) => None,
            _ if outlook.is_frozen => Some(EvictionForecast::Frozen),
            (Some(row), _) => Some(self.row_forecast(key, row.last_step, outlook)),
            (None, Some(waiting)) => Some(self.count_forecast(key, waiting.last_step, outlook)),
        };
        KeyReport {
            table: self.shape.name().to_owned(),
            key,
            slot,
            rows: self.rows(),
            row,
            waiting,
            admission,
            eviction,
        }
    }

    fn row_forecast(&self, key: FeatureKey, last_step: u32, outlook: Outlook) -> EvictionForecast {
        let eviction = self.shape.spec.eviction;
        if self.shape.pinned.has(key) {
            return EvictionForecast::Pinned;
        }
        let most_rows = self.shape.most_rows;
        match (eviction_step(&eviction, key.slot(), last_step, outlook.step), eviction) {
            (Some(at_step), Eviction::Unseen { steps: unseen }) => {
                let or_before = most_rows.is_some() || outlook.shares_limit;
                EvictionForecast::Goes { at_step, unseen, or_before }
            }
            (_, Eviction::UnseenFor { span }) => EvictionForecast::Expires {
                in_seconds: seconds_left(span, last_step, outlook.event_seconds),
                unseen_seconds: span.seconds().into(),
                or_before: most_rows.is_some() || outlook.shares_limit,
            },
            (_, Eviction::Never | Eviction::Unseen { .. }) => EvictionForecast::Stays,
            (_, ranked) => {
                EvictionForecast::Ranked { by: ranked.kind(), below: ranked.below(), most_rows }
            }
        }
    }

    /// Returns the forecast for the count of a waiting key. Two rules drop counts: a limit of
    /// the time without a push, and a limit of the counts of a slot.
    fn count_forecast(
        &self,
        key: FeatureKey,
        last_step: u32,
        outlook: Outlook,
    ) -> EvictionForecast {
        let spec = &self.shape.spec;
        let most_in_slot = spec.candidates_in_slot();
        let is_aged =
            spec.admission_window.is_some() || matches!(spec.eviction, Eviction::UnseenFor { .. });
        let is_limited = most_in_slot.is_some() || outlook.shares_limit;
        match (eviction_step(&spec.eviction, key.slot(), last_step, outlook.step), spec.eviction) {
            (Some(at_step), Eviction::Unseen { steps: unseen }) => {
                EvictionForecast::Goes { at_step, unseen, or_before: is_limited }
            }
            (None, eviction) if is_aged => {
                let expired = match eviction {
                    Eviction::UnseenFor { span } => Some(span),
                    _ => None,
                };
                let spans = expired.into_iter().chain(spec.admission_window);
                let Some(span) = spans.min() else { return EvictionForecast::Stays };
                EvictionForecast::Expires {
                    in_seconds: seconds_left(span, last_step, outlook.event_seconds),
                    unseen_seconds: span.seconds().into(),
                    or_before: is_limited,
                }
            }
            _ if is_limited => EvictionForecast::Crowded { most_in_slot },
            _ => EvictionForecast::Stays,
        }
    }

    fn row_report(&self, workers: &Workers, key: FeatureKey) -> Option<RowReport> {
        let row = self.get(key)?;
        let segments = &self.layout().segments;
        let of_segments = |weights: &[f32]| -> Vec<f32> {
            segments.iter().map(|s| norm(&weights[s.offset..s.offset + s.dim])).collect()
        };
        let own = of_segments(&row.weights);
        let whole = row.norm();
        // The numbers of rows that have a lower count, a lower last step, a lower norm, and a lower
        // norm of each segment.
        let below = workers.map(self.parts.len(), |i| {
            let part = &self.parts[i];
            let mut below = vec![0u64; 3 + own.len()];
            for at in 0..part.len() {
                let other = self.view(part, at);
                below[0] += u64::from(other.count < row.count);
                below[1] += u64::from(other.last_step < row.last_step);
                below[2] += u64::from(other.norm() < whole);
                for (below, (s, own)) in below[3..].iter_mut().zip(segments.iter().zip(&own)) {
                    let norm = norm(&other.weights[s.offset..s.offset + s.dim]);
                    *below += u64::from(norm < *own);
                }
            }
            below
        });
        let rows = self.rows().max(1) as f64;
        let share = |what: usize| below.iter().map(|b| b[what]).sum::<u64>() as f64 / rows;
        let (part, at) = self.find(key)?;
        let meta = part.stored(at).meta;
        let segments = segments.iter().zip(&own).enumerate().map(|(i, (s, &norm))| SegmentReport {
            name: s.name.clone(),
            dim: s.dim,
            norm,
            norm_above: share(3 + i),
        });
        let growth = self.shape.spec.grow.filter(|_| row.is_narrow);
        Some(RowReport {
            grows_at: growth.map(|growth| growth.at),
            count: row.count,
            count_above: share(0),
            last_step: row.last_step,
            last_step_above: share(1),
            dirty_epoch: meta.dirty_epoch,
            norm: whole,
            norm_above: share(2),
            segments: segments.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TableSet;
    use crate::testing::fixtures::*;
    use zillion_rows::conformance::plan_of;
    use zillion_rows::{ByteSize, OptimizerSpec, PinnedId, TableSpec};

    fn after(step: u64) -> Outlook {
        Outlook { step, ..Outlook::default() }
    }

    #[test]
    fn limits_pins_and_freezing_are_part_of_the_forecast() {
        let workers = workers(1);
        let lru = TableSpec {
            admission: Admission::Count { at_least: 2 },
            eviction: Eviction::Lru,
            max_bytes: Some(ByteSize(1 << 24)),
            pinned: vec![PinnedId::Number(1)],
            ..table("ids", false, vec![segment("v", 3, OptimizerSpec::Sgd { lr: 0.5 }, 0.0)])
        };
        let mut set = TableSet::new(vec![lru.clone()], shards(1)).unwrap();
        let (pinned, row, waits) =
            (PinnedId::Number(1).key(), PinnedId::Number(2).key(), PinnedId::Number(3).key());
        for (step, keys) in [(1, vec![pinned, row, waits]), (2, vec![pinned, row])] {
            let plan = plan_of(&[keys]);
            let gradients = gradients(&set, &plan, step);
            set.push(&workers, &plan, &gradients, update(step, 1.0)).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let (parts, _) = checkpoint(&set, &workers, folder.path());
        let of = |spec: &TableSpec, key: FeatureKey, outlook: Outlook| {
            let view = TableView::open(&workers, folder.path(), spec.clone(), &parts).unwrap();
            let report = view.explain(&workers, key, outlook);
            (report.admission, report.eviction)
        };
        use EvictionForecast::*;
        let (now, shared) = (after(2), Outlook { shares_limit: true, ..after(2) });
        assert_eq!(of(&lru, pinned, now).1, Some(Pinned));
        let most_rows = lru.most_rows();
        assert_eq!(of(&lru, row, now).1, Some(Ranked { by: "lru", below: None, most_rows }));
        // Only the number of a slot's counts limits them here.
        let most_in_slot = lru.candidates_in_slot();
        assert!(most_in_slot.is_some());
        assert_eq!(of(&lru, waits, now).1, Some(Crowded { most_in_slot }));
        let frozen = Outlook { is_frozen: true, ..now };
        assert_eq!(of(&lru, row, frozen), (AdmissionForecast::HasRow, Some(Frozen)));
        assert_eq!(of(&lru, waits, frozen), (AdmissionForecast::Frozen, Some(Frozen)));
        assert_eq!(of(&lru, key(99), frozen), (AdmissionForecast::Frozen, None));
        // A count is never pinned, because its key has no row yet.
        let counting = TableSpec { pinned: vec![PinnedId::Number(3)], ..lru.clone() };
        assert_eq!(of(&counting, waits, now).1, Some(Crowded { most_in_slot }));
        // Without a limit of its own, the table follows the shared limit.
        let free = TableSpec { max_bytes: None, ..lru.clone() };
        assert_eq!(of(&free, waits, now).1, Some(Stays));
        assert_eq!(of(&free, waits, shared).1, Some(Crowded { most_in_slot: None }));
        // If a limit makes room, a known step is the latest possible step.
        let unseen = |max_bytes| TableSpec {
            eviction: Eviction::Unseen { steps: 5 },
            max_bytes,
            ..lru.clone()
        };
        let is_early = |spec: &TableSpec, key: FeatureKey, outlook: Outlook| {
            let Some(Goes { or_before, .. }) = of(spec, key, outlook).1 else { panic!("it stays") };
            or_before
        };
        for key in [row, waits] {
            assert!(is_early(&unseen(lru.max_bytes), key, now));
            assert!(!is_early(&unseen(None), key, now));
            assert!(is_early(&unseen(None), key, shared));
        }
    }

    #[test]
    fn a_forecast_is_what_happens() {
        let workers = workers(1);
        for steps in [1, 5, 6, 64] {
            let spec = TableSpec {
                eviction: Eviction::Unseen { steps },
                ..table("ids", false, vec![segment("v", 3, OptimizerSpec::Sgd { lr: 0.5 }, 0.0)])
            };
            let mut set = TableSet::new(vec![spec.clone()], shards(2)).unwrap();
            let ids: Vec<FeatureKey> = (1..=40).map(key).collect();
            let push = |set: &mut TableSet, step: u64, keys: &[FeatureKey]| {
                let plan = plan_of(&[keys.to_vec()]);
                let gradients = gradients(set, &plan, step);
                set.push(&workers, &plan, &gradients, update(step, 1.0)).unwrap();
                set.sweep(&workers, update(step, 1.0)).unwrap();
            };
            push(&mut set, 1, &ids);
            push(&mut set, 2, &ids[..20]);
            let folder = tempfile::tempdir().unwrap();
            let (parts, _) = checkpoint(&set, &workers, folder.path());
            let view = TableView::open(&workers, folder.path(), spec, &parts).unwrap();
            let goes: Vec<Option<u64>> = ids
                .iter()
                .map(|&key| match view.explain(&workers, key, after(2)).eviction {
                    Some(EvictionForecast::Goes { at_step, .. }) => Some(at_step),
                    _ => None,
                })
                .collect();
            for step in 3..3 + 2 * steps + 2 {
                push(&mut set, step, &[]);
                let left = goes.iter().filter(|at| at.is_some_and(|at| at > step)).count();
                let rows = set.statistics()[0].rows;
                assert_eq!(rows, left as u64, "{steps} steps, after step {step}");
            }
        }
    }

    #[test]
    fn a_key_is_explained_among_the_others() {
        let workers = workers(2);
        let spec = TableSpec {
            admission: Admission::Count { at_least: 4 },
            ..table("ids", false, vec![segment("v", 3, OptimizerSpec::Sgd { lr: 0.5 }, 0.0)])
        };
        let mut set = TableSet::new(vec![spec.clone()], shards(1)).unwrap();
        // Id i occurs in the steps from i on.
        for step in 1..=10u64 {
            let plan = plan_of(&[(1..=step).map(key).collect()]);
            let gradients = gradients(&set, &plan, step);
            set.push(&workers, &plan, &gradients, update(step, 1.0)).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let (parts, _) = checkpoint(&set, &workers, folder.path());
        let view = TableView::open(&workers, folder.path(), spec, &parts).unwrap();
        let oldest = view.explain(&workers, key(1), after(10));
        assert_eq!((oldest.rows, oldest.slot), (7, key(1).slot()));
        assert_eq!(oldest.admission, AdmissionForecast::HasRow);
        assert_eq!(oldest.eviction, Some(EvictionForecast::Stays));
        let row = oldest.row.unwrap();
        assert_eq!((row.count, row.last_step), (7, 10));
        assert_eq!((row.count_above, row.last_step_above), (6.0 / 7.0, 0.0));
        assert_eq!((row.segments[0].norm, row.segments[0].norm_above), (row.norm, row.norm_above));
        let waits = view.explain(&workers, key(9), after(10));
        assert_eq!(waits.waiting, Some(Waiting { count: 2, last_step: 10 }));
        assert_eq!(waits.admission, AdmissionForecast::Waits { missing: 2, at_least: 4 });
        assert!(waits.row.is_none());
        let unknown = view.explain(&workers, key(99), after(10));
        assert_eq!(unknown.admission, AdmissionForecast::Waits { missing: 4, at_least: 4 });
        assert_eq!(unknown.eviction, None);
    }
}
