//! Tests of the guarantees of the readers in many orders of events.

use std::num::NonZeroUsize;

use shuttle::sync::Arc;
use shuttle::sync::atomic::Ordering::SeqCst;
use shuttle::thread;

use crate::direct_io::{DirectFile, PAGE, Pieces, Readers, byte};
use crate::explore;

fn readers(threads: usize) -> Readers {
    Readers::new(NonZeroUsize::new(threads).unwrap()).unwrap()
}

/// Returns the offsets of `count` pages whose distances are too large for reading two pages
/// together. Eight such reads form one job.
fn scattered(count: u64) -> Vec<u64> {
    (0..count).map(|i| i * 16 * PAGE as u64).collect()
}

fn are_right(pieces: &Pieces, offsets: &[u64]) {
    for (i, &offset) in offsets.iter().enumerate() {
        let expected: Vec<u8> = (offset..offset + 4).map(byte).collect();
        assert_eq!(pieces.get(i), Some(&expected[..]), "the piece at {offset}");
    }
    assert!(pieces.get(offsets.len()).is_none());
}

#[test]
fn pieces_come_in_their_order() {
    explore(|| {
        let readers = Arc::new(readers(2));
        let file = Arc::new(DirectFile::new(u64::MAX));
        // There are three jobs of one reading. Another thread has jobs at the same time.
        let beside = {
            let (readers, file) = (readers.clone(), file.clone());
            thread::spawn(move || {
                let offsets = scattered(3);
                are_right(&readers.start(&file, &offsets, 4).wait().unwrap(), &offsets);
            })
        };
        let offsets = scattered(17);
        are_right(&readers.start(&file, &offsets, 4).wait().unwrap(), &offsets);
        beside.join().unwrap();
        assert_eq!(file.reads.load(SeqCst), 20);
        let nothing = readers.start(&file, &[], 4).wait().unwrap();
        assert!(nothing.get(0).is_none());
    });
}

#[test]
fn the_first_error_in_the_order_of_the_pieces_is_returned() {
    explore(|| {
        let readers = readers(2);
        let offsets = scattered(20);
        let file = Arc::new(DirectFile::new(offsets[10]));
        let error = readers.start(&file, &offsets, 4).wait().unwrap_err().to_string();
        // The second job fails at its third read, and the third job fails at its first read.
        assert!(error.contains(&format!("broken at {}", offsets[10])), "{error}");
        are_right(&readers.start(&file, &offsets[..2], 4).wait().unwrap(), &offsets[..2]);
    });
}

#[test]
fn a_reading_of_ended_readers_fails_without_waiting() {
    explore(|| {
        let readers = readers(2);
        let file = Arc::new(DirectFile::new(u64::MAX));
        let offsets = scattered(17);
        let dropped = readers.start(&file, &offsets, 4);
        let kept = readers.start(&file, &offsets, 4);
        drop(dropped);
        let waiting = thread::spawn(move || kept.wait());
        drop(readers);
        // A job that had not begun has failed. If there is a result, it is correct.
        if let Ok(pieces) = waiting.join().unwrap() {
            are_right(&pieces, &offsets);
        }
        assert!(file.reads.load(SeqCst) <= 34);
    });
}
