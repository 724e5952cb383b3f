//! The events of the benchmarks: impressions with a click or without one.
//!
//! Two of the eight ids follow Zipf's law. A planted bias of each user and each item decides about
//! the click, so that there is something to learn. A line has two texts that the job does not read,
//! as lines of real systems have.

use std::io::Write as _;

use zillion_feature::random::{combine, mix64};
use zillion_feature::{RawColumn, RawColumns, RawValues};

use crate::embedding::Zipf;

/// The names of the ids, and the number of different ids of each.
pub(super) const IDS: [(&str, u64); 8] = [
    ("user", 100_000),
    ("item", 20_000),
    ("publisher", 2_000),
    ("campaign", 1_000),
    ("city", 500),
    ("device", 50),
    ("place", 20),
    ("hour", 24),
];

/// An impression with its ids, its time and its click.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// The ids in the order of [`IDS`].
    pub(super) ids: [u64; IDS.len()],
    /// The time of the event in milliseconds since 1970.
    pub(super) time_ms: i64,
    pub(super) has_click: bool,
    request: u64,
}

/// An endless sequence of events.
#[derive(Debug)]
pub(super) struct Events {
    seed: u64,
    next: u64,
    users: Zipf,
    items: Zipf,
}

impl Events {
    /// Begins the sequence with a seed.
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, next: 0, users: Zipf::new(IDS[0].1), items: Zipf::new(IDS[1].1) }
    }

    /// Returns the next event, which happens at `time_ms`.
    pub(super) fn draw(&mut self, time_ms: i64) -> Event {
        self.next += 1;
        let request = combine(self.seed, self.next);
        let mut word = request;
        let mut random = || {
            word = mix64(word);
            word
        };
        let mut ids = [self.users.draw(random()), self.items.draw(random()), 0, 0, 0, 0, 0, 0];
        for (id, (_, different)) in ids.iter_mut().zip(IDS).skip(2) {
            *id = random() % different;
        }
        let chance = 0.05 + 0.4 * share(mix64(ids[0])) * share(mix64(!ids[1]));
        Event { ids, time_ms, has_click: share(random()) < chance, request }
    }
}

impl Event {
    /// Appends the event as a line of JSON.
    pub(super) fn append_line(&self, lines: &mut Vec<u8>) {
        // Writing to memory cannot fail.
        let _ = write!(
            lines,
            "{{\"request\":\"{:032x}\",\
             \"page\":\"https://news.example.com/section/{:05}/article/{:012}.html\"",
            u128::from(self.request) << 7,
            self.request % 40_000,
            self.request >> 32,
        );
        for ((name, _), id) in IDS.iter().zip(self.ids) {
            let _ = write!(lines, ",\"{name}\":{id}");
        }
        let click = u8::from(self.has_click);
        let _ = writeln!(lines, ",\"time\":{},\"click\":{click}}}", self.time_ms);
    }

    /// Returns the event as the columns of a request of one row.
    pub(super) fn columns(&self) -> RawColumns<'static> {
        let column = |id: u64| RawColumn {
            values: RawValues::Ints(vec![id as i64]),
            lengths: None,
            is_shared: false,
        };
        let named = IDS.iter().zip(self.ids);
        named.map(|((name, _), id)| ((*name).into(), column(id))).collect()
    }
}

/// Converts random bits to a number from 0 (included) to 1 (excluded).
pub(super) fn share(random: u64) -> f64 {
    (random >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_repeat_with_their_seed_and_are_lines_of_json() {
        let draw = |seed| {
            let mut events = Events::new(seed);
            (0..1000).map(|time| events.draw(time)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let clicks = draw(1).iter().filter(|event| event.has_click).count();
        assert!((50..500).contains(&clicks), "{clicks}");
        let mut lines = Vec::new();
        for event in draw(1) {
            event.append_line(&mut lines);
        }
        let text = String::from_utf8(lines).unwrap();
        assert_eq!(text.lines().count(), 1000);
        for (line, event) in text.lines().zip(draw(1)) {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            for ((name, different), id) in IDS.iter().zip(event.ids) {
                assert_eq!(value[name].as_u64(), Some(id));
                assert!(id < *different);
            }
            assert_eq!(value["click"].as_u64(), Some(u64::from(event.has_click)));
        }
    }
}
