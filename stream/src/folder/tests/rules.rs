//! Tests of the rules for writers: every way to break one is an error that names the file.

use super::*;

/// Reads until the error, and returns its text.
fn fail(source: &mut FollowedFolder) -> String {
    let error = drain(source).unwrap_err().to_string();
    // The error stays until its cause is gone.
    assert_eq!(drain(source).unwrap_err().to_string(), error);
    error
}

/// Checks that an error names the partition and the file, the problem and the remedy.
fn assert_error(error: &str, file: &str, problem: &str, remedy: &str) {
    for words in ["partition 0 of stream 0, `", file, problem, remedy] {
        assert!(error.contains(words), "`{words}` is not in: {error}");
    }
}

#[test]
fn a_file_that_grows_is_found_before_and_after_it_is_read() {
    let site = Site::new(&["a"]);
    site.put("a/1", "one\n");
    site.put("a/2", "two\n");
    let mut source = site.open();
    let mut block = Block::new();
    source.poll(&mut block, Duration::ZERO).unwrap();
    fs::write(site.path("a/2"), "two\nthree\n").unwrap();
    let problem = "the file has 10 bytes, but had 4 when it appeared";
    assert_error(&fail(&mut source), "a/2`", problem, "ends in `.tmp`");

    let mut source = site.open();
    assert_eq!(drain(&mut source).unwrap().len(), 3);
    fs::write(site.path("a/2"), "two\nthree\nfour\n").unwrap();
    let problem = "the file has 15 bytes, but had 10 when it appeared";
    assert_error(&fail(&mut source), "a/2`", problem, "ends in `.tmp`");
}

#[test]
fn a_file_that_changes_while_it_is_read_is_found() {
    let site = Site::new(&["a"]);
    site.put("a/1", &"0123456789\n".repeat(10));
    let settings = FolderSettings { block_bytes: 30, ..site.settings() };
    for (text, problem) in [
        ("0123456789\n".repeat(9), "the file has 99 bytes, but had 110"),
        ("0123456789\n".repeat(9) + "abcdefghij\n", "changed while it was read"),
    ] {
        site.put("a/1", &"0123456789\n".repeat(10));
        let mut source = FollowedFolder::open(settings.clone(), &Position::default()).unwrap();
        let mut block = Block::new();
        source.poll(&mut block, Duration::ZERO).unwrap();
        fs::write(site.path("a/1"), text).unwrap();
        let later = std::time::SystemTime::now() + Duration::from_secs(5);
        let file = fs::File::options().write(true).open(site.path("a/1")).unwrap();
        file.set_modified(later).unwrap();
        assert_error(&fail(&mut source), "a/1`", problem, "do not change it afterwards");
    }
}

#[test]
fn a_file_that_is_removed_before_it_was_consumed_is_found() {
    let site = Site::new(&["a"]);
    site.put("a/1", "one\n");
    site.put("a/2", "two\n");
    site.put("a/3", "three\n");
    let mut source = site.open();
    let mut block = Block::new();
    source.poll(&mut block, Duration::ZERO).unwrap();
    fs::remove_file(site.path("a/3")).unwrap();
    let problem = "removed before it was consumed";
    assert_error(&fail(&mut source), "a/3`", problem, "restore the file");
}

#[test]
fn a_file_that_appears_before_a_consumed_one_is_found() {
    let site = Site::new(&["a"]);
    site.put("a/2", "two\n");
    let mut source = site.open();
    assert_eq!(drain(&mut source).unwrap().len(), 1);
    site.put("a/1", "one\n");
    let problem = "has appeared after `2`, which has a later name";
    assert_error(&fail(&mut source), "a/1`", problem, "rename the file");
    fs::rename(site.path("a/1"), site.path("a/3")).unwrap();
    assert_eq!(drain(&mut source).unwrap(), reads(&[(0, 4, "one")]));
}

#[test]
fn a_late_file_is_found_after_a_start_and_old_files_are_not_suspected() {
    let site = Site::new(&["a"]);
    for number in 0..50 {
        site.put(&format!("a/{number:02}"), "x\n");
    }
    let mut source = site.open();
    assert_eq!(drain(&mut source).unwrap().len(), 50);
    let mut position = Position::default();
    for (number, decision) in (0..).zip(source.take_discoveries()) {
        position.apply(number, &decision).unwrap();
    }
    let partition = Partition { stream: 0, number: 0 };
    let mut taking = crate::Taking::new(partition, 0);
    taking.extend_to(100);
    position.apply(51, &Decision::Took(taking.finish())).unwrap();
    assert_eq!(position.partition(partition).unwrap().files.forgotten(), 18);

    let mut source = FollowedFolder::open(site.settings(), &position).unwrap();
    assert!(drain(&mut source).unwrap().is_empty());
    site.put("a/30-late", "x\n");
    for mut source in [source, FollowedFolder::open(site.settings(), &position).unwrap()] {
        let problem = "has appeared after `49`";
        assert_error(&fail(&mut source), "a/30-late`", problem, "rename the file");
    }
    // Before the first remembered file, only a file that appears while the program runs is found.
    fs::rename(site.path("a/30-late"), site.path("a/03-late")).unwrap();
    let mut source = FollowedFolder::open(site.settings(), &position).unwrap();
    assert!(drain(&mut source).unwrap().is_empty());
    site.put("a/04-late", "x\n");
    assert_error(&fail(&mut source), "a/04-late`", "has appeared after `49`", "rename the file");
}

#[test]
fn what_is_no_file_of_a_partition_is_refused() {
    let site = Site::new(&["a"]);
    fs::create_dir(site.path("a/inner")).unwrap();
    let error = fail(&mut site.open());
    assert_error(&error, "a/inner`", "a folder is inside the folder", "move the folder away");
    fs::remove_dir(site.path("a/inner")).unwrap();

    site.put("stray", "x\n");
    let error = fail(&mut site.open());
    assert!(error.contains("stray`: the file is in no partition; move the file"), "{error}");
    fs::remove_file(site.path("stray")).unwrap();
    let mut source = site.open();
    assert!(drain(&mut source).unwrap().is_empty());

    fs::remove_dir_all(site.folder.path()).unwrap();
    assert!(fail(&mut source).contains("does not exist any more; restore the folder"));
    let error = FollowedFolder::open(site.settings(), &Position::default()).unwrap_err();
    assert!(error.to_string().contains("the folder does not exist; create"), "{error}");
}

#[test]
fn sizes_out_of_bounds_are_refused() {
    let site = Site::new(&["a"]);
    for (block_bytes, max_message_bytes) in [(0, 1), (1, 0), (1, (1 << 30) + 1), (1 << 31, 1)] {
        let settings = FolderSettings { block_bytes, max_message_bytes, ..site.settings() };
        let error = FollowedFolder::open(settings, &Position::default()).unwrap_err().to_string();
        assert!(error.contains("use sizes from 1 byte to 1 GiB"), "{error}");
    }
}
