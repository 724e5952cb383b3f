//! A soak test. It runs random histories of tables with all possible assertions, for 25 seconds
//! or for a given time.
//!
//! Each rule of a table has a property test of its own. But rules can also affect each other: for
//! example, a row may be spilled while a checkpoint beside training keeps its image, and may then
//! be restored on another number of shards. Errors of this kind are found by doing all operations
//! together, for a long time.
//!
//! A history is a function of its seed, which is printed. `SOAK_SEED=<seed>` runs this history
//! again, to its end. `SOAK_SECONDS=3600` runs new histories for an hour. Without these variables,
//! every run takes 25 seconds and has the same histories. It begins with the histories that have
//! found errors before. So if a run fails after a change, the change is the cause. The clock can
//! only end a history early.
//!
//! # Concurrency
//! Histories run on a separate thread. The test waits for a message about each operation, so the
//! failure of an operation that never ends names the operation. At most two threads work.

mod chance;
mod compare;
mod history;
mod keys;
mod model;
mod side;
mod tables;

use std::iter::successors;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use history::History;
use zillion_feature::random::mix64;

/// The number of waits of one second after which an operation counts as hanging. Operations take
/// milliseconds. The test counts waits instead of time, because a process that is stopped for a
/// long time has only one wait in that time.
const PATIENCE: u32 = 120;
/// The first seed of the histories that every run has.
const FIRST_SEED: u64 = 1;
/// The seeds of histories that have found errors. In the first, rows moved between shards without
/// freeing their memory. In the second, a filter confused keys with other keys of the same step.
const FINDS: [u64; 2] = [10_524_071_979_261_448_634, 14_389_367_192_185_317_267];

#[test]
fn random_histories_leave_twins_alike() {
    let asked = setting("SOAK_SECONDS");
    let seconds = asked.unwrap_or(25);
    // The last history needs time to finish.
    let until = Instant::now() + Duration::from_secs(seconds - seconds.div_ceil(20).min(4));
    let only = setting("SOAK_SEED");
    let (tell, told) = channel();
    let soak = thread::spawn(move || {
        let (mut histories, mut operations) = (0, 0);
        for seed in seeds(only, asked.is_some()) {
            let history = History::new(seed);
            eprintln!("SOAK_SEED={seed}: {}", history.describe());
            let end = only.is_none().then_some(until);
            operations += history.run(end, &|what| {
                // If the test has failed, there is no receiver.
                let _ = tell.send(format!("SOAK_SEED={seed}, {what}"));
            });
            histories += 1;
            if Instant::now() >= until {
                break;
            }
        }
        eprintln!("{histories} histories, {operations} operations");
    });
    let (mut last, mut waited) = ("the beginning".to_owned(), 0);
    loop {
        match told.recv_timeout(Duration::from_secs(1)) {
            Ok(what) => (last, waited) = (what, 0),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                waited += 1;
                assert!(waited < PATIENCE, "hangs: {last}");
            }
        }
    }
    if soak.join().is_err() {
        panic!("what the thread has said went wrong at {last}");
    }
}

/// Returns the seeds of the histories to run: only the given seed, endless new seeds if `are_new`
/// is `true`, or the endless seeds that every run has.
fn seeds(only: Option<u64>, are_new: bool) -> Box<dyn Iterator<Item = u64>> {
    let from = |first| successors(Some(mix64(first)), |&seed| Some(mix64(seed)));
    match only {
        Some(seed) => Box::new([seed].into_iter()),
        None if are_new => {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            Box::new(from(now.as_nanos() as u64))
        }
        None => Box::new(FINDS.into_iter().chain(from(FIRST_SEED))),
    }
}

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a whole number: {text}")))
}
