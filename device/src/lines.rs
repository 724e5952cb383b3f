//! Runs of cache lines on huge pages. An index that consists of many small, slowly growing arrays
//! uses them as its memory.
//!
//! An ordinary allocator would place such arrays on small pages, and then each lookup costs a walk
//! through the page tables. Here the arrays are placed side by side on pages of 2 MiB. A [`Run`] is
//! similar to a boxed slice: it owns its lines, and returns them when it is dropped.
//!
//! # Invariants
//! * The lines of a run are inside one mapping of its arena. The mapping stays mapped while it has
//!   runs.
//! * The lines of two runs never overlap. Each line belongs to a run or to the list of free lines.
//! * Neighbouring free lines are one entry of that list.
//!
//! # Concurrency
//! Creating or dropping a run takes the lock of the arena. Reading or writing lines takes no lock.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::DeviceError;
use crate::slab::{CHUNK_BYTES, Notice, Pages};

/// The number of words of a cache line.
pub const WORDS: usize = 16;
const LINE_BYTES: usize = WORDS * size_of::<u32>();
/// The number of bytes of the first mapping of an arena.
const FIRST_BYTES: usize = 4 << 10;

/// The maximum number of free stretches that a search in earlier mappings examines.
const MOST_EXAMINED: usize = 64;

/// A cache line of 16 words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct CacheLine(pub [u32; WORDS]);

impl CacheLine {
    /// A cache line of zeros.
    pub const ZERO: Self = Self([0; WORDS]);
}

/// An allocator of runs. A clone uses the same arena.
#[derive(Clone)]
pub struct LineArena {
    shared: Arc<Mutex<Mappings>>,
}

/// The memory of an arena, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaBytes {
    /// The number of mapped bytes.
    pub reserved: usize,
    /// The number of bytes in runs.
    pub used: usize,
}

/// An owned run of neighbouring cache lines.
pub struct Run {
    start: NonNull<CacheLine>,
    lines: u32,
    /// The number of the mapping that contains the lines.
    mapping: u32,
    arena: LineArena,
}

// SAFETY: a run owns its lines as a `Box<[CacheLine]>` does. It shares only the lists of the arena
// with other runs, and a mutex guards them.
unsafe impl Send for Run {}
// SAFETY: as above; `&Run` allows only reads.
unsafe impl Sync for Run {}

#[derive(Debug, Default)]
struct Mappings {
    mappings: Vec<Option<Mapping>>,
    /// The free stretches: the length, the number of the mapping and the first line of each.
    free: BTreeSet<(u32, u32, u32)>,
    /// The number of the spare mapping, or `None` if there is none. A spare mapping has full size
    /// and no runs, and is kept for the next request.
    spare: Option<u32>,
    bytes: ArenaBytes,
}

#[derive(Debug)]
struct Mapping {
    pages: Pages,
    /// The length of each free stretch, by the stretch's first line.
    free: BTreeMap<u32, u32>,
    /// The index of the first line that has never been in a run. This line and all later lines are
    /// still zero.
    fresh: u32,
    /// The number of lines in runs.
    live: u32,
}

impl LineArena {
    /// Creates an arena without memory.
    pub fn new() -> Self {
        Self { shared: Arc::default() }
    }

    /// Allocates a run of `lines` lines of zeros.
    ///
    /// # Errors
    /// Returns an error if the operating system has no memory, or if `lines` is above 2^26 (4 GiB).
    pub fn allocate(&self, lines: usize) -> Result<Run, DeviceError> {
        let too_many = || DeviceError::TooManyRows { rows: lines as u64 };
        let lines =
            u32::try_from(lines).ok().filter(|&lines| lines <= 1 << 26).ok_or_else(too_many)?;
        if lines == 0 {
            return Ok(self.empty());
        }
        let mut shared = self.lock();
        let (mapping, first) = shared.take(lines)?;
        Ok(self.make_run(shared, lines, mapping, first))
    }

    /// Makes the run of a stretch that was removed from the free list.
    fn make_run(
        &self,
        mut shared: MutexGuard<'_, Mappings>,
        lines: u32,
        mapping: u32,
        first: u32,
    ) -> Run {
        let taken =
            shared.mappings[mapping as usize].as_mut().expect("a mapping that was just taken from");
        // SAFETY: the stretch of `lines` lines that was taken lies inside this mapping.
        let start = unsafe { taken.pages.start().cast::<CacheLine>().add(first as usize) };
        let used_before = taken.fresh.saturating_sub(first).min(lines);
        let fresh = taken.fresh;
        taken.fresh = fresh.max(first + lines);
        let whole = taken.pages.bytes() / LINE_BYTES;
        let left = |fresh: u32| whole - fresh as usize;
        let notice = Notice::for_remaining(left(fresh), left(taken.fresh), whole);
        let notice = notice.filter(|_| shared.next_bytes() == CHUNK_BYTES);
        drop(shared);
        if let Some(notice) = notice {
            notice.send();
        }
        let mut run = Run { start, lines, mapping, arena: self.clone() };
        run[..used_before as usize].fill(CacheLine::ZERO);
        run
    }

    /// Returns a run without lines, which uses no memory.
    pub fn empty(&self) -> Run {
        Run { start: NonNull::dangling(), lines: 0, mapping: 0, arena: self.clone() }
    }

    /// Allocates a run of zeros with the length of `run` in an earlier mapping. Returns `None` if
    /// no earlier mapping has room. If runs move to earlier mappings, the last mappings become
    /// empty, and empty mappings are returned to the operating system.
    pub fn allocate_below(&self, run: &Run) -> Option<Run> {
        let mut shared = self.lock();
        // The list may be long. If there is much room, a fitting stretch is near the beginning of
        // the list.
        let fitting = shared.free.range((run.lines, 0, 0)..).take(MOST_EXAMINED);
        let &(length, mapping, first) =
            fitting.filter(|(_, mapping, _)| *mapping < run.mapping).min_by_key(|f| f.1)?;
        shared.take_from(run.lines, length, mapping, first);
        Some(self.make_run(shared, run.lines, mapping, first))
    }

    /// Returns the memory of this arena.
    pub fn bytes(&self) -> ArenaBytes {
        self.lock().bytes
    }

    fn lock(&self) -> MutexGuard<'_, Mappings> {
        // No code under this lock leaves the lists half changed when it panics.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for LineArena {
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for Run {
    type Target = [CacheLine];

    #[inline(always)]
    fn deref(&self) -> &[CacheLine] {
        // SAFETY: `start` is the first of `lines` lines that belong to this run alone (a dangling,
        // aligned address where there are none). They are mapped as long as the run lives, zeroed
        // by the kernel or written since, and any bits are a valid line.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.lines as usize) }
    }
}

impl DerefMut for Run {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [CacheLine] {
        // SAFETY: as in `deref`, and `&mut self` makes this the only reference to the lines.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.lines as usize) }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.lines > 0 {
            let mut shared = self.arena.lock();
            let mapping = shared.mappings[self.mapping as usize].as_ref();
            let base = mapping.expect("a mapping stays while it has runs").pages.start();
            let first = (self.start.as_ptr().addr() - base.as_ptr().addr()) / LINE_BYTES;
            shared.give(self.mapping, first as u32, self.lines);
        }
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Run({} lines)", self.lines)
    }
}

impl fmt::Debug for LineArena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LineArena({:?})", self.bytes())
    }
}

impl Mappings {
    /// Removes `lines` lines from the smallest free stretch that is long enough. Returns the
    /// mapping and the first line. Maps more memory if no stretch is long enough.
    fn take(&mut self, lines: u32) -> Result<(u32, u32), DeviceError> {
        let found = self.free.range((lines, 0, 0)..).next().copied();
        let (length, number, first) = match found {
            Some(found) => found,
            None => self.extend(lines)?,
        };
        self.take_from(lines, length, number, first);
        Ok((number, first))
    }

    /// Removes the first `lines` lines from a free stretch.
    fn take_from(&mut self, lines: u32, length: u32, number: u32, first: u32) {
        self.remove(length, number, first);
        if length > lines {
            self.insert(length - lines, number, first + lines);
        }
        let mapping = self.mappings[number as usize].as_mut().expect("free lines are mapped");
        mapping.live += lines;
        self.bytes.used += lines as usize * LINE_BYTES;
        if self.spare == Some(number) {
            self.spare = None;
        }
    }

    /// Adds the lines of a run to the free list.
    fn give(&mut self, number: u32, first: u32, lines: u32) {
        let mapping = self.mappings[number as usize].as_mut().expect("a run's lines are mapped");
        mapping.live -= lines;
        self.bytes.used -= lines as usize * LINE_BYTES;
        if mapping.live == 0 {
            self.release_or_keep(number);
            return;
        }
        let before =
            mapping.free.range(..first).next_back().map(|(&start, &length)| (start, length));
        let after = mapping.free.get(&(first + lines)).copied();
        let (mut start, mut length) = (first, lines);
        if let Some((start_before, length_before)) = before
            && start_before + length_before == first
        {
            self.remove(length_before, number, start_before);
            (start, length) = (start_before, length + length_before);
        }
        if let Some(length_after) = after {
            self.remove(length_after, number, first + lines);
            length += length_after;
        }
        self.insert(length, number, start);
    }

    /// Returns a mapping without runs to the operating system. One mapping of full size is kept as
    /// a spare while other mappings are in use.
    fn release_or_keep(&mut self, number: u32) {
        let mapping = self.mappings[number as usize].as_mut().expect("it was mapped a moment ago");
        let bytes = mapping.pages.bytes();
        for (start, length) in std::mem::take(&mut mapping.free) {
            self.free.remove(&(length, number, start));
        }
        if bytes == CHUNK_BYTES && self.bytes.used > 0 && self.spare.is_none() {
            self.spare = Some(number);
            self.insert((bytes / LINE_BYTES) as u32, number, 0);
            return;
        }
        self.release(number);
        if self.bytes.used == 0
            && let Some(spare) = self.spare.take()
        {
            self.free.remove(&((CHUNK_BYTES / LINE_BYTES) as u32, spare, 0));
            self.release(spare);
        }
    }

    /// Returns a mapping to the operating system.
    fn release(&mut self, number: u32) {
        if let Some(mapping) = self.mappings[number as usize].take() {
            self.bytes.reserved -= mapping.pages.bytes();
        }
    }

    /// Returns the size in bytes of the next mapping. It is a quarter of the mapped bytes, and at
    /// most a huge page.
    fn next_bytes(&self) -> usize {
        (self.bytes.reserved / 4).next_power_of_two().clamp(FIRST_BYTES, CHUNK_BYTES)
    }

    /// Maps memory for `lines` more lines.
    fn extend(&mut self, lines: u32) -> Result<(u32, u32, u32), DeviceError> {
        let wanted = lines as usize * LINE_BYTES;
        let bytes = if wanted > CHUNK_BYTES {
            wanted.next_multiple_of(CHUNK_BYTES)
        } else {
            self.next_bytes().max(wanted.next_power_of_two())
        };
        let pages = Pages::zeroed(bytes)?;
        let mapping = Mapping { pages, free: BTreeMap::new(), fresh: 0, live: 0 };
        let number = match self.mappings.iter().position(Option::is_none) {
            Some(number) => number,
            None => {
                self.mappings.push(None);
                self.mappings.len() - 1
            }
        };
        self.mappings[number] = Some(mapping);
        self.bytes.reserved += bytes;
        let stretch = ((bytes / LINE_BYTES) as u32, number as u32, 0);
        self.insert(stretch.0, stretch.1, stretch.2);
        Ok(stretch)
    }

    fn insert(&mut self, length: u32, number: u32, first: u32) {
        self.free.insert((length, number, first));
        let mapping = self.mappings[number as usize].as_mut().expect("free lines are mapped");
        mapping.free.insert(first, length);
    }

    fn remove(&mut self, length: u32, number: u32, first: u32) {
        self.free.remove(&(length, number, first));
        if let Some(mapping) = self.mappings[number as usize].as_mut() {
            mapping.free.remove(&first);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_arena_without_runs_has_no_memory() {
        let arena = LineArena::new();
        assert_eq!(arena.bytes(), ArenaBytes::default());
        assert!(arena.empty().is_empty());
        let runs: Vec<Run> = (1..200).map(|n| arena.allocate(n * 37).unwrap()).collect();
        let lines: usize = runs.iter().map(|run| run.len()).sum();
        let bytes = arena.bytes();
        assert_eq!(bytes.used, lines * 64);
        assert!(bytes.reserved >= bytes.used && bytes.reserved < bytes.used * 3 / 2, "{bytes:?}");
        drop(runs);
        assert_eq!(arena.bytes(), ArenaBytes::default());
    }

    #[test]
    fn a_run_may_exceed_a_huge_page_and_outlive_its_arena() {
        let mut run = LineArena::new().allocate(100_000).unwrap();
        assert!(run.iter().all(|line| *line == CacheLine::ZERO));
        run[99_999].0[15] = 7;
        assert_eq!(run[99_999].0[15], 7);
        assert!(LineArena::new().allocate((1 << 26) + 1).is_err());
    }

    #[test]
    fn runs_that_move_down_empty_the_last_mappings() {
        let arena = LineArena::new();
        let mut runs: Vec<Run> = (0..4000).map(|_| arena.allocate(100).unwrap()).collect();
        let full = arena.bytes().reserved;
        let mut number = 0;
        runs.retain(|_| {
            number += 1;
            number % 8 == 0
        });
        for run in runs.iter_mut().rev() {
            run[7].0[3] = 5;
            if let Some(mut lower) = arena.allocate_below(run) {
                assert!(lower.iter().all(|line| *line == CacheLine::ZERO));
                lower.copy_from_slice(run);
                *run = lower;
            }
        }
        assert!(runs.iter().all(|run| run[7].0[3] == 5));
        assert!(arena.bytes().reserved < full / 3, "{:?} of {full}", arena.bytes());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn runs_are_vectors(
            steps in prop::collection::vec((0usize..40, prop_oneof![0usize..9, 1usize..3000, Just(33_000)]), 1..300),
        ) {
            let arena = LineArena::new();
            let mut runs: Vec<(Run, u32)> = Vec::new();
            for (number, (at, lines)) in steps.into_iter().enumerate() {
                let mark = number as u32 + 1;
                if at < runs.len() {
                    let (run, mark) = runs.swap_remove(at);
                    prop_assert!(run.iter().all(|line| *line == CacheLine([mark; WORDS])));
                }
                let mut run = arena.allocate(lines).unwrap();
                prop_assert_eq!(run.len(), lines);
                prop_assert!(run.iter().all(|line| *line == CacheLine::ZERO), "runs begin with zeros");
                run.fill(CacheLine([mark; WORDS]));
                runs.push((run, mark));
                let used: usize = runs.iter().map(|(run, _)| run.len() * LINE_BYTES).sum();
                prop_assert_eq!(arena.bytes().used, used);
                prop_assert!(arena.bytes().reserved >= used);
            }
            for (run, mark) in &runs {
                prop_assert!(run.iter().all(|line| *line == CacheLine([*mark; WORDS])));
            }
            drop(runs);
            prop_assert_eq!(arena.bytes(), ArenaBytes::default());
        }
    }
}
