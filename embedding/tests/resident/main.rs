//! Rows on an emulated device against rows on the host: random histories of steps, checkpoints,
//! deltas, lookups, restores and new vocabularies end in the same bytes.

#[path = "../soak/chance.rs"]
mod chance;
#[allow(dead_code, reason = "a part is for the other test")]
#[path = "../soak/compare.rs"]
mod compare;
mod device;
mod history;
mod memory;
mod same;
mod steps;
mod tables;

use zillion_embedding::CacheFigures;

use crate::history::{Done, History};

/// The variable that chooses the seed of the only history.
const SEED: &str = "ZILLION_RESIDENT_SEED";

/// The variable with the number of histories with a cache.
const HISTORIES: &str = "ZILLION_RESIDENT_HISTORIES";

#[test]
fn histories_end_in_the_same_bytes() {
    if let Some(seed) = number_of(SEED) {
        History::new(seed, false).run(150);
        return;
    }
    let mut skipped = 0;
    for seed in 0..60 {
        let history = std::panic::catch_unwind(|| History::new(seed, false).run(60));
        let done = history.unwrap_or_else(|_| panic!("history {seed} failed; set {SEED}"));
        skipped += done.skipped;
    }
    assert!(skipped > 50, "{skipped} steps were skipped");
}

#[test]
fn histories_with_a_cache_end_in_the_same_bytes() {
    if let Some(seed) = number_of(SEED) {
        History::new(seed, true).run(60);
        return;
    }
    let (mut all, histories) = (Done::default(), number_of(HISTORIES).unwrap_or(60));
    for seed in 0..histories {
        let history = std::panic::catch_unwind(|| History::new(seed, true).run(60));
        let done = history.unwrap_or_else(|_| panic!("history {seed} failed; set {SEED}"));
        all.steps += done.steps;
        all.refused += done.refused;
        all.figures.wanted += done.figures.wanted;
        all.figures.found += done.figures.found;
        all.figures.rows_in += done.figures.rows_in;
        all.figures.rows_out += done.figures.rows_out;
        all.figures.waited_steps += done.figures.waited_steps;
    }
    let CacheFigures { wanted, found, rows_in, rows_out, waited_steps, .. } = all.figures;
    assert!(all.refused > 0 && all.refused < all.steps / 2);
    assert!(found > 0 && found < wanted && rows_in > 0 && rows_out > 0);
    assert!(waited_steps > 0 && waited_steps < all.steps);
}

fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|number| number.parse().ok())
}
