//! Threads that read scattered pieces of files, so that other threads do not wait for the disk.
//!
//! The threads compute nothing. A thread starts one read, waits for it, copies the requested pieces
//! from the pages, and then takes the next read. So the number of reads in progress is the number
//! of threads.
//!
//! # Invariants
//! * A [`Reading`] returns its pieces in the requested order, regardless of the order in which the
//!   reads end.
//! * If a reading is dropped early, the reads that are in progress at that moment end, and no other
//!   read begins.
//!
//! # Concurrency
//! One mutex guards the queue of jobs, and another mutex guards the results of one reading. Both
//! are held only for a push or a pop.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::ops::Range;

use super::{DirectFile, PAGE, Page, bytes, pages};
use crate::error::DeviceError;
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The maximum number of bytes between two pieces that are read together. For the disk, reading so
/// few extra bytes takes less time than a second read.
const GAP: u64 = 4 * PAGE as u64;
/// The largest number of bytes of one read, unless a single piece is larger.
const LARGEST: u64 = 128 << 10;
/// The number of reads in one job. It is so large that taking a job from the queue costs little in
/// comparison.
const JOB_READS: usize = 8;

/// A group of reading threads. Dropping it waits for the reads in progress. All other reads fail.
#[derive(Debug)]
pub struct Readers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// A handle to a request for pieces of a file.
#[derive(Debug)]
pub struct Reading {
    results: Arc<Results>,
    /// The range of pieces of each job.
    jobs: Vec<Range<usize>>,
    piece: usize,
}

/// The bytes of the requested pieces.
#[derive(Debug)]
pub struct Pieces {
    chunks: Vec<(Range<usize>, Vec<u8>)>,
    piece: usize,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    is_closing: bool,
}

/// A few reads of one file, with the destination of their results.
#[derive(Debug)]
struct Job {
    file: Arc<DirectFile>,
    reads: Vec<Read>,
    /// The number of bytes of a piece.
    piece: usize,
    number: usize,
    results: Arc<Results>,
}

/// A read of whole pages, with the offsets of the pieces in these pages.
#[derive(Debug)]
struct Read {
    pages: Range<u64>,
    pieces: Vec<u32>,
}

#[derive(Debug, Default)]
struct Results {
    done: Mutex<Done>,
    all: Condvar,
}

#[derive(Debug, Default)]
struct Done {
    waiting: usize,
    chunks: Vec<Option<Result<Vec<u8>, DeviceError>>>,
}

impl Readers {
    /// Starts `count` threads.
    ///
    /// # Errors
    /// Returns an error if the operating system cannot start a thread.
    pub fn new(count: NonZeroUsize) -> Result<Self, DeviceError> {
        let shared = Arc::new(Shared::default());
        let mut readers = Self { shared, threads: Vec::new() };
        for index in 0..count.get() {
            let shared = readers.shared.clone();
            let thread = thread::Builder::new()
                .name(format!("zillion-reader-{index}"))
                .spawn(move || shared.work())
                .map_err(|source| DeviceError::Thread { index, source })?;
            readers.threads.push(thread);
        }
        Ok(readers)
    }

    /// Begins to read the pieces of `piece` bytes at `offsets`, which must ascend.
    pub fn start(&self, file: &Arc<DirectFile>, offsets: &[u64], piece: usize) -> Reading {
        let reads = merge(offsets, piece);
        let results = Arc::new(Results::default());
        let mut jobs = Vec::with_capacity(reads.len().div_ceil(JOB_READS));
        let (mut queued, mut first) = (Vec::with_capacity(jobs.capacity()), 0);
        let mut reads = reads.into_iter().peekable();
        while reads.peek().is_some() {
            let reads: Vec<Read> = reads.by_ref().take(JOB_READS).collect();
            let end = first + reads.iter().map(|read| read.pieces.len()).sum::<usize>();
            let (file, results, number) = (file.clone(), results.clone(), jobs.len());
            queued.push(Job { file, reads, piece, number, results });
            jobs.push(first..end);
            first = end;
        }
        {
            let mut done = lock(&results.done);
            done.waiting = jobs.len();
            done.chunks.resize_with(jobs.len(), || None);
        }
        let mut queue = lock(&self.shared.queue);
        let few = queued.len() < self.threads.len();
        let count = queued.len();
        queue.jobs.extend(queued);
        drop(queue);
        match few {
            true => (0..count).for_each(|_| self.shared.wake.notify_one()),
            false => self.shared.wake.notify_all(),
        }
        Reading { results, jobs, piece }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        {
            let mut queue = lock(&self.shared.queue);
            queue.is_closing = true;
            for job in queue.jobs.drain(..) {
                job.finish(Err(DeviceError::Readers));
            }
        }
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            // The panic hook has reported a thread that panicked; a panic while dropping would
            // abort the process.
            let _ = thread.join();
        }
    }
}

impl Reading {
    /// Waits for all pieces.
    ///
    /// # Errors
    /// Returns the first error in the order of the pieces.
    pub fn wait(self) -> Result<Pieces, DeviceError> {
        let mut done = lock(&self.results.done);
        while done.waiting > 0 {
            done = self.results.all.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
        let mut chunks = Vec::with_capacity(self.jobs.len());
        for (range, chunk) in self.jobs.iter().zip(&mut done.chunks) {
            chunks.push((range.clone(), chunk.take().unwrap_or(Err(DeviceError::Readers))?));
        }
        Ok(Pieces { chunks, piece: self.piece })
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        // No thread needs the results any more, so jobs that have not begun are skipped.
        lock(&self.results.done).waiting = 0;
    }
}

impl Pieces {
    /// Returns the bytes of the piece whose offset has the index `index` in the requested offsets,
    /// or `None` if there is no such piece.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let chunk = self.chunks.partition_point(|(range, _)| range.end <= index);
        let (range, bytes) = self.chunks.get(chunk)?;
        let start = (index - range.start) * self.piece;
        bytes.get(start..start + self.piece)
    }

    /// Returns the number of bytes of memory that the pieces take.
    pub fn bytes(&self) -> usize {
        self.chunks.iter().map(|(_, chunk)| chunk.capacity()).sum()
    }
}

impl Shared {
    fn work(&self) {
        let mut buffer = Vec::new();
        loop {
            let mut queue = lock(&self.queue);
            let job = loop {
                if let Some(job) = queue.jobs.pop_front() {
                    break job;
                }
                if queue.is_closing {
                    return;
                }
                queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
            };
            drop(queue);
            if lock(&job.results.done).waiting > 0 {
                let outcome = job.read(&mut buffer);
                job.finish(outcome);
            }
        }
    }
}

impl Job {
    fn read(&self, buffer: &mut Vec<Page>) -> Result<Vec<u8>, DeviceError> {
        let count: usize = self.reads.iter().map(|read| read.pieces.len()).sum();
        let mut chunk = Vec::with_capacity(count * self.piece);
        for Read { pages: range, pieces } in &self.reads {
            let needed = (range.end - range.start) as usize;
            if buffer.len() < needed {
                *buffer = pages(needed);
            }
            self.file.read(range.start * PAGE as u64, &mut buffer[..needed])?;
            let read = bytes(&buffer[..needed]);
            for &start in pieces {
                let start = start as usize;
                chunk.extend_from_slice(&read[start..start + self.piece]);
            }
        }
        Ok(chunk)
    }

    fn finish(&self, outcome: Result<Vec<u8>, DeviceError>) {
        let mut done = lock(&self.results.done);
        done.chunks[self.number] = Some(outcome);
        done.waiting = done.waiting.saturating_sub(1);
        if done.waiting == 0 {
            self.results.all.notify_all();
        }
    }
}

/// Merges neighbouring pieces and returns the reads that cover all of them.
fn merge(offsets: &[u64], piece: usize) -> Vec<Read> {
    let page = PAGE as u64;
    let mut reads: Vec<Read> = Vec::new();
    for &offset in offsets {
        let (first, end) = (offset / page, (offset + piece as u64).div_ceil(page));
        if let Some(last) = reads.last_mut()
            && first >= last.pages.start
            && first * page <= last.pages.end * page + GAP
            && (end - last.pages.start) * page <= LARGEST
        {
            last.pages.end = end.max(last.pages.end);
            last.pieces.push((offset - last.pages.start * page) as u32);
        } else {
            let pieces = vec![(offset - first * page) as u32];
            reads.push(Read { pages: first..end, pieces });
        }
    }
    reads
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The guarded value is consistent between any two operations, so a poisoned lock is safe to
    // use.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
