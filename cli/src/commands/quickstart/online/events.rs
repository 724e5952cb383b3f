//! The world of the quickstart: users with tastes, items that please, and the events of both.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use zillion_feature::random::{combine, mix64};

/// The numbers of users and items.
pub(super) const USERS: u64 = 400;
pub(super) const ITEMS: u64 = 200;
/// The item that becomes popular.
pub(super) const ITEM: u64 = 7;
/// The events in a second, and the number of partitions.
const RATE: u64 = 4_000;
const PARTITIONS: u64 = 2;
/// The time between two files of a partition.
const INTERVAL: Duration = Duration::from_millis(200);

/// The state of the world, and the time of its beginning.
pub(super) struct World {
    seed: u64,
    began: Instant,
    is_popular: AtomicBool,
    is_flipped: AtomicBool,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let (is_popular, is_flipped) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { seed, began: Instant::now(), is_popular, is_flipped }
    }

    /// Returns the seconds since the beginning.
    pub(super) fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Makes the item popular, and returns the time.
    pub(super) fn make_item_popular(&self) -> f64 {
        self.is_popular.store(true, Ordering::Relaxed);
        self.seconds()
    }

    /// Flips the labels of all events from now on, or ends it.
    pub(super) fn flip(&self, is_flipped: bool) {
        self.is_flipped.store(is_flipped, Ordering::Relaxed);
    }

    /// Returns the probability that a user clicks an item.
    pub(super) fn probability(&self, user: u64, item: u64) -> f64 {
        let taste = |salt: u64, id: u64| {
            let draw = mix64(combine(combine(self.seed, salt), id)) >> 11;
            draw as f64 / (1u64 << 53) as f64 - 0.5
        };
        let popular = item == ITEM && self.is_popular.load(Ordering::Relaxed);
        let pleases = match (item == ITEM, popular) {
            (true, true) => 1.5,
            (true, false) => -2.0,
            (false, _) => 4.0 * taste(2, item) - 0.5,
        };
        1.0 / (1.0 + (-(3.0 * taste(1, user) + pleases)).exp())
    }

    /// Returns the mean probability of the popular item.
    pub(super) fn popular_probability(&self) -> f64 {
        (0..USERS).map(|user| self.probability(user, ITEM)).sum::<f64>() / USERS as f64
    }

    /// Writes events until the flag is set, and returns their number.
    pub(super) fn write_events(&self, folder: &Path, stop: &AtomicBool) -> Result<u64> {
        let mut written = 0;
        for round in 0u32.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            for partition in 0..PARTITIONS {
                let count = RATE * INTERVAL.as_millis() as u64 / 1000 / PARTITIONS;
                let text = self.events(written, count)?;
                written += count;
                let place = folder.join(partition.to_string());
                std::fs::create_dir_all(&place)?;
                // A file belongs to the stream when it appears under its last name.
                let hidden = place.join(format!(".{round:08}.tmp"));
                std::fs::write(&hidden, text)?;
                std::fs::rename(&hidden, place.join(format!("{round:08}.jsonl")))?;
            }
            let next = INTERVAL * (round + 1);
            std::thread::sleep(next.saturating_sub(self.began.elapsed()));
        }
        Ok(written)
    }

    fn events(&self, first: u64, count: u64) -> Result<String> {
        let time = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
        let is_flipped = self.is_flipped.load(Ordering::Relaxed);
        let mut text = String::new();
        for number in first..first + count {
            let draw = |salt: u64| mix64(combine(combine(self.seed, number), salt));
            let user = draw(10) % USERS;
            // One event in fifty is about the item that will be popular.
            let item = if draw(11).is_multiple_of(50) { ITEM } else { draw(12) % ITEMS };
            let chance = (draw(13) >> 11) as f64 / (1u64 << 53) as f64;
            let is_clicked = (chance < self.probability(user, item)) != is_flipped;
            writeln!(
                text,
                "{{\"user\":{user},\"item\":{item},\"time\":{time},\"click\":{}}}",
                u8::from(is_clicked)
            )?;
        }
        Ok(text)
    }
}
