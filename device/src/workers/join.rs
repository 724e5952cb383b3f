//! The parallel execution of two functions. Each of them may start phases.

use super::Workers;
use crate::sync::{Mutex, PoisonError};

/// The state of one side: its function until it has run, and then its result.
type Side<F, T> = Mutex<(Option<F>, Option<T>)>;

impl Workers {
    /// Runs both functions, and returns when both have ended. They run on two threads if another
    /// thread is free, otherwise one after the other. Idle threads help with the phases that the
    /// functions start.
    ///
    /// # Panics
    ///
    /// Continues the panic of the function that panicked first. By then, the other function has
    /// ended, or it was never begun.
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

/// Runs one side. No other thread uses this side at the same time, because each index of a phase
/// runs once.
fn run<F: FnOnce() -> T, T>(side: &Side<F, T>) {
    let mut side = side.lock().unwrap_or_else(PoisonError::into_inner);
    side.1 = side.0.take().map(|work| work());
}

fn outcome<F, T>(side: Side<F, T>) -> T {
    let side = side.into_inner().unwrap_or_else(PoisonError::into_inner);
    side.1.expect("a phase that returns has run each of its indices")
}
