//! The time of each event until the first answer that knows it.

use std::collections::BTreeMap;

use serde::Serialize;

use super::super::contents::Contents;
use super::super::writer::PartitionWriter;

/// The upper bounds of the histogram in seconds. One more bucket has what is above.
const BOUNDS: [f64; 13] = [0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.4, 3.0, 5.0];

/// A version with the place of its training in the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Made {
    pub(super) number: u64,
    /// The number of rows that it has learned from.
    pub(super) rows: u64,
    pub(super) published_ms: i64,
}

/// The distribution of times in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Freshness {
    pub(super) count: usize,
    mean: f64,
    pub(super) p50: f64,
    p90: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
    /// The bounds of the histogram, each with the number of times up to it and above the bound
    /// before it. The last bound is the largest time.
    histogram: Vec<(f64, u64)>,
}

impl Freshness {
    /// Sums up times in milliseconds.
    pub(super) fn of(mut times: Vec<i64>) -> Self {
        times.sort_unstable();
        let seconds = |ms: i64| ms as f64 / 1e3;
        let Some(&last) = times.last() else { return Self::default() };
        let at = |share: f64| {
            let place = (times.len() as f64 * share) as usize;
            seconds(times[place.min(times.len() - 1)])
        };
        let mut below = 0;
        let mut histogram = Vec::new();
        for bound in BOUNDS.into_iter().filter(|&bound| bound < seconds(last)) {
            let up_to = times.partition_point(|&time| seconds(time) <= bound);
            histogram.push((bound, (up_to - below) as u64));
            below = up_to;
        }
        histogram.push((seconds(last), (times.len() - below) as u64));
        Self {
            count: times.len(),
            mean: seconds(times.iter().sum::<i64>() / times.len() as i64),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: seconds(last),
            histogram,
        }
    }
}

/// For each batch, the version that first contains it and the first answer that knows it.
#[derive(Debug)]
pub(super) struct Table {
    /// For each batch, the place of its version in `made`.
    versions: Vec<Option<usize>>,
    made: Vec<Made>,
    /// For each version, the time of the first answer of it or of a later one, and the number of
    /// the version that gave it.
    answers: Vec<Option<(i64, u64)>>,
    /// The number of versions that never answered before a later one did.
    pub(super) overtaken: u64,
    /// The time before which events do not count.
    from_ms: i64,
}

/// The times of all events.
#[derive(Debug, Default)]
pub(super) struct Waits {
    pub(super) answered_ms: Vec<i64>,
    pub(super) published_ms: Vec<i64>,
    pub(super) unanswered: u64,
    /// The slowest event of each version that answered, by the number of the version.
    slowest: BTreeMap<u64, Slow>,
}

/// The slowest event that an answer was the first one to know.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Slow {
    pub(super) version: u64,
    /// The number of events that were first known by this version.
    events: u64,
    pub(super) seconds: f64,
    /// The time from the event to the end of the step that learned from it, as samples of the
    /// metrics show it.
    pub(super) until_trained: f64,
    /// The time from the event to the publication.
    until_published: f64,
    /// The time from the publication to the answer.
    until_answered: f64,
    /// The number of the batch with the event.
    #[serde(skip)]
    pub(super) batch: u64,
    #[serde(skip)]
    pub(super) event_ms: i64,
    #[serde(skip)]
    pub(super) answered_ms: i64,
    /// Counts and seconds of the work of both processes between the event and the answer.
    pub(super) meanwhile: BTreeMap<&'static str, f64>,
}

impl Table {
    /// `firsts` has the time of the first answer of each version. Events before `from_ms` do not
    /// count.
    pub(super) fn new(
        contents: &Contents,
        made: &[Made],
        firsts: &BTreeMap<u64, i64>,
        from_ms: i64,
    ) -> Self {
        let version_of = |rows: u64| {
            let place = made.partition_point(|version| version.rows < rows);
            (place < made.len()).then_some(place)
        };
        let versions = contents.batches.iter().map(|batch| version_of(batch.rows)).collect();
        // A later version may have been the first one to answer, because a server skips versions.
        let mut answers = vec![None; made.len()];
        let mut next = None;
        let mut overtaken = 0;
        for (place, version) in made.iter().enumerate().rev() {
            if let Some(&at) = firsts.get(&version.number) {
                if next.is_none_or(|(later, _)| at <= later) {
                    next = Some((at, version.number));
                }
            } else {
                overtaken += u64::from(next.is_some());
            }
            answers[place] = next;
        }
        Self { versions, made: made.to_vec(), answers, overtaken, from_ms }
    }

    /// Returns the time from the publication of each version to its first answer.
    pub(super) fn until_answered(&self) -> Vec<i64> {
        let of = |(made, answer): (&Made, &Option<(i64, u64)>)| {
            let (at, by) = (*answer)?;
            (by == made.number && made.published_ms >= self.from_ms)
                .then_some(at - made.published_ms)
        };
        self.made.iter().zip(&self.answers).filter_map(of).collect()
    }

    /// Returns the times of all events that were written.
    pub(super) fn waits(&self, contents: &Contents, written: &[PartitionWriter]) -> Waits {
        let mut waits = Waits::default();
        let numbers =
            (0..contents.partitions.len()).map(|place| (&contents.partitions[place], place));
        let places: BTreeMap<&String, usize> = numbers.collect();
        for (number, writer) in written.iter().enumerate() {
            let place = places.get(&PartitionWriter::name(number)).copied();
            let mut batch = 0;
            for sent in writer.sent.iter().flatten() {
                let end = |batch: usize| {
                    let ends = contents.batches.get(batch).map(|batch| &batch.ends);
                    ends.map(|ends| place.and_then(|p| ends.get(p)).copied().unwrap_or_default())
                };
                while end(batch).is_some_and(|end| end <= sent.offset) {
                    batch += 1;
                }
                if sent.time_ms >= self.from_ms {
                    waits.add(self, batch, sent.time_ms);
                }
            }
        }
        waits
    }
}

impl Waits {
    fn add(&mut self, table: &Table, batch: usize, event_ms: i64) {
        let version = table.versions.get(batch).copied().flatten();
        let answer = version.and_then(|place| Some((table.made[place], table.answers[place]?)));
        let Some((made, (answered_ms, number))) = answer else {
            self.unanswered += 1;
            return;
        };
        self.answered_ms.push(answered_ms - event_ms);
        self.published_ms.push(made.published_ms - event_ms);
        let slow = self.slowest.entry(number).or_default();
        slow.events += 1;
        if slow.events == 1 || event_ms < slow.event_ms {
            let seconds = |ms: i64| ms as f64 / 1e3;
            *slow = Slow {
                version: number,
                events: slow.events,
                seconds: seconds(answered_ms - event_ms),
                until_published: seconds(made.published_ms - event_ms),
                until_answered: seconds(answered_ms - made.published_ms),
                until_trained: 0.0,
                batch: batch as u64 + 1,
                event_ms,
                answered_ms,
                meanwhile: BTreeMap::new(),
            };
        }
    }

    /// Returns the slowest events of the versions whose slowest event was the slowest.
    pub(super) fn slowest(&self, most: usize) -> Vec<Slow> {
        let mut slowest: Vec<Slow> = self.slowest.values().cloned().collect();
        slowest.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        slowest.truncate(most);
        slowest
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::contents::BatchEnd;
    use super::super::super::writer::Sent;
    use super::*;

    #[test]
    fn each_event_waits_for_the_first_answer_that_knows_it() {
        let batch = |rows, end| BatchEnd { rows, ends: vec![0, end] };
        let contents = Contents {
            batches: vec![batch(2, 20), batch(3, 30), batch(4, 40), batch(5, 50)],
            partitions: vec!["p01".to_owned(), "p00".to_owned()],
            ..Contents::default()
        };
        let made = |number, rows, published_ms| Made { number, rows, published_ms };
        let made = [made(1, 2, 1100), made(2, 3, 1200), made(3, 4, 1300)];
        // The second version never answers.
        let firsts = BTreeMap::from([(1, 1150), (3, 1400)]);
        let table = Table::new(&contents, &made, &firsts, 1001);
        assert_eq!((table.overtaken, table.until_answered()), (1, vec![50, 100]));
        let folder = tempfile::tempdir().unwrap();
        let mut writer = PartitionWriter::create(folder.path(), 0, true).unwrap();
        let sent = (0..5).map(|event| Sent { offset: event * 10, time_ms: 1000 + event as i64 });
        writer.sent = Some(sent.collect());
        let waits = table.waits(&contents, &[writer]);
        // The first event is before the beginning, and the last one is in no version.
        assert_eq!(waits.answered_ms, [149, 398, 397]);
        assert_eq!(waits.published_ms, [99, 198, 297]);
        assert_eq!(waits.unanswered, 1);
        let slowest = waits.slowest(1);
        assert_eq!((slowest[0].version, slowest[0].events, slowest[0].event_ms), (3, 2, 1002));
    }

    #[test]
    fn a_distribution_has_every_time_in_one_bucket() {
        let figures = Freshness::of((1..=1000).collect());
        assert_eq!((figures.p50, figures.p99, figures.max), (0.501, 0.991, 1.0));
        assert_eq!(figures.histogram, [(0.2, 200), (0.4, 200), (0.6, 200), (0.8, 200), (1.0, 200)]);
        assert_eq!(Freshness::of(Vec::new()), Freshness::default());
    }
}
