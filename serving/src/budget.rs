//! The budget of bytes in flight: bodies that were received, their unpacked forms, and answers that
//! were not sent yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes in flight of a server.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    used: AtomicUsize,
    /// The largest number of bytes in flight since it was taken last.
    peak: AtomicUsize,
}

/// Bytes of the budget, which go back when the value is dropped.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Budget {
    /// Returns the number of bytes in flight.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns whether a burst of at least `bytes` bytes in flight has ended since the last call.
    pub(crate) fn has_burst_ended(&self, bytes: usize) -> bool {
        let peak = self.peak.load(Ordering::Relaxed);
        if peak < bytes || self.used() > peak / 4 {
            return false;
        }
        self.peak.store(0, Ordering::Relaxed);
        true
    }

    /// Returns a claim on no bytes, which [`HeldBytes::grow`] makes larger.
    pub(crate) fn empty(self: &Arc<Self>) -> HeldBytes {
        HeldBytes { budget: self.clone(), bytes: 0 }
    }
}

impl HeldBytes {
    /// Returns another claim on the same budget, on no bytes.
    pub(crate) fn another(&self) -> Self {
        self.budget.empty()
    }

    /// Takes more bytes if all bytes in flight then stay within `most`, and returns whether they
    /// do.
    #[must_use]
    pub(crate) fn grow(&mut self, bytes: usize, most: usize) -> bool {
        let used = &self.budget.used;
        let taken = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|&used| used <= most)
        });
        if let Ok(before) = taken {
            self.bytes += bytes;
            self.budget.peak.fetch_max(before + bytes, Ordering::Relaxed);
        }
        taken.is_ok()
    }

    /// Replaces the number of bytes, whatever the budget is: for memory that is there already, as
    /// that of an answer.
    pub(crate) fn set(&mut self, bytes: usize) {
        let used = &self.budget.used;
        match bytes >= self.bytes {
            true => used.fetch_add(bytes - self.bytes, Ordering::Relaxed),
            false => used.fetch_sub(self.bytes - bytes, Ordering::Relaxed),
        };
        self.bytes = bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_bounded_and_given_back() {
        let budget = Arc::new(Budget::default());
        let (mut a, mut b) = (budget.empty(), budget.empty());
        assert!(a.grow(60, 100) && !b.grow(41, 100) && b.grow(40, 100));
        assert!(!a.grow(usize::MAX, 100));
        a.set(200);
        assert_eq!(budget.used(), 240);
        drop(a);
        b.set(10);
        assert_eq!(budget.used(), 10);
        drop(b);
        assert_eq!(budget.used(), 0);
        assert!(!budget.has_burst_ended(101) && budget.has_burst_ended(100));
        assert!(!budget.has_burst_ended(100));
    }
}
