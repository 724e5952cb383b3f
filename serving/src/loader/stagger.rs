//! The order in which servers take a new version: each waits for a time of its own, or until
//! another server has proved the version.
//!
//! The wait follows from the names of the server and of the version, so that servers need not talk
//! to each other, and another server is the first for each version.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::{Duration, Instant};

use zillion_registry::VersionId;

/// The time since which this server leaves new versions to other servers.
#[derive(Debug, Default)]
pub(super) struct Stagger(Option<Instant>);

impl Stagger {
    /// Returns whether the wait for a version is over. The wait begins with the first call. If a
    /// newer version comes meanwhile, it does not begin again, so that a publisher that is faster
    /// than the wait does not keep a server from every version.
    pub(super) fn is_over(&mut self, version: VersionId, server: &str, window: Duration) -> bool {
        let began = self.0.get_or_insert_with(Instant::now);
        began.elapsed() >= wait(version, server, window)
    }

    /// Ends the wait, because no new version waits any more.
    pub(super) fn end(&mut self) {
        self.0 = None;
    }
}

/// Returns the wait of a server: a part of `window` that follows from the names.
fn wait(version: VersionId, server: &str, window: Duration) -> Duration {
    let mut hasher = DefaultHasher::new();
    (version.0, server).hash(&mut hasher);
    let part = hasher.finish() >> 32;
    window.mul_f64(part as f64 / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_take_a_version_one_after_the_other() {
        let hour = Duration::from_secs(3600);
        let waits = |version: u64| -> Vec<Duration> {
            (0..100).map(|i| wait(VersionId(version), &format!("server-{i}"), hour)).collect()
        };
        assert_eq!(waits(3), waits(3));
        assert!(waits(3).iter().all(|wait| *wait <= hour));
        let early = waits(3).iter().filter(|wait| **wait < hour / 2).count();
        assert!((20..80).contains(&early), "{early} of 100 in the first half");
        let first = |version| (0..100).min_by_key(|&i| waits(version)[i]);
        assert!((1..10).any(|version| first(version) != first(0)), "always the same first");
        let mut stagger = Stagger::default();
        assert!(stagger.is_over(VersionId(1), "a", Duration::ZERO));
        stagger.end();
        assert!(!stagger.is_over(VersionId(2), "server-1", hour));
        // Another version does not begin the wait again.
        let began = stagger.0;
        assert!(began.is_some());
        stagger.is_over(VersionId(3), "server-1", hour);
        assert_eq!(stagger.0, began);
    }
}
