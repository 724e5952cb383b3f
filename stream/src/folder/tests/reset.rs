//! Tests of resets: a partition goes on at another message.

use super::*;
use crate::partition::Partition;

const PARTITION: Partition = Partition { stream: 0, number: 0 };

/// Returns the texts of all messages that are there now.
fn texts(source: &mut FollowedFolder) -> Vec<String> {
    drain(source).unwrap().into_iter().map(|(_, _, text)| text).collect()
}

/// Adds the files that a source has found.
fn add_files(source: &mut FollowedFolder, files: &mut FileHistory) {
    for decision in source.take_discoveries() {
        if let Decision::File { partition, file } = decision {
            files.add(partition, file).unwrap();
        }
    }
}

#[test]
fn a_partition_goes_back_and_ahead() {
    let site = Site::new(&["a"]);
    site.put("a/1", "one\ntwo\n");
    site.put("a/2", "three\n");
    let (mut source, mut files) = (site.open(), FileHistory::default());
    assert_eq!(texts(&mut source), ["one", "two", "three"]);
    add_files(&mut source, &mut files);
    let reset = |to, files: &FileHistory| Decision::Reset {
        partition: PARTITION,
        to,
        files: files.clone(),
    };
    source.adopt(&reset(4, &files)).unwrap();
    site.put("a/3", "four\nfive\n");
    assert_eq!(texts(&mut source), ["two", "three", "four", "five"]);
    add_files(&mut source, &mut files);
    source.adopt(&reset(0, &files)).unwrap();
    source.adopt(&reset(19, &files)).unwrap();
    assert_eq!(texts(&mut source), ["five"]);
    // A file that appears too late is found after a reset too.
    source.adopt(&reset(0, &files)).unwrap();
    site.put("a/0", "late\n");
    assert!(drain(&mut source).unwrap_err().to_string().contains("has appeared after `3`"));
}
