//! The contract of a home of the log of generations, and a home in memory for tests.

use std::collections::BTreeMap;
use std::sync::{Arc, Barrier, Mutex, PoisonError};

use crate::error::Result;
use crate::map::{ClusterMap, EntryKind, MapEntry};

/// The number of processes that want to begin the same generation.
const RIVALS: usize = 8;

/// A home of the log in the memory of this process.
#[derive(Clone, Debug, Default)]
pub struct MemoryMap {
    entries: Arc<Mutex<BTreeMap<(String, u64), MapEntry>>>,
}

impl ClusterMap for MemoryMap {
    fn newest(&self, run: &str) -> Result<u64> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(entries.keys().filter(|(of, _)| of == run).map(|&(_, number)| number).max().unwrap_or(0))
    }

    fn entry(&self, run: &str, number: u64) -> Result<Option<MapEntry>> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(entries.get(&(run.to_owned(), number)).cloned())
    }

    fn create(&self, entry: &MapEntry) -> Result<bool> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (entry.run.clone(), entry.generation);
        Ok(entries.entry(key).or_insert_with(|| entry.clone()) == entry)
    }
}

fn entry(run: &str, generation: u64, process: u64) -> MapEntry {
    MapEntry {
        kind: EntryKind::Generation,
        generation,
        run: run.to_owned(),
        job: "job".to_owned(),
        trainers: 2,
        servers: vec![("10.0.0.1:7100".to_owned(), u64::MAX), ("[::1]:7100".to_owned(), 1)],
        bounds: vec![0, 2048, 4096],
        process,
    }
}

/// Checks the contract of a home. `open` opens the same home each time, as another process does.
///
/// # Panics
/// Panics if the home breaks the contract.
pub fn check_map(open: &(dyn Fn() -> Arc<dyn ClusterMap> + Sync)) {
    let home = open();
    let (run, other) = ("runs/a run with ü, / and \"", "runs/a");
    assert_eq!(home.newest(run).unwrap(), 0);
    assert_eq!(home.entry(run, 1).unwrap(), None);
    let first = entry(run, 1, 7);
    assert!(home.create(&first).unwrap());
    assert!(home.create(&first).unwrap(), "a repeated call of the same process succeeds");
    assert!(!home.create(&entry(run, 1, 8)).unwrap(), "another process has lost");
    assert_eq!(open().entry(run, 1).unwrap(), Some(first));
    // Numbers are numbers and not texts, and gaps are allowed.
    for number in [9, 10, 100, u64::MAX] {
        assert!(home.create(&entry(run, number, 7)).unwrap());
        assert_eq!(open().newest(run).unwrap(), number);
    }
    assert_eq!((home.newest(other).unwrap(), home.entry(other, 1).unwrap()), (0, None));

    let barrier = Barrier::new(RIVALS);
    let created: Vec<bool> = std::thread::scope(|scope| {
        let race = |process: usize| {
            let barrier = &barrier;
            scope.spawn(move || {
                let (home, mine) = (open(), entry(other, 1, process as u64));
                barrier.wait();
                home.create(&mine).unwrap()
            })
        };
        let rivals: Vec<_> = (0..RIVALS).map(race).collect();
        rivals.into_iter().map(|rival| rival.join().unwrap()).collect()
    });
    let winners: Vec<usize> = (0..RIVALS).filter(|&process| created[process]).collect();
    assert_eq!(winners.len(), 1, "one process wins: {created:?}");
    let kept = home.entry(other, 1).unwrap().unwrap();
    assert_eq!(kept, entry(other, 1, winners[0] as u64));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_a_home_of_the_map() {
        let home = MemoryMap::default();
        check_map(&|| Arc::new(home.clone()));
    }
}
