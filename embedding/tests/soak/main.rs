//! A soak: for a minute, or as long as is asked for, random histories of tables with every
//! assertion that can be made.
//!
//! Why it exists: each rule of a table has a property test of its own. What goes wrong between them
//! (a row that leaves memory while a checkpoint beside training keeps what it was, and that comes
//! back on another number of shards) is found by doing everything at once, for long.
//!
//! A history is a function of its seed, which is printed: `SOAK_SEED=<seed>` goes through that one
//! again, to its end. `SOAK_SECONDS=3600` goes on for an hour, with histories that nobody has seen;
//! without it there is a minute of the same ones at every run, first those that have found
//! something once, so that a change answers for what it breaks. The clock cuts a history short and
//! changes nothing else.
//!
//! # Concurrency
//! Histories run on a thread of their own; the test waits for word of each operation, so that one
//! which never ends fails the test by name. At most two threads work.

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

/// An operation takes milliseconds. One that does not end while the test has waited this often, a
/// second each, hangs. A process that was stopped for long and goes on has waited once.
const PATIENCE: u32 = 120;
/// Where the minute begins that is the same at every run.
const FIRST_SEED: u64 = 1;
/// Histories that have found something: rows that moved between shards and left their memory
/// behind, keys that a filter took for others of the same step.
const FINDS: [u64; 2] = [10_524_071_979_261_448_634, 14_389_367_192_185_317_267];

#[test]
fn random_histories_leave_twins_alike() {
    let asked = setting("SOAK_SECONDS");
    let seconds = asked.unwrap_or(60);
    // The last history has an end to come to.
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
                // Nobody listens where the test has given up.
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

/// The seeds of the histories: that one, or without end those of a moment, or those of every run.
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
