//! Tests of followed folders: the order of messages, the rules for files, and restarts.

mod lines;
mod replay;
mod reset;
mod rules;
mod whole;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;

/// A message that was read: its partition, its offset, and its text.
type Read = (u32, u64, String);

/// A folder with partitions, which is removed at the end of a test.
struct Site {
    folder: tempfile::TempDir,
}

impl Site {
    fn new(partitions: &[&str]) -> Self {
        let site = Self { folder: tempfile::tempdir().unwrap() };
        partitions.iter().for_each(|name| fs::create_dir(site.path(name)).unwrap());
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file as the rules say: under an ignored name, which is then changed.
    fn put(&self, path: &str, text: &str) {
        let temporary = self.path(&format!("{path}.tmp"));
        fs::write(&temporary, text).unwrap();
        fs::rename(&temporary, self.path(path)).unwrap();
    }

    fn settings(&self) -> FolderSettings {
        let settings = FolderSettings::new(self.folder.path(), 0);
        FolderSettings { scan_interval: Duration::ZERO, ..settings }
    }

    /// Opens the folder from its beginning.
    fn open(&self) -> FollowedFolder {
        FollowedFolder::open(self.settings(), &Position::default()).unwrap()
    }
}

/// Reads everything that is there now.
fn drain(source: &mut FollowedFolder) -> Result<Vec<Read>> {
    let mut block = Block::new();
    let mut read = Vec::new();
    while source.poll(&mut block, Duration::ZERO)? {
        read.extend(block.iter().map(|message| {
            let text = String::from_utf8(message.bytes.to_vec()).unwrap();
            (message.partition.number, message.offset, text)
        }));
    }
    assert!(block.is_empty() && block.too_long().is_none());
    Ok(read)
}

/// Returns the messages as a test writes them down.
fn reads(messages: &[(u32, u64, &str)]) -> Vec<Read> {
    messages.iter().map(|(number, offset, text)| (*number, *offset, (*text).to_owned())).collect()
}

#[test]
fn files_are_read_in_the_order_of_names_and_partitions_take_turns() {
    let site = Site::new(&["b", "a", "empty"]);
    site.put("a/2", "three\nfour");
    site.put("a/1", "one\n\r\n\ntwo\r\n");
    site.put("b/1", "x\n");
    let mut source = site.open();
    let wanted =
        reads(&[(0, 0, "one"), (0, 7, "two"), (1, 0, "x"), (0, 12, "three"), (0, 18, "four")]);
    assert_eq!(drain(&mut source).unwrap(), wanted);
    // The last line has no end, and the next file begins behind it.
    site.put("a/3", "five\n");
    assert_eq!(drain(&mut source).unwrap(), reads(&[(0, 22, "five")]));

    let discoveries = source.take_discoveries();
    let names = ["a", "b", "empty"].map(str::to_owned).to_vec();
    assert_eq!(discoveries[0], Decision::Partitions { stream: 0, names, starts: Vec::new() });
    let files: Vec<_> = discoveries[1..]
        .iter()
        .map(|decision| match decision {
            Decision::File { partition, file } => {
                (partition.number, file.name.as_str(), file.start, file.size)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(files, [(0, "1", 0, 12), (1, "1", 0, 2), (0, "2", 12, 10), (0, "3", 22, 5)]);
    assert!(source.take_discoveries().is_empty());
}

#[test]
fn partitions_have_bounds_and_a_lag() {
    let site = Site::new(&["a", "b"]);
    site.put("a/1", "one\n");
    site.put("a/2", "two\n");
    let mut source = site.open();
    let mut block = Block::new();
    assert!(source.poll(&mut block, Duration::ZERO).unwrap());
    let state = |source: &FollowedFolder| {
        source
            .partitions()
            .iter()
            .map(|p| (p.name.clone(), p.earliest, p.next, p.end, p.lag()))
            .collect::<Vec<_>>()
    };
    assert_eq!(state(&source), [("a".to_owned(), 0, 4, 8, 4), ("b".to_owned(), 0, 0, 0, 0)]);
    // A consumed file may be removed.
    fs::remove_file(site.path("a/1")).unwrap();
    assert_eq!(drain(&mut source).unwrap(), reads(&[(0, 4, "two")]));
    assert_eq!(state(&source)[0], ("a".to_owned(), 4, 8, 8, 0));
    fs::remove_file(site.path("a/2")).unwrap();
    assert!(drain(&mut source).unwrap().is_empty());
    assert_eq!(state(&source)[0], ("a".to_owned(), 8, 8, 8, 0));
}

#[test]
fn new_partitions_and_late_files_are_found_while_following() {
    let site = Site::new(&["m"]);
    let mut source = site.open();
    assert!(drain(&mut source).unwrap().is_empty());
    // A new sub-folder gets the next number, whatever its name is.
    fs::create_dir(site.path(".a")).unwrap();
    site.put(".a/1", "from a\n");
    fs::create_dir(site.path("z.tmp")).unwrap();
    assert!(drain(&mut source).unwrap().is_empty());
    fs::rename(site.path(".a"), site.path("a")).unwrap();
    site.put("m/1", "from m\n");
    assert_eq!(drain(&mut source).unwrap(), reads(&[(0, 0, "from m"), (1, 0, "from a")]));
    let lists: Vec<_> = source
        .take_discoveries()
        .into_iter()
        .filter_map(|decision| match decision {
            Decision::Partitions { names, .. } => Some(names.join(" ")),
            _ => None,
        })
        .collect();
    assert_eq!(lists, ["m", "m a"]);
}

#[test]
fn a_poll_waits_for_a_file() {
    let site = Site::new(&["a"]);
    let mut source = site.open();
    let mut block = Block::new();
    std::thread::scope(|scope| {
        scope.spawn(|| site.put("a/1", "late\n"));
        assert!(source.poll(&mut block, Duration::from_secs(600)).unwrap());
    });
    assert_eq!(block.get(0).unwrap().bytes, b"late");
    assert!(block.get(1).is_none());
}

#[test]
fn unfinished_and_hidden_files_are_ignored() {
    let site = Site::new(&["a", ".hidden", "b.tmp"]);
    fs::write(site.path("a/.1"), "no\n").unwrap();
    fs::write(site.path("a/2.tmp"), "half of a li").unwrap();
    fs::write(site.path("notes.tmp"), "no\n").unwrap();
    let mut source = site.open();
    assert!(drain(&mut source).unwrap().is_empty());
    assert_eq!(source.partitions().len(), 1);
    fs::write(site.path("a/2.tmp"), "half of a line\n").unwrap();
    fs::rename(site.path("a/2.tmp"), site.path("a/2")).unwrap();
    assert_eq!(drain(&mut source).unwrap(), reads(&[(0, 0, "half of a line")]));
}

#[test]
fn a_folder_that_has_not_changed_is_not_listed_again() {
    let site = Site::new(&["a"]);
    site.put("a/1", "one\n");
    let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let set_time = |path: &Path| fs::File::open(path).unwrap().set_modified(long_ago).unwrap();
    set_time(&site.path("a"));
    let mut source = site.open();
    assert_eq!(drain(&mut source).unwrap().len(), 1);
    site.put("a/2", "two\n");
    set_time(&site.path("a"));
    assert!(drain(&mut source).unwrap().is_empty());
    site.put("a/3", "three\n");
    assert_eq!(drain(&mut source).unwrap(), reads(&[(0, 4, "two"), (0, 8, "three")]));
}
