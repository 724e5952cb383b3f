//! The alternation of two training runs that publish, so that both are measured under the same load
//! of the machine.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// One of the two runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The run that has published many versions.
    Old,
    /// The run that has published none.
    New,
}

/// The turns of two runs in two threads. The old run begins.
#[derive(Debug)]
pub(super) struct Pairs {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    turn: Side,
    /// Whether a run has ended, so that the other one waits no more.
    is_over: bool,
}

impl Pairs {
    pub(super) fn new() -> Self {
        let state = Mutex::new(State { turn: Side::Old, is_over: false });
        Self { state, changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the turn of `side`.
    pub(super) fn wait(&self, side: Side) {
        let mut state = self.lock();
        while state.turn != side && !state.is_over {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives the turn to the other run, and waits until it comes back.
    pub(super) fn pass(&self, side: Side) {
        self.lock().turn = match side {
            Side::Old => Side::New,
            Side::New => Side::Old,
        };
        self.changed.notify_all();
        self.wait(side);
    }

    /// Lets the other run go on alone.
    pub(super) fn end(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }
}
