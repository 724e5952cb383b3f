//! The order in which servers take a new version: each waits for a time of its own, or until
//! another server has proved the version.
//!
//! The wait follows from the names of the server and of the version, so that servers need not talk
//! to each other, and another server is the first for each version.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::{Duration, Instant};

use zillion_registry::VersionId;

/// The new version that this server leaves to other servers, since when.
#[derive(Debug, Default)]
pub(super) struct Stagger(Option<(VersionId, Instant)>);

impl Stagger {
    /// Returns whether the wait for a version is over. The wait begins with the first call for the
    /// version.
    pub(super) fn is_over(&mut self, version: VersionId, server: &str, window: Duration) -> bool {
        let began = match self.0 {
            Some((waiting, began)) if waiting == version => began,
            _ => Instant::now(),
        };
        self.0 = Some((version, began));
        began.elapsed() >= wait(version, server, window)
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
        assert!(!stagger.is_over(VersionId(2), "server-1", hour));
    }
}
