//! The messages that a repetition of the log reads again: which ones they are, and whether they
//! still exist.
//!
//! A rewind and a start after a kill read messages a second time. Which ones follows from the
//! position at which the repetition begins and from the decisions behind it.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Serialize;
use zillion_stream::{
    Decision, FileHistory, FileIdentity, Partition, Place, Position, Took, read_decisions,
};

use super::renewal::newest_link;
use super::setup::{open_source, stream_folder};
use super::snapshot::{self, SnapshotLink};
use crate::checkpoint::{Checkpoint, RunDir};
use crate::error::{Error, Result};
use crate::job::{Job, StreamKind};

/// The number of times that the checkpoints of a live run are listed, until none is removed between
/// the list and its reading.
const LOOKS: usize = 5;

/// The messages that a repetition of the log needs.
#[derive(Debug)]
pub(crate) struct Needs {
    partitions: BTreeMap<Partition, Need>,
    /// The position at the end of the log.
    end: Position,
}

/// The messages of one partition that a repetition of the log needs.
#[derive(Debug)]
pub(crate) struct Need {
    name: String,
    /// The offset of the first message that is needed.
    offset: u64,
    /// The name of the file with this message, if a followed folder has shown it already.
    first: Option<String>,
    /// The files that are read again.
    files: Vec<FileIdentity>,
    /// The offset of the first message that is read again, if any is.
    again: Option<u64>,
}

/// The messages of a partition that must be kept: those from an offset on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NeededMessages {
    /// The name of the stream.
    pub stream: String,
    /// The name of the partition.
    pub partition: String,
    /// The offset of the first message that is needed.
    pub offset: u64,
    /// The name of the file with this message; absent for topics of Kafka, and if the next file has
    /// not appeared yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

impl Needs {
    /// Returns the messages that a repetition of `log` from a position on needs. Messages that a
    /// reset has forgotten are not among them.
    ///
    /// # Errors
    /// Returns an error if the log cannot be read, or does not fit to the position.
    pub(crate) fn of(mut position: Position, log: &Path) -> Result<Self> {
        let unread = read_unread(log, position.next_decision())?;
        let need = |name: &str, offset: u64, files: &FileHistory| Need {
            name: name.to_owned(),
            offset,
            first: files.find(offset).map(|file| file.name.clone()),
            files: Vec::new(),
            again: None,
        };
        let mut partitions: BTreeMap<Partition, Need> = BTreeMap::new();
        for entry in read_decisions(log, position.next_decision())? {
            let (number, decision) = entry?;
            if let Decision::Took(took) = &decision
                && let Some(known) = position.partition(took.partition)
                && !unread.iter().any(|unread| unread.contains(&number))
            {
                let new = || need(&known.name, took.from, &known.files);
                partitions.entry(took.partition).or_insert_with(new).take(took, &known.files);
            }
            position.apply(number, &decision)?;
        }
        for (partition, known) in position.partitions() {
            let new = || need(&known.name, known.next_offset, &known.files);
            let need = partitions.entry(partition).or_insert_with(new);
            if need.first.is_none() {
                need.first = known.files.find(need.offset).map(|file| file.name.clone());
            }
        }
        Ok(Self { partitions, end: position })
    }
}

/// Returns the decisions of a log from `first` on whose messages are not read again, because a
/// reset has forgotten them.
fn read_unread(log: &Path, first: u64) -> Result<Vec<Range<u64>>> {
    let mut all = Vec::new();
    for entry in read_decisions(log, first)? {
        if let (number, Decision::Skip { unread: Some(unread), .. }) = entry? {
            all.push(unread..number);
        }
    }
    Ok(all)
}

impl Need {
    /// Adds a span that is read again.
    fn take(&mut self, took: &Took, files: &FileHistory) {
        self.offset = self.offset.min(took.from);
        if self.again.is_none_or(|again| took.from <= again) || self.first.is_none() {
            self.first = files.find(self.offset).map(|file| file.name.clone());
        }
        self.again = Some(self.again.map_or(took.from, |again| again.min(took.from)));
        let mut at = took.from;
        while at < took.to
            && let Some(file) = files.find(at)
        {
            if self.files.last() != Some(file) {
                self.files.push(file.clone());
            }
            at = file.end();
        }
    }
}

/// Returns the position of a state of the feed, or that at the beginning of the log.
///
/// # Errors
/// Returns an error if the state cannot be read.
pub(crate) fn position_of(run: &Path, link: Option<&SnapshotLink>) -> Result<Position> {
    match link {
        Some(link) => Ok(snapshot::read(&stream_folder(run), link)?.1.position),
        None => Ok(Position::default()),
    }
}

/// Returns a description of the first message that a repetition of the log needs and that does not
/// exist any more; `None` if all of them exist.
///
/// # Errors
/// Returns an error if the brokers of a topic do not answer, or if the folder of a partition is not
/// there or cannot be looked into. Its files may only be out of reach for a moment.
pub(crate) fn find_missing(job: &Job, needs: &Needs) -> Result<Option<String>> {
    for (number, stream) in (0u16..).zip(&job.streams) {
        let of_stream = needs
            .partitions
            .iter()
            .filter(|(partition, need)| partition.stream == number && need.again.is_some());
        if stream.kind == StreamKind::Folder {
            let root = stream.path.clone().unwrap_or_default();
            for (_, need) in of_stream {
                if let Some(path) = find_missing_file(&root.join(&need.name), &need.files)? {
                    return Ok(Some(format!(
                        "stream `{}`: file {} was removed or changed",
                        stream.name,
                        path.display()
                    )));
                }
            }
            continue;
        }
        let mut source =
            open_source(stream, number, &job.online.clone().unwrap_or_default(), &needs.end)?;
        for (&partition, need) in of_stream {
            let start = source.find_offset(partition, Place::Start)?.unwrap_or_default();
            if let Some(again) = need.again.filter(|&again| again < start) {
                return Ok(Some(format!(
                    "stream `{}`: the messages of `{}` from offset {again} on were removed, the \
                     first one that exists has offset {start}",
                    stream.name, need.name
                )));
            }
        }
    }
    Ok(None)
}

/// Returns the path of the first file of a partition that was removed or has another size; `None`
/// if all of them exist.
///
/// # Errors
/// Returns an error if the folder of the partition is missing, or if a file cannot be looked at. A
/// rewind keeps bad batches for ever if their messages are gone, so a share that is away for a
/// moment must not count as removed.
fn find_missing_file(folder: &Path, files: &[FileIdentity]) -> Result<Option<PathBuf>> {
    for file in files {
        let path = folder.join(&file.name);
        match std::fs::metadata(&path) {
            Ok(found) if found.len() == file.size => {}
            Ok(_) => return Ok(Some(path)),
            Err(error) if error.kind() == ErrorKind::NotFound && folder.is_dir() => {
                return Ok(Some(path));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(Error::Refused(format!(
                    "folder {} of a partition is not there, so it is unknown whether its messages \
                     were removed; mount it, or create the empty folder if they were",
                    folder.display()
                )));
            }
            Err(error) => return Err(Error::io("cannot look at the file", &path)(error)),
        }
    }
    Ok(None)
}

/// Returns the messages that a run needs: those from its oldest kept checkpoint on, from which a
/// rewind may go on, or all that it has consumed if it has no checkpoint yet. All earlier messages
/// may be removed.
///
/// # Errors
/// Returns an error if a checkpoint or the log of the run cannot be read.
pub fn list_needed(run: &Path) -> Result<Vec<NeededMessages>> {
    let mut looks = 1;
    loop {
        // A live run removes old checkpoints.
        match read_needed(run) {
            Err(_) if looks < LOOKS => looks += 1,
            read => return read,
        }
    }
}

fn read_needed(run: &Path) -> Result<Vec<NeededMessages>> {
    let dir = RunDir::new(run.to_owned());
    let (mut oldest, mut names) = (None, Vec::new());
    for step in dir.steps()? {
        let checkpoint = Checkpoint::open(dir.checkpoint_path(step)?)?;
        let Some(link) = newest_link(run, &checkpoint)? else { continue };
        if oldest
            .as_ref()
            .is_none_or(|oldest: &SnapshotLink| link.next_decision < oldest.next_decision)
        {
            oldest = Some(link);
        }
        names = checkpoint.job()?.streams.into_iter().map(|stream| stream.name).collect();
    }
    let position = position_of(run, oldest.as_ref())?;
    let needs = Needs::of(position, &stream_folder(run).join("log"))?;
    let needed = needs.partitions.into_iter().map(|(partition, need)| {
        let stream = names.get(usize::from(partition.stream)).cloned();
        NeededMessages {
            stream: stream.unwrap_or_else(|| partition.stream.to_string()),
            partition: need.name,
            offset: need.offset,
            file: need.first,
        }
    });
    Ok(needed.collect())
}

#[cfg(test)]
mod tests {
    use zillion_device::Files;
    use zillion_stream::{DecisionLog, LogOptions};

    use super::*;

    const PARTITION: Partition = Partition { stream: 0, number: 0 };

    fn file(number: u64) -> FileIdentity {
        FileIdentity { name: format!("{number:03}"), start: number * 10, size: 10, head: 7 }
    }

    fn took(from: u64, to: u64) -> Decision {
        Decision::Took(Took { partition: PARTITION, from, to, count: 1, hash: 0 })
    }

    /// Writes a log in which a partition has consumed `files` files, and returns its position after
    /// `begin` of them.
    fn write(folder: &Path, files: u64, begin: u64, more: &[Decision]) -> Position {
        let mut log =
            DecisionLog::open(&Files::new().scratch(), folder, LogOptions::default()).unwrap();
        let mut decisions = vec![Decision::Partitions {
            stream: 0,
            names: vec!["a".to_owned()],
            starts: Vec::new(),
        }];
        for number in 0..files {
            decisions.push(Decision::File { partition: PARTITION, file: file(number) });
            decisions.push(took(number * 10, number * 10 + 10));
        }
        decisions.extend_from_slice(more);
        let mut position = Position::default();
        for (number, decision) in (0..).zip(&decisions) {
            log.append(decision).unwrap();
            if number < 1 + begin * 2 {
                position.apply(number, decision).unwrap();
            }
        }
        log.sync().unwrap();
        position
    }

    fn names(need: &Need) -> Vec<&str> {
        need.files.iter().map(|file| file.name.as_str()).collect()
    }

    #[test]
    fn files_behind_the_position_are_needed() {
        let folder = tempfile::tempdir().unwrap();
        let position = write(folder.path(), 5, 3, &[]);
        let needs = Needs::of(position, folder.path()).unwrap();
        let need = &needs.partitions[&PARTITION];
        assert_eq!(names(need), ["003", "004"]);
        assert_eq!((need.offset, need.first.as_deref(), need.again), (30, Some("003"), Some(30)));
        let needs = Needs::of(Position::default(), folder.path()).unwrap();
        assert_eq!(names(&needs.partitions[&PARTITION]).len(), 5);
        // At the end of the log, nothing is read again, and all known files may be removed.
        let end = needs.end.clone();
        let needs = Needs::of(end, folder.path()).unwrap();
        let need = &needs.partitions[&PARTITION];
        assert!(need.files.is_empty() && need.again.is_none());
        assert_eq!((need.offset, need.first.as_deref()), (50, None));
    }

    #[test]
    fn only_files_that_are_gone_for_good_are_missing() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("a");
        let files = [file(0), file(1)];
        std::fs::create_dir(&folder).unwrap();
        for file in &files {
            std::fs::write(folder.join(&file.name), [7; 10]).unwrap();
        }
        assert_eq!(find_missing_file(&folder, &files).unwrap(), None);
        std::fs::write(folder.join("001"), [7; 9]).unwrap();
        assert_eq!(find_missing_file(&folder, &files).unwrap(), Some(folder.join("001")));
        std::fs::remove_file(folder.join("000")).unwrap();
        assert_eq!(find_missing_file(&folder, &files).unwrap(), Some(folder.join("000")));
        // A file system that is not mounted, and one that answers with errors.
        std::fs::remove_dir_all(&folder).unwrap();
        let error = find_missing_file(&folder, &files).unwrap_err().to_string();
        assert!(error.contains("/a of a partition is not there"), "{error}");
        std::fs::write(&folder, "no folder").unwrap();
        let error = find_missing_file(&folder, &files).unwrap_err().to_string();
        assert!(error.contains("cannot look at the file"), "{error}");
    }

    #[test]
    fn files_of_a_reset_to_earlier_messages_are_needed() {
        let folder = tempfile::tempdir().unwrap();
        let files = FileHistory::restore(PARTITION, 0, (0..5).map(file).collect()).unwrap();
        let reset = Decision::Reset { partition: PARTITION, to: 15, files };
        let position = write(folder.path(), 5, 4, &[reset, took(15, 50)]);
        let needs = Needs::of(position, folder.path()).unwrap();
        let need = &needs.partitions[&PARTITION];
        assert_eq!(names(need), ["004", "001", "002", "003", "004"]);
        assert_eq!((need.offset, need.first.as_deref(), need.again), (15, Some("001"), Some(15)));
    }

    #[test]
    fn files_that_a_reset_has_forgotten_are_not_needed() {
        let folder = tempfile::tempdir().unwrap();
        // The files 003 and 004 were consumed by the decisions 8 and 10, and forgotten.
        let reset = |to| Decision::Reset {
            partition: PARTITION,
            to,
            files: FileHistory::restore(PARTITION, 0, (0..5).map(file).collect()).unwrap(),
        };
        let forget = |from| Decision::Skip {
            from: 0,
            to: 0,
            reason: "they were removed".to_owned(),
            unread: Some(from),
        };
        let next = [Decision::File { partition: PARTITION, file: file(5) }, took(50, 60)];
        let more = [&[forget(7), reset(50)][..], &next].concat();
        let position = write(folder.path(), 5, 2, &more);
        let needs = Needs::of(position, folder.path()).unwrap();
        let need = &needs.partitions[&PARTITION];
        assert_eq!(names(need), ["002", "005"]);
        assert_eq!((need.offset, need.first.as_deref(), need.again), (20, Some("002"), Some(20)));
        // All messages between a state and the reset were forgotten.
        let folder = tempfile::tempdir().unwrap();
        let position = write(folder.path(), 5, 3, &more);
        let needs = Needs::of(position, folder.path()).unwrap();
        let need = &needs.partitions[&PARTITION];
        assert_eq!(names(need), ["005"]);
        assert_eq!((need.offset, need.first.as_deref(), need.again), (50, Some("005"), Some(50)));
        // Behind the reset, nothing of before is needed.
        let folder = tempfile::tempdir().unwrap();
        let position = write(folder.path(), 5, 3, &[forget(7), reset(50)]);
        let needs = Needs::of(position, folder.path()).unwrap();
        let need = &needs.partitions[&PARTITION];
        assert_eq!((need.offset, need.first.as_deref(), need.again), (50, None, None));
    }
}
