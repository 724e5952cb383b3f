//! The budget of bytes in flight: bodies that were received, their unpacked forms, and answers that
//! were not sent yet.
//!
//! One holder (a principal, or an address whose callers need no proof) has at most half of the
//! budget, so that no client alone keeps all others out. The bytes of holders are counted in two
//! tables by two hashes of the holder, because callers could invent any number of names. Other
//! holders can share a place in one of the tables, and hardly ever in both.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of places in each table of holders.
const PLACES: usize = 4096;

/// The bytes in flight of a server.
#[derive(Debug)]
pub(crate) struct Budget {
    used: AtomicUsize,
    /// The largest number of bytes in flight since it was taken last.
    peak: AtomicUsize,
    /// The bytes in flight by a part of the holder's hash, for two parts of it.
    of_holders: [Box<[AtomicUsize]>; 2],
    hasher: RandomState,
}

/// The holder of bytes in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Holder<'a> {
    /// A principal, by its name.
    Principal(&'a str),
    /// An address whose callers need no proof. An IPv6 address stands for its network of 64 bits,
    /// because a client usually has all of that network.
    Address(IpAddr),
}

/// Bytes of the budget, which go back when the value is dropped.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    budget: Arc<Budget>,
    places: [usize; 2],
    bytes: usize,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.subtract(self.bytes);
    }
}

impl Default for Budget {
    fn default() -> Self {
        let table = || (0..PLACES).map(|_| AtomicUsize::new(0)).collect();
        Self {
            used: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            of_holders: [table(), table()],
            hasher: RandomState::new(),
        }
    }
}

impl Holder<'_> {
    /// Returns the holder for the callers of an address that need no proof.
    pub(crate) fn of_address(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = address.to_bits() >> 64 << 64;
                IpAddr::V6(Ipv6Addr::from_bits(network))
            }
            address @ IpAddr::V4(_) => address,
        })
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

    /// Returns a claim of a holder on no bytes, which [`HeldBytes::grow`] makes larger.
    pub(crate) fn empty(self: &Arc<Self>, holder: Holder<'_>) -> HeldBytes {
        let hash = self.hasher.hash_one(holder) as usize;
        let places = [hash % PLACES, hash / PLACES % PLACES];
        HeldBytes { budget: self.clone(), places, bytes: 0 }
    }
}

impl HeldBytes {
    /// Returns another claim of the same holder on the same budget, on no bytes.
    pub(crate) fn another(&self) -> Self {
        Self { budget: self.budget.clone(), places: self.places, bytes: 0 }
    }

    /// Returns the number of bytes that are held.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether `bytes` more bytes stay within `most` bytes for all holders, and within half
    /// of them for this holder. A claim that is the only one of its holder may be larger.
    #[must_use]
    pub(crate) fn fits(&self, bytes: usize, most: usize) -> bool {
        let in_all = self.budget.used().checked_add(bytes);
        in_all.is_some_and(|used| used <= most) && self.is_within_share(bytes, most)
    }

    fn is_within_share(&self, bytes: usize, most: usize) -> bool {
        let of_holder = self.counts().map(|count| count.load(Ordering::Relaxed));
        let of_holder = of_holder[0].min(of_holder[1]);
        of_holder <= self.bytes || of_holder.saturating_add(bytes) <= most / 2
    }

    /// Takes more bytes if [`HeldBytes::fits`] allows it, and returns whether it does.
    #[must_use]
    pub(crate) fn grow(&mut self, bytes: usize, most: usize) -> bool {
        if !self.is_within_share(bytes, most) {
            return false;
        }
        let used = &self.budget.used;
        let taken = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|&used| used <= most)
        });
        if let Ok(before) = taken {
            self.bytes += bytes;
            self.budget.peak.fetch_max(before + bytes, Ordering::Relaxed);
            for count in self.counts() {
                count.fetch_add(bytes, Ordering::Relaxed);
            }
        }
        taken.is_ok()
    }

    /// Replaces the number of bytes, whatever the budget is: for memory that is there already, as
    /// that of an answer.
    pub(crate) fn set(&mut self, bytes: usize) {
        if bytes >= self.bytes {
            let more = bytes - self.bytes;
            self.budget.used.fetch_add(more, Ordering::Relaxed);
            for count in self.counts() {
                count.fetch_add(more, Ordering::Relaxed);
            }
        } else {
            self.subtract(self.bytes - bytes);
        }
        self.bytes = bytes;
    }

    fn subtract(&self, bytes: usize) {
        self.budget.used.fetch_sub(bytes, Ordering::Relaxed);
        for count in self.counts() {
            count.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Returns the two counts of the holder. The smaller one is at least the bytes of the holder.
    fn counts(&self) -> [&AtomicUsize; 2] {
        let [first, second] = &self.budget.of_holders;
        [&first[self.places[0]], &second[self.places[1]]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_bounded_and_given_back() {
        let budget = Arc::new(Budget::default());
        let [mut a, mut b] = ["a", "b"].map(|name| budget.empty(Holder::Principal(name)));
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

    #[test]
    fn one_holder_has_at_most_half_of_the_budget() {
        let budget = Arc::new(Budget::default());
        let claim = |name| budget.empty(Holder::Principal(name));
        let mut all: Vec<HeldBytes> = (0..5).map(|_| claim("a")).collect();
        let taken: Vec<bool> = all.iter_mut().map(|held| held.grow(20, 100)).collect();
        assert_eq!(taken, [true, true, false, false, false]);
        assert!(!all[0].grow(11, 100) && all[0].grow(10, 100) && !all[1].grow(1, 100));
        // Another holder is not kept out, and its only claim may be larger than half.
        let mut other = claim("b");
        assert!(other.fits(50, 100) && !other.fits(51, 100) && other.grow(30, 100));
        drop(all);
        assert!(other.grow(60, 100) && !claim("b").fits(1, 100));
        let address = |text: &str| match Holder::of_address(text.parse().unwrap()) {
            Holder::Address(address) => address.to_string(),
            Holder::Principal(name) => name.to_owned(),
        };
        assert_eq!(address("10.0.0.1"), "10.0.0.1");
        assert_eq!(address("::ffff:10.0.0.1"), "10.0.0.1");
        assert_eq!(address("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        drop(other);
        assert_eq!(budget.used(), 0);
        let left = budget.of_holders.iter().flatten().map(|count| count.load(Ordering::Relaxed));
        assert_eq!(left.sum::<usize>(), 0);
    }
}
