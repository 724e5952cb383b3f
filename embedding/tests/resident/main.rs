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
mod steps;
mod tables;

use crate::history::History;

/// The variable that chooses the seed of the only history, or the number of histories.
const SEED: &str = "ZILLION_RESIDENT_SEED";

#[test]
fn histories_end_in_the_same_bytes() {
    if let Some(seed) = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok()) {
        History::new(seed).run(150);
        return;
    }
    let mut skipped = 0;
    for seed in 0..60 {
        let history = std::panic::catch_unwind(|| History::new(seed).run(60));
        skipped += history.unwrap_or_else(|_| panic!("history {seed} failed; set {SEED}"));
    }
    assert!(skipped > 50, "{skipped} steps were skipped");
}
