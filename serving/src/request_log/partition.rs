//! The files of one model in the log: a partition of a followed folder, which a trainer reads.
//!
//! # Invariants
//! A file has a hidden name while it grows, and its final name when it is complete and synced.
//! Names are numbers: microseconds since 1970 at which a file was begun, or one more than the last
//! name if the clock stands or goes back. So the order of names is the order of time.
//!
//! # Crash consistency
//! The file that grows when the process is killed may end inside a line. The next process of the
//! same name cuts this line off, and gives the file its final name before it begins another one.
//! The lock on a hidden file makes a second process of the same name an error.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::time::Instant;

use zillion_device::durable::{AppendFile, Op};
use zillion_device::{DeviceError, Files};

/// The ending of the names of complete files.
const COMPLETE: &str = ".jsonl";
/// The ending of the names of files that grow. Such a name also begins with a dot.
const GROWING: &str = ".jsonl.tmp";

/// The files of one model that one server writes.
#[derive(Debug)]
pub(super) struct Partition {
    files: Files,
    folder: PathBuf,
    /// The locked file, once the folder is prepared.
    lock: Option<File>,
    growing: Option<Growing>,
    /// The complete files with their sizes, the oldest first.
    complete: VecDeque<(u64, u64)>,
    /// The number of bytes of the complete files.
    complete_bytes: u64,
    /// The number of the newest name.
    last: u64,
}

/// The file to which lines are appended.
#[derive(Debug)]
struct Growing {
    file: AppendFile,
    number: u64,
    began: Instant,
    /// Whether a failed write may have left a part of a line.
    is_torn: bool,
}

impl Partition {
    /// Creates the partition of a folder. Nothing is read or written before [`Partition::prepare`].
    pub(super) fn new(files: Files, folder: PathBuf) -> Self {
        let complete = VecDeque::new();
        Self { files, folder, lock: None, growing: None, complete, complete_bytes: 0, last: 0 }
    }

    /// Creates and locks the folder, lists its files, and completes what a killed process has left.
    /// Does nothing if this was done before.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be written, or if another process writes to it.
    pub(super) fn prepare(&mut self) -> Result<(), DeviceError> {
        if self.lock.is_some() {
            return Ok(());
        }
        self.files.create_dir(&self.folder)?;
        let path = self.folder.join(".lock");
        let opened = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let lock = opened.map_err(|e| DeviceError::file("open", &path, e))?;
        if lock.try_lock().is_err() {
            let reason = "another server writes to this folder; give each server its own \
                          `serve.name`, or its own `folder` of the request log";
            return Err(DeviceError::file("lock", &path, io::Error::other(reason)));
        }
        let (mut complete, mut growing) = (Vec::new(), Vec::new());
        let listed = |e| DeviceError::file("list the folder", &self.folder, e);
        for entry in fs::read_dir(&self.folder).map_err(listed)? {
            let entry = entry.map_err(listed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Some(number) = parse_name(name.strip_suffix(COMPLETE)) {
                complete.push((number, entry.metadata().map_err(listed)?.len()));
            }
            let hidden = name.strip_prefix('.').and_then(|name| name.strip_suffix(GROWING));
            growing.extend(parse_name(hidden));
        }
        growing.sort_unstable();
        for number in growing {
            let bytes = self.recover(number)?;
            complete.extend((bytes > 0).then_some((number, bytes)));
        }
        complete.sort_unstable();
        self.last = complete.last().map_or(0, |(number, _)| *number).max(self.last);
        self.complete_bytes = complete.iter().map(|(_, bytes)| bytes).sum();
        self.complete = complete.into();
        self.lock = Some(lock);
        Ok(())
    }

    /// Completes a file that a killed process has left, without its last line if that is torn.
    /// Returns the number of bytes of whole lines. A file without any is removed.
    fn recover(&self, number: u64) -> Result<u64, DeviceError> {
        let path = self.growing_path(number);
        let bytes = fs::read(&path).map_err(|e| DeviceError::file("read", &path, e))?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at as u64 + 1);
        if whole == 0 {
            self.files.remove_file(&path)?;
            return Ok(0);
        }
        let mut file = self.files.open_append(&path, whole)?;
        file.sync()?;
        self.complete_file(number)?;
        Ok(whole)
    }

    /// Appends whole lines, to a new file if none grows. `now` is the time since 1970 in
    /// microseconds.
    ///
    /// # Errors
    /// Returns an error if the lines cannot be written. Then the file has none of them, or they are
    /// cut off before the next lines are written.
    pub(super) fn append(&mut self, lines: &[u8], now: u64) -> Result<(), DeviceError> {
        self.prepare()?;
        if self.growing.is_none() {
            let number = now.max(self.last + 1);
            let path = self.growing_path(number);
            let created = self.files.create_file(&path, |_| Ok(()));
            if created.is_err() && !self.folder.exists() {
                self.forget_all();
            }
            created?;
            let file = self.files.open_append(&path, 0)?;
            self.growing = Some(Growing { file, number, began: Instant::now(), is_torn: false });
            self.last = number;
        }
        self.cut()?;
        let Some(growing) = &mut self.growing else { return Ok(()) };
        growing.is_torn = true;
        growing.file.append(lines)?;
        growing.is_torn = false;
        Ok(())
    }

    /// Forgets a folder that was removed, so that it is created again at the next attempt.
    fn forget_all(&mut self) {
        self.lock = None;
        self.complete.clear();
        self.complete_bytes = 0;
    }

    /// Removes the part of a line that a failed write has left.
    fn cut(&mut self) -> Result<(), DeviceError> {
        let Some(growing) = self.growing.as_mut().filter(|growing| growing.is_torn) else {
            return Ok(());
        };
        let (path, length) = (growing.file.path().to_owned(), growing.file.length());
        match self.files.open_append(&path, length) {
            Ok(file) => (growing.file, growing.is_torn) = (file, false),
            // The file is gone, so that nothing of it can be kept.
            Err(error) if !path.exists() => {
                self.growing = None;
                return Err(error);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Completes the file that grows: syncs it and gives it its final name. Returns whether there
    /// was one.
    ///
    /// # Errors
    /// Returns an error if the file cannot be synced or renamed. Then it grows on, unless it is
    /// gone.
    pub(super) fn close(&mut self) -> Result<bool, DeviceError> {
        self.cut()?;
        let Some(growing) = &mut self.growing else { return Ok(false) };
        let (number, bytes) = (growing.number, growing.file.length());
        if bytes == 0 {
            let path = growing.file.path().to_owned();
            self.files.remove_file(path)?;
            self.growing = None;
            return Ok(false);
        }
        growing.file.sync()?;
        let completed = self.complete_file(number);
        // Lines must not be added to a file that has appeared, even if the sync of its folder has
        // failed.
        if self.complete_path(number).exists() {
            self.complete.push_back((number, bytes));
            self.complete_bytes += bytes;
            self.growing = None;
        } else if !self.growing_path(number).exists() {
            self.growing = None;
        }
        completed.map(|()| true)
    }

    /// Gives a file its final name.
    fn complete_file(&self, number: u64) -> Result<(), DeviceError> {
        let (from, to) = (self.growing_path(number), self.complete_path(number));
        let renamed =
            self.files.run_failpoints(Op::Rename, &to).and_then(|()| fs::rename(&from, &to));
        renamed.map_err(|e| DeviceError::file("move into place", &to, e))?;
        self.files.sync_dir(&self.folder)
    }

    /// Removes the oldest complete file. Returns the number of its bytes.
    ///
    /// # Errors
    /// Returns an error if the file cannot be removed. A file that is gone already is no error.
    pub(super) fn remove_oldest(&mut self) -> Result<u64, DeviceError> {
        let Some(&(number, bytes)) = self.complete.front() else { return Ok(0) };
        let path = self.complete_path(number);
        if let Err(error) = self.files.remove_file(&path)
            && path.exists()
        {
            return Err(error);
        }
        self.complete.pop_front();
        self.complete_bytes -= bytes;
        Ok(bytes)
    }

    /// Forgets the oldest complete files that a consumer has removed, so that they do not count.
    pub(super) fn forget_removed(&mut self) {
        while let Some(&(number, bytes)) = self.complete.front()
            && !self.complete_path(number).exists()
        {
            self.complete.pop_front();
            self.complete_bytes -= bytes;
        }
    }

    /// Returns the number of the oldest complete file.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.complete.front().map(|(number, _)| *number)
    }

    /// Returns the number of bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.complete_bytes + self.growing_bytes()
    }

    /// Returns the number of bytes of the file that grows.
    pub(super) fn growing_bytes(&self) -> u64 {
        self.growing.as_ref().map_or(0, |growing| growing.file.length())
    }

    /// Returns the moment at which the file that grows was begun.
    pub(super) fn began(&self) -> Option<Instant> {
        self.growing.as_ref().map(|growing| growing.began)
    }

    fn growing_path(&self, number: u64) -> PathBuf {
        self.folder.join(format!(".{number:020}{GROWING}"))
    }

    fn complete_path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number:020}{COMPLETE}"))
    }
}

/// Parses the number of a file without its ending.
fn parse_name(name: Option<&str>) -> Option<u64> {
    name.filter(|name| name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|name| name.parse().ok())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use zillion_device::durable::{Failpoint, Fault};

    use super::*;

    fn partition(folder: &Path) -> Partition {
        Partition::new(Files::new().scratch(), folder.join("clicks/a"))
    }

    /// Returns the names and contents of the complete files.
    fn complete(folder: &Path) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder.join("clicks/a")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if !name.starts_with('.') {
                found.push((name, fs::read_to_string(path).unwrap()));
            }
        }
        found.sort();
        found
    }

    #[test]
    fn a_file_appears_when_it_is_complete_and_names_follow_time() {
        let folder = tempfile::tempdir().unwrap();
        let mut partition = partition(folder.path());
        partition.append(b"1\n", 50).unwrap();
        partition.append(b"2\n", 51).unwrap();
        assert!(complete(folder.path()).is_empty());
        assert!(partition.close().unwrap() && !partition.close().unwrap());
        // The clock goes back, and the names do not.
        partition.append(b"3\n", 20).unwrap();
        partition.close().unwrap();
        let wanted = [(50, "1\n2\n"), (51, "3\n")];
        let wanted = wanted.map(|(n, text)| (format!("{n:020}.jsonl"), text.to_owned()));
        assert_eq!(complete(folder.path()), wanted);
        assert_eq!((partition.bytes(), partition.oldest()), (6, Some(50)));
        assert_eq!(partition.remove_oldest().unwrap(), 4);
        assert_eq!(complete(folder.path()).len(), 1);
        // A consumer has removed the other one.
        fs::remove_file(folder.path().join("clicks/a").join(&wanted[1].0)).unwrap();
        partition.forget_removed();
        assert_eq!((partition.bytes(), partition.oldest()), (0, None));
    }

    #[test]
    fn whole_lines_of_a_killed_process_are_completed() {
        let folder = tempfile::tempdir().unwrap();
        let mut killed = partition(folder.path());
        killed.append(b"1\n", 5).unwrap();
        killed.close().unwrap();
        killed.append(b"2\n3\n{\"torn", 6).unwrap();
        let second = partition(folder.path()).prepare().unwrap_err().to_string();
        assert!(second.contains("`serve.name`"), "{second}");
        drop(killed);
        let mut next = partition(folder.path());
        // The clock of the next process is behind.
        next.append(b"4\n", 1).unwrap();
        next.close().unwrap();
        let texts: Vec<String> = complete(folder.path()).into_iter().map(|(_, t)| t).collect();
        assert_eq!(texts, ["1\n", "2\n3\n", "4\n"]);
        assert_eq!(next.bytes(), 8);
    }

    #[test]
    fn a_folder_that_was_removed_is_created_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut partition = partition(folder.path());
        for line in 0..2 {
            partition.append(b"1\n", line).unwrap();
            partition.close().unwrap();
        }
        partition.append(b"lost\n", 5).unwrap();
        fs::remove_dir_all(folder.path().join("clicks")).unwrap();
        partition.close().unwrap_err();
        partition.append(b"lost\n", 6).unwrap_err();
        partition.append(b"2\n", 7).unwrap();
        partition.close().unwrap();
        assert_eq!(complete(folder.path()), [(format!("{:020}.jsonl", 7), "2\n".to_owned())]);
        assert_eq!(partition.bytes(), 2);
    }

    #[test]
    fn no_failed_operation_leaves_a_torn_line_or_doubles_one() {
        let folder = tempfile::tempdir().unwrap();
        for fault in [Fault::Enospc, Fault::Eio] {
            for at in 1.. {
                let below = folder.path().join(format!("{fault:?}-{at}"));
                let failpoint = Arc::new(Failpoint::new(at, fault));
                let files = Files::with_failpoints(failpoint.clone()).scratch();
                let mut partition = Partition::new(files, below.join("clicks/a"));
                let mut written = Vec::new();
                for line in 0..6 {
                    let text = format!("{{\"line\":{line}}}\n");
                    if partition.append(text.as_bytes(), line).is_ok() {
                        written.push(text);
                    }
                    if line % 2 == 1 {
                        let _ = partition.close();
                    }
                }
                partition.close().unwrap();
                let texts = complete(&below).into_iter().map(|(_, text)| text);
                assert_eq!(texts.collect::<String>(), written.concat(), "{fault:?} at {at}");
                if failpoint.operations() < at {
                    break;
                }
            }
        }
    }
}
