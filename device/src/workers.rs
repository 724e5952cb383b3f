//! The pool of compute threads of a process, which runs phases (parallel loops over borrowed data)
//! and background tasks.
//!
//! A training step has about fifty short phases (0.05 to 10 ms). Each phase is a loop over shards
//! or row tiles. The thread that starts a phase also works on it. So a pool of P threads starts P −
//! 1 threads, and a pool of one thread starts none. Background tasks (decoding ahead, writing a
//! checkpoint) run while threads have no phase.
//!
//! # Invariants
//!
//! * Every index of a phase runs exactly once, unless an index panics. Then the indices that have
//!   not begun are dropped, and the panic continues in the caller. The pool stays usable.
//! * When the call that started a phase returns or unwinds, the phase has ended on every thread.
//! * Threads without work spin for [`SPIN`] and then sleep, so that an idle pool uses no processor
//!   time.
//!
//! # Concurrency
//!
//! One mutex guards the list of open phases and the queue of background tasks. It is locked a few
//! times per thread and phase, never per index. Indices are claimed from an atomic counter. Phases
//! may be started from several threads, from inside a phase and from inside a task. The thread that
//! starts a phase can always finish it alone, and it waits only for indices that other threads are
//! running at that moment. So waiting follows the nesting of calls and cannot form a circle.

mod join;
mod phase;
mod pool;
mod record;
mod slices;
mod task;
#[cfg(test)]
mod tests;

pub use pool::Workers;
pub use record::{Activity, Stretch};
pub use task::Task;
