//! The pool and the readers under schedules that a test decides.
//!
//! What hands work from thread to thread breaks in an order of events that a machine shows once in a million runs. Here
//! the very source of the pool (`src/workers/*`) and of the readers (`src/direct_io/readers.rs`) is compiled over
//! [shuttle](https://github.com/awslabs/shuttle)'s locks, atomics and threads, which take turns as a scheduler says: at
//! random, and by probabilistic concurrency testing (Burckhardt et al., ASPLOS 2010), which finds any bug of few ordering
//! constraints with a known chance. A wake that is lost is a deadlock, which the scheduler sees at once.
//!
//! `HANDOVER_SCHEDULES=100000` explores so many schedules of each scenario instead of 4,000, and `HANDOVER_SEED` takes
//! others. Atomics are sequentially consistent here: what a weaker order allows is argued where it stands, in
//! `src/workers/phase.rs`.
//!
//! That these tests can fail was tried by hand, one change of the source at a time:
//!
//! | taken out, or changed | found by |
//! |---|---|
//! | `notify_one` in `Shared::publish` | `a_sleeping_thread_is_woken`: deadlock |
//! | the comparison with `seen` before the wait in `Shared::rest` | nearly every scenario of the pool: deadlock |
//! | `notify_all` in the drop of `Workers` | the same |
//! | `unpark` in `Phase::help` | the same |
//! | indices counted as finished before they run, in `Phase::help` | `a_phase_has_ended_when_its_call_returns`: an index is still running |
//! | `notify_all` in `Cell::run` of tasks | `tasks_end_once_whoever_runs_them`: deadlock |
//! | the wait in `Task::cancel` | the same: a cancelled task still runs |
//! | `notify_all` in `Job::finish` of the readers | `pieces_come_in_their_order`: deadlock |
//! | results of the readers in the order that they come in | the same: another piece's bytes |

// The sources of a library, in a test: what it exports is private here, and not all of it is used.
#![allow(unreachable_pub, dead_code, missing_docs)]
#![expect(unsafe_code, reason = "that of the sources, with their proofs")]

mod direct_io;
#[path = "../../src/error.rs"]
mod error;
mod pool;
mod reads;
mod sync;
mod workers;

use std::num::NonZeroUsize;
use std::sync::Arc;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

/// Schedules of each of four kinds that a scenario goes through.
const SCHEDULES: usize = 1000;
/// Ordering constraints that a bug may take, for the second kind.
const DEPTH: usize = 3;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a whole number: {text}")))
}

/// Goes through a scenario under many schedules; a panic or a deadlock in one of them fails the test, and prints the
/// schedule.
fn explore(scenario: impl Fn() + Send + Sync + 'static) {
    let schedules = setting("HANDOVER_SCHEDULES").map_or(SCHEDULES, |n| n as usize / 4);
    let seed = setting("HANDOVER_SEED").unwrap_or(0x5eed);
    let mut config = Config::new();
    // Weaker orders than it explores are used, and known: see above.
    config.silence_warnings = true;
    let scenario = Arc::new(scenario);
    // Threads that sleep at once, and threads that watch for a while before they do.
    for cores in [1, 8] {
        sync::thread::CORES.set(NonZeroUsize::new(cores).unwrap());
        let (random, by_priority) = (scenario.clone(), scenario.clone());
        Runner::new(RandomScheduler::new_from_seed(seed, schedules), config.clone())
            .run(move || random());
        Runner::new(PctScheduler::new_from_seed(seed, DEPTH, schedules), config.clone())
            .run(move || by_priority());
    }
}
