//! Chunks that are mapped and touched before they are needed.
//!
//! The kernel zeroes a page at its first access. For 2 MiB, this takes 0.1 ms if memory is
//! available. In a virtual machine whose host must first find the memory, it takes several
//! milliseconds. Code that adds rows should not wait for this. So a slab announces its next chunk
//! when its last chunk is half full. A background thread maps and touches the chunk, and a slab
//! that needs a chunk takes it from a list. The slabs of a table's shards need chunks at the same
//! time, because they grow at the same pace, but by then all of them have announced their chunks.
//!
//! If a chunk stays unused for a whole [`PERIOD`], it is returned to the operating system, and in
//! the end the thread ends too. This happens if a table has stopped growing or has reached its
//! limit, and does not need the chunks that it has announced. A table that grows slowly needs more
//! than a period for half a chunk. Such a table repeats its announcement whenever the free part of
//! its chunk has halved. A chunk that was returned is then made ready again.
//!
//! # Invariants
//! * A chunk of the reserve is zeroed, mapped, touched, and without an owner.
//! * The reserve has at most [`MOST`] chunks, and at most the number that was announced. It can
//!   have one more chunk if a slab took a chunk while another one was being touched.
//! * If the reserve is empty or cannot be filled, the caller maps a chunk itself. So the reserve
//!   changes no result and hides no error.
//!
//! # Concurrency
//! One mutex per NUMA node guards a list. The mutex is held only for a push or a pop, and never
//! while pages are mapped or touched. A thread takes chunks from the list of the node on which it
//! runs. The background thread has the same priority as all others. While it touches pages, it may
//! hold a lock of the kernel, so a low priority could delay a thread that maps memory.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::CHUNK_BYTES;
use super::pages::Pages;
use crate::machine::numa;

/// The largest number of chunks that are kept for one node: 64 MiB.
const MOST: usize = 32;
/// The time after which an unused chunk is returned to the operating system.
const PERIOD: Duration = Duration::from_secs(1);
/// The number of nodes that have their own reserve. All further nodes share the last reserve.
const NODES: usize = 8;

static RESERVES: [Reserve; NODES] = [const { Reserve::new() }; NODES];

/// The touched chunks of one node.
struct Reserve {
    state: Mutex<State>,
    wanted: Condvar,
}

struct State {
    ready: Vec<Pages>,
    /// The number of chunks that were announced and have not been taken.
    announced: usize,
    /// The number of announcements whose chunks were returned unused. A reminder or a slab that
    /// takes a chunk decreases it.
    forgotten: usize,
    /// The smallest number of ready chunks in this period. This number of chunks was not needed.
    unneeded: usize,
    has_thread: bool,
}

/// The divisor for the smallest free part of a chunk for which reminders are sent. If less than a
/// 256th of the chunk is free, no reminder is sent.
const SMALLEST_PART: usize = 256;

/// A notice of a slab about the chunk that it will need next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The slab will need a chunk.
    Announce,
    /// The slab still needs the announced chunk.
    Remind,
}

impl Notice {
    /// Returns the notice to send when the number of free parts of a chunk falls from `before` to
    /// `after`, or `None` if no notice is due. `whole` is the number of all parts.
    #[inline(always)]
    pub(crate) fn for_remaining(before: usize, after: usize, whole: usize) -> Option<Self> {
        let half = whole / 2;
        if after < half && half <= before {
            return Some(Self::Announce);
        }
        // This is true if a power of two lies between the two numbers.
        let is_halved = before > 0 && after < 1 << before.ilog2() && before <= half;
        (is_halved && before >= whole / SMALLEST_PART).then_some(Self::Remind)
    }

    /// Sends the notice to the reserve of this thread's node.
    #[cold]
    pub(crate) fn send(self) {
        let node = numa::current_node();
        let reserve = &RESERVES[node.min(NODES - 1)];
        match self {
            Self::Announce => reserve.announce(node),
            Self::Remind => reserve.remind(node),
        }
    }
}

/// Takes a chunk of the reserve, or returns `None` if the reserve is empty.
pub(super) fn take() -> Option<Pages> {
    let node = numa::current_node();
    RESERVES[node.min(NODES - 1)].take()
}

/// Returns the bytes of all reserves. They are in memory in addition to the bytes of the tables.
pub fn reserve_bytes() -> usize {
    RESERVES.iter().map(|reserve| reserve.lock().ready.len() * CHUNK_BYTES).sum()
}

impl Reserve {
    const fn new() -> Self {
        let state =
            State { ready: Vec::new(), announced: 0, forgotten: 0, unneeded: 0, has_thread: false };
        Self { state: Mutex::new(state), wanted: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A list of pages is always consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&'static self, node: usize) {
        self.expect(self.lock(), node);
    }

    /// Makes an announced chunk ready again if it was returned.
    fn remind(&'static self, node: usize) {
        let mut state = self.lock();
        if let Some(rest) = state.forgotten.checked_sub(1) {
            state.forgotten = rest;
            self.expect(state, node);
        }
    }

    fn expect(&'static self, mut state: MutexGuard<'static, State>, node: usize) {
        state.announced += 1;
        if !state.has_thread {
            let thread = std::thread::Builder::new().name("zillion-memory".to_owned());
            // Without a thread, there is no reserve. This only costs time.
            state.has_thread = thread.spawn(move || self.fill(node)).is_ok();
        }
        drop(state);
        self.wanted.notify_one();
    }

    fn take(&self) -> Option<Pages> {
        let mut state = self.lock();
        match state.announced.checked_sub(1) {
            Some(rest) => state.announced = rest,
            None => state.forgotten = state.forgotten.saturating_sub(1),
        }
        let chunk = state.ready.pop();
        state.unneeded = state.unneeded.min(state.ready.len());
        chunk
    }

    /// Keeps the announced chunks ready. Ends when no chunk is announced any more.
    fn fill(&self, node: usize) {
        let mut state = self.lock();
        let mut period = Instant::now();
        loop {
            while state.ready.len() < state.announced.min(MOST) {
                drop(state);
                let chunk = Pages::touched(CHUNK_BYTES, node);
                state = self.lock();
                match chunk {
                    Ok(chunk) => state.ready.push(chunk),
                    // The system has no memory left. The thread that needs a chunk should get the
                    // remaining memory, or see the error.
                    Err(_) => state.announced = 0,
                }
            }
            let left = PERIOD.saturating_sub(period.elapsed());
            if !left.is_zero() {
                let woken = self.wanted.wait_timeout(state, left);
                state = woken.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let stay = state.ready.len() - state.unneeded;
            let rest = state.ready.split_off(stay);
            let is_over = stay == 0;
            let announced = state.announced.saturating_sub(rest.len()).max(stay);
            let announced = if is_over { 0 } else { announced };
            state.forgotten += state.announced.saturating_sub(announced);
            (state.announced, state.unneeded) = (announced, stay);
            state.has_thread = !is_over;
            drop(state);
            drop(rest);
            if is_over {
                return;
            }
            period = Instant::now();
            state = self.lock();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static RESERVE: Reserve = Reserve::new();

    #[test]
    fn announced_chunks_are_ready_and_go_back_if_not_taken() {
        assert!(RESERVE.take().is_none());
        let patience = Instant::now() + Duration::from_secs(30);
        let mut taken = Vec::new();
        for _ in 0..3 {
            (0..MOST + 4).for_each(|_| RESERVE.announce(0));
            while RESERVE.lock().ready.len() < MOST {
                std::thread::yield_now();
                assert!(Instant::now() < patience);
            }
            taken.extend(std::iter::repeat_with(|| RESERVE.take()).take(MOST + 4).flatten());
            assert!(RESERVE.lock().ready.is_empty(), "what nobody announced");
        }
        assert!(taken.len() >= 3 * MOST, "{} chunks", taken.len());
        for chunk in &taken {
            assert_eq!(chunk.bytes(), CHUNK_BYTES);
            assert!(chunk.start().as_ptr().addr().is_multiple_of(CHUNK_BYTES));
        }
        RESERVE.announce(0);
        while RESERVE.lock().has_thread {
            std::thread::sleep(Duration::from_millis(10));
            assert!(Instant::now() < patience, "the thread stays");
        }
        let state = RESERVE.lock();
        assert_eq!((state.ready.len(), state.announced), (0, 0));
        let forgotten = state.forgotten;
        assert!(forgotten > 0);
        drop(state);
        // A reminder makes the chunk ready again.
        let is_ready = || {
            RESERVE.remind(0);
            !RESERVE.lock().ready.is_empty()
        };
        while !is_ready() {
            std::thread::sleep(Duration::from_millis(10));
            assert!(Instant::now() < patience);
        }
        (0..forgotten + MOST).for_each(|_| _ = RESERVE.take());
        RESERVE.remind(0);
        let state = RESERVE.lock();
        assert_eq!((state.announced, state.forgotten), (0, 0), "all were taken, announced or not");
    }

    #[test]
    fn a_chunk_is_announced_once_with_reminders_as_it_fills() {
        for (whole, stride) in [(32_768, 1), (26_214, 1), (32_768, 300), (2, 1), (3, 1)] {
            let (mut left, mut said) = (whole, Vec::new());
            while left > 0 {
                let after = usize::saturating_sub(left, stride);
                said.extend(Notice::for_remaining(left, after, whole));
                left = after;
            }
            assert_eq!(said.first(), Some(&Notice::Announce), "{whole}, {stride}");
            assert!(said[1..].iter().all(|&notice| notice == Notice::Remind), "{said:?}");
            if whole > 1000 {
                assert!((4..10).contains(&said.len()), "{said:?} of {whole}");
            }
        }
    }
}
