//! Tests of the pool and of the readers under schedules that a test controls.
//!
//! An error in code that passes work between threads may need an order of events that occurs once
//! in a million runs. Here, the same sources of the pool (`src/workers/*`) and of the readers
//! (`src/direct_io/readers.rs`) are compiled with the locks, atomics and threads of
//! [shuttle](https://github.com/awslabs/shuttle). A scheduler decides which thread runs next. It
//! chooses at random or by probabilistic concurrency testing (Burckhardt et al., ASPLOS 2010),
//! which finds an error with few ordering constraints with a known probability. A lost wake-up
//! becomes a deadlock, which the scheduler detects at once.
//!
//! With `HANDOVER_SCHEDULES=100000`, each scenario runs under 100,000 schedules instead of 4,000.
//! `HANDOVER_SEED` selects other schedules. Atomics are sequentially consistent here. For weaker
//! orders, `src/workers/phase.rs` gives the argument.
//!
//! The following changes of the sources, made one at a time by hand, showed that these tests can
//! fail:
//!
//! * Without `notify_one` in `Shared::publish`, `a_sleeping_thread_is_woken` ends in a deadlock.
//! * Without the comparison with `seen` before the wait in `Shared::wait_for_work`, or without
//!   `notify_all` in the drop of `Workers`, or without `unpark` in `Phase::help`, nearly every
//!   scenario of the pool ends in a deadlock.
//! * With indices counted as finished before they run, in `Phase::help`,
//!   `a_phase_has_ended_when_its_call_returns` finds an index that is still running.
//! * Without `notify_all` in `Cell::run` of tasks, `tasks_end_once_on_any_thread` ends in a
//!   deadlock; without the wait in `Task::cancel` it finds a cancelled task that still runs.
//! * Without `notify_all` in `Job::finish` of the readers, `pieces_come_in_their_order` ends in a
//!   deadlock; with results in the order of their arrival it finds the bytes of another piece.

// These are the sources of a library in a test: its exports are private here, and not all of them
// are used.
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

/// The number of schedules of each kind under which a scenario runs. There are four kinds.
const SCHEDULES: usize = 1000;
/// The number of ordering constraints that the second kind of schedules assumes for an error.
const DEPTH: usize = 3;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a whole number: {text}")))
}

/// Runs a scenario under many schedules. A panic or a deadlock in one of them fails the test and
/// prints the schedule.
fn explore(scenario: impl Fn() + Send + Sync + 'static) {
    let schedules = setting("HANDOVER_SCHEDULES").map_or(SCHEDULES, |n| n as usize / 4);
    let seed = setting("HANDOVER_SEED").unwrap_or(0x5eed);
    let mut config = Config::new();
    // The sources use weaker orders than the tests explore; see above.
    config.silence_warnings = true;
    let scenario = Arc::new(scenario);
    // With one core, threads sleep at once. With eight cores, they spin for a while first.
    for cores in [1, 8] {
        sync::thread::CORES.set(NonZeroUsize::new(cores).unwrap());
        let (random, by_priority) = (scenario.clone(), scenario.clone());
        Runner::new(RandomScheduler::new_from_seed(seed, schedules), config.clone())
            .run(move || random());
        Runner::new(PctScheduler::new_from_seed(seed, DEPTH, schedules), config.clone())
            .run(move || by_priority());
    }
}
