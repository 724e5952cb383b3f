//! Two things at once, each of which may begin phases of its own.

use super::Workers;
use crate::sync::{Mutex, PoisonError};

/// What one of the two is to do, until it is done, and what came of it.
type Side<F, T> = Mutex<(Option<F>, Option<T>)>;

impl Workers {
    /// Runs both and returns when both are done: on two threads where one is free, else one behind the other. Threads
    /// that neither needs help with the phases that they begin.
    ///
    /// # Panics
    ///
    /// Goes on with the panic of one that panicked, after the other has ended or was not begun.
    pub fn join<A: Send, B: Send>(
        &self,
        first: impl FnOnce() -> A + Send,
        second: impl FnOnce() -> B + Send,
    ) -> (A, B) {
        let (first, second) = (Mutex::new((Some(first), None)), Mutex::new((Some(second), None)));
        self.for_each(2, |index| match index {
            0 => run(&first),
            _ => run(&second),
        });
        (outcome(first), outcome(second))
    }
}

/// Runs one side. Nobody else looks at it meanwhile: an index of a phase runs once.
fn run<F: FnOnce() -> T, T>(side: &Side<F, T>) {
    let mut side = side.lock().unwrap_or_else(PoisonError::into_inner);
    side.1 = side.0.take().map(|work| work());
}

fn outcome<F, T>(side: Side<F, T>) -> T {
    let side = side.into_inner().unwrap_or_else(PoisonError::into_inner);
    side.1.expect("a phase that returns has run each of its indices")
}
