//! Clocks as arguments. Code that measures or waits takes a [`Clock`], so a test can advance the
//! time itself.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant, SystemTime};

/// A source of time.
///
/// The result of `now` must never decrease. The result of `wall` may jump, as the time of the
/// machine does when it is set.
pub trait Clock: Send + Sync {
    /// Returns the time since a fixed moment, for the measurement of durations.
    fn now(&self) -> Duration;
    /// Returns the time of day, for timestamps that people read.
    fn wall(&self) -> SystemTime;
}

/// The clocks of the machine. The time of `now` begins when this value is created.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// Creates a clock whose `now` starts at zero.
    pub fn new() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }
}

/// Returns the processor time that the calling thread has used so far, or `None` if the system does
/// not report it. Unlike wall time, this time does not advance while the thread waits for a
/// processor.
pub fn thread_time() -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one `timespec` through a pointer to a live, exclusively borrowed
    // local, and keeps no reference to it; the clock's number is a constant of the system.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    if status != 0 {
        return None;
    }
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?))
}

/// A clock that does not advance until a test advances it.
#[derive(Debug)]
pub struct ManualClock {
    time: Mutex<(Duration, SystemTime)>,
}

impl ManualClock {
    /// Creates a clock whose `now` is zero and whose time of day is `wall`.
    pub fn new(wall: SystemTime) -> Self {
        Self { time: Mutex::new((Duration::ZERO, wall)) }
    }

    /// Advances both the time and the time of day.
    pub fn advance(&self, by: Duration) {
        let mut time = self.time.lock().unwrap_or_else(PoisonError::into_inner);
        time.0 += by;
        time.1 += by;
    }

    /// Sets the time of day, forwards or backwards. `now` does not change.
    pub fn set_wall(&self, wall: SystemTime) {
        self.time.lock().unwrap_or_else(PoisonError::into_inner).1 = wall;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        self.time.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    fn wall(&self) -> SystemTime {
        self.time.lock().unwrap_or_else(PoisonError::into_inner).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_by_hand() {
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        let clock = ManualClock::new(start);
        assert_eq!((clock.now(), clock.wall()), (Duration::ZERO, start));
        clock.advance(Duration::from_secs(3));
        clock.set_wall(start);
        assert_eq!((clock.now(), clock.wall()), (Duration::from_secs(3), start));
    }

    #[test]
    fn the_system_clock_does_not_go_back() {
        let clock = SystemClock::default();
        let (first, second) = (clock.now(), clock.now());
        assert!(second >= first);
        assert!(clock.wall() > SystemTime::UNIX_EPOCH);
    }
}
