//! Tests of scattered reads against the written bytes, of errors that name the file, and of a disk
//! that fails.

use std::num::NonZeroUsize;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::durable::{Failpoint, Fault};

fn number(i: usize) -> u8 {
    (i.wrapping_mul(0x9e37_79b9) >> 13) as u8
}

/// Writes a file of pages. The bytes of a page depend on its position.
fn filled(folder: &Path, count: usize) -> DirectFile {
    let file = DirectFile::create(&Files::new(), &folder.join("log")).unwrap();
    let mut all = pages(count);
    bytes_mut(&mut all).iter_mut().enumerate().for_each(|(i, byte)| *byte = number(i));
    file.write(0, &all).unwrap();
    file
}

fn readers(count: usize) -> Readers {
    Readers::new(NonZeroUsize::new(count).unwrap()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn pieces_equal_the_written_bytes(
        threads in 1usize..5,
        piece in prop_oneof![Just(96usize), Just(4096), Just(20_000), 1usize..9000],
        starts in prop::collection::btree_set(0u64..1_000_000, 0..200),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let file = Arc::new(filled(folder.path(), 260));
        let readers = readers(threads);
        let offsets: Vec<u64> = starts.into_iter().collect();
        let read = readers.start(&file, &offsets, piece).wait().unwrap();
        for (i, &offset) in offsets.iter().enumerate() {
            let expected = (0..piece).map(|k| number(offset as usize + k));
            prop_assert!(read.get(i).unwrap().iter().copied().eq(expected), "piece at {}", offset);
        }
        prop_assert!(read.get(offsets.len()).is_none());
        let transfers = file.transfers();
        prop_assert!(transfers.reads <= offsets.len() as u64);
        prop_assert!(transfers.read_bytes >= transfers.reads * PAGE as u64);
    }
}

/// Checks that a file in memory is not reported as direct. Some kernels open such a file for direct
/// access and others refuse it, but in both cases there is no disk.
#[test]
fn a_file_in_memory_is_not_direct() {
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = Arc::new(filled(memory.path(), 4));
    assert!(!file.is_direct());
    let read = readers(1).start(&file, &[PAGE as u64], 3).wait().unwrap();
    assert_eq!(read.get(0).unwrap(), [0, 1, 2].map(|k| number(PAGE + k)));
}

#[test]
fn a_file_that_was_cut_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = Arc::new(filled(folder.path(), 4));
    file.set_len(PAGE as u64 * 2 + 100).unwrap();
    let readers = readers(2);
    let error = readers.start(&file, &[0, 2 * PAGE as u64], 10).wait().unwrap_err().to_string();
    assert!(error.contains("log") && error.contains("it was truncated"), "{error}");
    assert!(readers.start(&file, &[0], 10).wait().is_ok(), "the readers go on");
}

#[test]
fn a_disk_that_fails_is_an_error_of_the_operation() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let files = Files::with_failpoints(Arc::new(Failpoint::new(2, Fault::Enospc)));
    let file = DirectFile::create(&files, &path).unwrap();
    assert!(file.write(0, &pages(1)).unwrap_err().is_disk_full());
    drop(file);
    let files = Files::with_failpoints(Arc::new(Failpoint::new(3, Fault::Eio)));
    let file = Arc::new(DirectFile::create(&files, &path).unwrap());
    file.write(0, &pages(1)).unwrap();
    let readers = readers(1);
    assert!(readers.start(&file, &[0], 8).wait().unwrap_err().to_string().contains("log"));
    assert!(DirectFile::create(&Files::new(), &path).is_err(), "nobody's file is taken over");
    // A reader drops its handle of the file shortly after it has answered.
    drop(readers);
    drop(file);
    assert!(!path.exists());
}

#[test]
fn abandoned_readings_end_with_their_readers() {
    let folder = tempfile::tempdir().unwrap();
    let file = Arc::new(filled(folder.path(), 64));
    let readers = readers(2);
    let offsets: Vec<u64> = (0..64).map(|page| page * PAGE as u64).collect();
    for _ in 0..50 {
        drop(readers.start(&file, &offsets, 100));
    }
    let kept = readers.start(&file, &offsets, 100);
    drop(readers);
    // A job that had not begun has failed, and a job that had begun has its result. No thread
    // hangs.
    let _ = kept.wait();
}
