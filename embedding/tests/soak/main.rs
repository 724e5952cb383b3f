//! A soak: for a minute, or as long as is asked for, random histories of tables with every assertion that can be made.
//!
//! Why it exists: each rule of a table has a property test of its own. What goes wrong between them (a row that leaves
//! memory while a checkpoint beside training keeps what it was, and that comes back on another number of shards) is found by
//! doing everything at once, for long.
//!
//! A history is a function of its seed, which is printed: `SOAK_SEED=<seed>` goes through that one again, to its end.
//! `SOAK_SECONDS=3600` goes on for an hour; the default is 60. The clock cuts a history short and changes nothing else.
//!
//! # Concurrency
//! Histories run on a thread of their own; the test waits for word of each operation, so that one which never ends fails
//! the test by name. At most two threads work.

mod chance;
mod compare;
mod history;
mod keys;
mod model;
mod side;
mod tables;

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use history::History;
use zillion_feature::random::mix64;

/// An operation takes milliseconds. One that does not end while the test has waited this often, a second each, hangs. A
/// process that was stopped for long and goes on has waited once.
const PATIENCE: u32 = 120;

#[test]
fn random_histories_leave_twins_alike() {
    let seconds = setting("SOAK_SECONDS").unwrap_or(60);
    // The last history has an end to come to.
    let until = Instant::now() + Duration::from_secs(seconds - seconds.div_ceil(20).min(4));
    let only = setting("SOAK_SEED");
    let (tell, told) = channel();
    let soak = thread::spawn(move || {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut seed = only.unwrap_or(mix64(now.as_nanos() as u64));
        let (mut histories, mut operations) = (0, 0);
        loop {
            let history = History::new(seed);
            eprintln!("SOAK_SEED={seed}: {}", history.describe());
            let end = only.is_none().then_some(until);
            operations += history.run(end, &|what| {
                // Nobody listens where the test has given up.
                let _ = tell.send(format!("SOAK_SEED={seed}, {what}"));
            });
            histories += 1;
            if only.is_some() || Instant::now() >= until {
                eprintln!("{histories} histories, {operations} operations");
                return;
            }
            seed = mix64(seed);
        }
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

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a whole number: {text}")))
}
