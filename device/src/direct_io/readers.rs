//! Threads that read scattered pieces of files for others.
//!
//! They compute nothing: a thread has one read in flight, waits for it, copies the pieces that were asked for
//! out of the pages, and takes the next. So a group keeps as many reads in flight as it has threads.
//!
//! # Invariants
//! * What a [`Reading`] gives is in the order that was asked for, whatever came back first.
//! * A reading that is dropped before it is done reads no more than what is in flight at that moment.
//!
//! # Concurrency
//! One mutex guards the queue of jobs, another the results of one reading; both are held for a push or a pop.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::ops::Range;

use super::{DirectFile, PAGE, Page, bytes, pages};
use crate::error::DeviceError;
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Neighbouring pieces are read at once where no more than this lies between their pages: reading it costs the
/// disk less than another read.
const GAP: u64 = 4 * PAGE as u64;
/// What one read takes in at most, a single piece aside.
const LARGEST: u64 = 128 << 10;
/// Reads of one job: enough that taking one costs little beside them.
const JOB_READS: usize = 8;

/// The threads. Dropping the value waits for the reads in flight; those not begun fail.
#[derive(Debug)]
pub struct Readers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// Pieces that are being read.
#[derive(Debug)]
pub struct Reading {
    results: Arc<Results>,
    /// The pieces of each job.
    jobs: Vec<Range<usize>>,
    piece: usize,
}

/// Pieces that have been read.
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

/// Some reads of one file, and what is wanted of them.
#[derive(Debug)]
struct Job {
    file: Arc<DirectFile>,
    reads: Vec<Read>,
    /// Bytes of a piece.
    piece: usize,
    number: usize,
    results: Arc<Results>,
}

/// Whole pages, and where in them the pieces begin.
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
    /// Where the operating system refuses one.
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

    /// Begins to read the pieces of `piece` bytes that begin at `offsets` (ascending).
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
            // A thread that panicked has said so; a panic while dropping would abort the process.
            let _ = thread.join();
        }
    }
}

impl Reading {
    /// Waits for all pieces.
    ///
    /// # Errors
    /// The first error in the order of the pieces.
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
        // Nobody will look at the results: reads of jobs that have not begun are left out.
        lock(&self.results.done).waiting = 0;
    }
}

impl Pieces {
    /// The bytes of the piece at a position in the offsets that were asked for; `None` beyond them.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let chunk = self.chunks.partition_point(|(range, _)| range.end <= index);
        let (range, bytes) = self.chunks.get(chunk)?;
        let start = (index - range.start) * self.piece;
        bytes.get(start..start + self.piece)
    }

    /// Bytes of memory.
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

/// The reads that give all pieces.
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
    // What is guarded is whole between two operations, whoever panicked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
