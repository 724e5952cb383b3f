//! Chunks that are in memory before they are asked for.
//!
//! The kernel zeroes a page when it is first touched: 2 MiB take 0.1 ms where memory is at hand, and several
//! milliseconds in a virtual machine whose host has to find it. Whoever adds rows should not wait for that,
//! so a process that takes chunk after chunk has a thread that touches the next few, and only the taking of a list
//! entry is left on the way of a row.
//!
//! The reserve is there while a process grows. Nobody who takes a few chunks pays for it: it begins at the third miss, doubles
//! with each further one up to [`MOST`], and after [`IDLE`] without a taker it goes back to the
//! operating system, its thread with it.
//!
//! # Invariants
//! * A chunk of the reserve is zeros, mapped and touched, and nobody's.
//! * Without a reserve, or where it is empty or cannot be filled, the caller maps a chunk himself: the reserve
//!   changes no result and hides no error.
//!
//! # Concurrency
//! One mutex a NUMA node around a list; it is held for a push or a pop, never while pages are mapped or touched. A taker gets
//! chunks of the node that it runs on. The thread has the priority of all others: while it touches pages it holds the
//! kernel's lock on the process's mappings, and whoever maps something meanwhile would wait for a thread that yields.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::CHUNK_BYTES;
use super::pages::Pages;
use crate::machine::numa;

/// The most chunks that are kept for one node: what a table that is held at its limit may have beside its accounts.
const MOST: usize = 8;
/// Chunks that are taken without one before the reserve begins.
const MISSES: usize = 3;
/// How long the reserve waits for a taker.
const IDLE: Duration = Duration::from_secs(1);
/// Nodes that have a reserve of their own; the others share the last one.
const NODES: usize = 8;

static RESERVES: [Reserve; NODES] = [const { Reserve::new() }; NODES];

/// Touched chunks of one node.
struct Reserve {
    state: Mutex<State>,
    taken: Condvar,
}

struct State {
    ready: Vec<Pages>,
    /// How many are to be ready.
    goal: usize,
    /// Takers that found none, since the reserve was last given back.
    misses: usize,
    /// Whether there was a taker since the thread looked.
    is_wanted: bool,
    has_thread: bool,
}

/// A chunk of the reserve, if there is one; asks for more.
pub(super) fn take() -> Option<Pages> {
    let node = numa::current_node();
    RESERVES[node.min(NODES - 1)].take(node)
}

/// Bytes that are in memory for tables that grow, beside what they have.
pub fn reserve_bytes() -> usize {
    RESERVES.iter().map(|reserve| reserve.lock().ready.len() * CHUNK_BYTES).sum()
}

impl Reserve {
    const fn new() -> Self {
        let state =
            State { ready: Vec::new(), goal: 0, misses: 0, is_wanted: false, has_thread: false };
        Self { state: Mutex::new(state), taken: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A list of pages is whole at any moment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&'static self, node: usize) -> Option<Pages> {
        let mut state = self.lock();
        let chunk = state.ready.pop();
        state.is_wanted = true;
        if chunk.is_none() {
            state.misses += 1;
            if state.misses >= MISSES {
                state.goal = (state.goal * 2).clamp(1, MOST);
            }
        }
        if state.goal > 0 && !state.has_thread {
            let thread = std::thread::Builder::new().name("zillion-memory".to_owned());
            // Without a thread there is no reserve, which costs time only.
            state.has_thread = thread.spawn(move || self.fill(node)).is_ok();
        }
        drop(state);
        self.taken.notify_one();
        chunk
    }

    /// Keeps the reserve full until nobody wants it.
    fn fill(&self, node: usize) {
        let mut state = self.lock();
        loop {
            if state.ready.len() < state.goal {
                drop(state);
                let chunk = Pages::touched(CHUNK_BYTES, node);
                state = self.lock();
                match chunk {
                    Ok(chunk) => state.ready.push(chunk),
                    // Memory ends: whoever needs it shall have it, and see the error.
                    Err(_) => break,
                }
                continue;
            }
            state.is_wanted = false;
            let (woken, timeout) =
                self.taken.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            if timeout.timed_out() && !state.is_wanted {
                break;
            }
        }
        let rest = std::mem::take(&mut state.ready);
        (state.goal, state.misses, state.has_thread) = (0, 0, false);
        drop(state);
        drop(rest);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    static RESERVE: Reserve = Reserve::new();

    #[test]
    fn a_reserve_begins_with_need_and_ends_with_it() {
        assert!((0..MISSES).all(|_| RESERVE.take(0).is_none()));
        let patience = Instant::now() + Duration::from_secs(30);
        let mut taken = Vec::new();
        while taken.len() < 3 * MOST {
            match RESERVE.take(0) {
                Some(chunk) => taken.push(chunk),
                None => std::thread::yield_now(),
            }
            assert!(RESERVE.lock().ready.len() <= MOST);
            assert!(Instant::now() < patience, "{} chunks", taken.len());
        }
        for chunk in &taken {
            assert_eq!(chunk.bytes(), CHUNK_BYTES);
            assert!(chunk.start().as_ptr().addr().is_multiple_of(CHUNK_BYTES));
        }
        while RESERVE.lock().has_thread {
            std::thread::sleep(Duration::from_millis(10));
            assert!(Instant::now() < patience, "the thread stays");
        }
        let state = RESERVE.lock();
        assert_eq!((state.ready.len(), state.goal, state.misses), (0, 0, 0));
    }
}
