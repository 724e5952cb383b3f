//! The position of a run in its streams, which a checkpoint carries.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::decisions::{Decision, Took};
use crate::error::{Error, Result};
use crate::file::FileHistory;
use crate::partition::{EventTime, Partition};

/// The position of a run in the log of decisions and in each partition of its streams.
///
/// Apart from the times of events, which are in the messages, a position is a function of the log:
/// [`Position::apply`] takes one decision after the other. As JSON, the partitions are a list in
/// the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Listed", into = "Listed")]
pub struct Position {
    next_decision: u64,
    partitions: BTreeMap<Partition, PartitionPosition>,
    /// The fingerprints of the schemas that were seen, by stream and id.
    schemas: BTreeMap<(u16, u32), u64>,
}

/// A schema of messages that the log has recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PinnedSchema {
    /// The number of the stream in the job.
    pub stream: u16,
    /// The id of the schema in its registry.
    pub id: u32,
    /// The hash of the schema ([`crate::StoredSchema::fingerprint`]).
    pub fingerprint: u64,
}

/// The position in one partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionPosition {
    /// The name of the partition in its stream.
    pub name: String,
    /// The offset of the next message.
    pub next_offset: u64,
    /// The latest time of an event so far, from which watermarks follow; `None` before the first
    /// event.
    pub newest: Option<EventTime>,
    /// Whether the log has declared the partition idle.
    pub is_idle: bool,
    /// The files of the partition, if the stream is a followed folder.
    #[serde(default)]
    pub files: FileHistory,
}

impl Position {
    /// Returns the number of the first decision that is not part of the position.
    pub fn next_decision(&self) -> u64 {
        self.next_decision
    }

    /// Returns the partitions in the order of their numbers.
    pub fn partitions(&self) -> impl Iterator<Item = (Partition, &PartitionPosition)> {
        self.partitions.iter().map(|(partition, position)| (*partition, position))
    }

    /// Returns the partitions of a stream in the order of their numbers.
    pub fn of_stream(&self, stream: u16) -> impl Iterator<Item = (Partition, &PartitionPosition)> {
        self.partitions().filter(move |(partition, _)| partition.stream == stream)
    }

    /// Returns the position in a partition, or `None` if the log has not recorded the partition.
    pub fn partition(&self, partition: Partition) -> Option<&PartitionPosition> {
        self.partitions.get(&partition)
    }

    /// Returns the schemas of messages that the log has recorded, in the order of their streams and
    /// ids.
    pub fn schemas(&self) -> impl Iterator<Item = PinnedSchema> + '_ {
        let pinned = |(&(stream, id), &fingerprint): (&(u16, u32), &u64)| PinnedSchema {
            stream,
            id,
            fingerprint,
        };
        self.schemas.iter().map(pinned)
    }

    /// Applies the decision with the given number.
    ///
    /// # Errors
    /// Returns an error if the number is not the next one, or if the decision contradicts the
    /// position. Then the position is unchanged.
    pub fn apply(&mut self, number: u64, decision: &Decision) -> Result<()> {
        if number != self.next_decision {
            return Err(Error::Position(format!(
                "decision {number} was applied, but decision {} is the next one; replay the log \
                 from there",
                self.next_decision
            )));
        }
        match decision {
            Decision::Took(took) => self.take(took)?,
            Decision::Idle { partition } => self.set_idle(*partition, true)?,
            Decision::Back { partition } => self.set_idle(*partition, false)?,
            Decision::Partitions { stream, names, starts } => {
                self.set_partitions(*stream, names, starts)?;
            }
            Decision::File { partition, file } => {
                let known = self.find_known(*partition)?;
                known.files.add(*partition, file.clone())?;
                // Empty files are consumed at once.
                known.files.forget(known.next_offset);
            }
            Decision::Reset { partition, to, files } => self.reset(*partition, *to, files)?,
            Decision::Cut { .. }
            | Decision::Publish { .. }
            | Decision::Checkpoint { .. }
            | Decision::Skip { .. }
            | Decision::Keep { .. }
            | Decision::Rules(_) => {}
            Decision::Schema { stream, id, fingerprint } => {
                self.pin_schema(*stream, *id, *fingerprint)?;
            }
        }
        self.next_decision += 1;
        Ok(())
    }

    /// Records the time of an event of a partition.
    ///
    /// # Errors
    /// Returns an error if the log has not recorded the partition.
    pub fn observe(&mut self, partition: Partition, time: EventTime) -> Result<()> {
        let known = self.find_known(partition)?;
        known.newest = known.newest.max(Some(time));
        Ok(())
    }

    fn pin_schema(&mut self, stream: u16, id: u32, fingerprint: u64) -> Result<()> {
        let known = *self.schemas.entry((stream, id)).or_insert(fingerprint);
        if known != fingerprint {
            return Err(Error::Position(format!(
                "the schema with id {id} of stream {stream} has the hash {known:016x}, but \
                 {fingerprint:016x} is recorded too; give each schema its own id"
            )));
        }
        Ok(())
    }

    fn take(&mut self, took: &Took) -> Result<()> {
        let known = self.find_known(took.partition)?;
        if took.from != known.next_offset || took.to < took.from {
            return Err(Error::Position(format!(
                "{}: offsets {} to {} were consumed, but offset {} is the next one; consume \
                 messages in their order",
                took.partition, took.from, took.to, known.next_offset
            )));
        }
        if known.is_idle {
            return Err(Error::Position(format!(
                "{}: messages of an idle partition were consumed; record first that the \
                 partition is back",
                took.partition
            )));
        }
        known.next_offset = took.to;
        known.files.forget(took.to);
        Ok(())
    }

    fn reset(&mut self, partition: Partition, to: u64, files: &FileHistory) -> Result<()> {
        files.check(partition)?;
        let known = self.find_known(partition)?;
        let is_inside = files.files().first().is_none_or(|first| first.start <= to)
            && (files.files().is_empty() || to <= files.end());
        if !is_inside || files.end() < known.files.end() {
            return Err(Error::Position(format!(
                "{partition}: offset {to} of a reset does not lie in the files of the reset, or \
                 these end before the known ones; restore the log"
            )));
        }
        known.next_offset = to;
        known.files = files.clone();
        Ok(())
    }

    fn set_idle(&mut self, partition: Partition, is_idle: bool) -> Result<()> {
        let known = self.find_known(partition)?;
        if known.is_idle == is_idle {
            let state = if is_idle { "idle" } else { "active" };
            return Err(Error::Position(format!(
                "{partition}: the partition is {state} already; record only changes"
            )));
        }
        known.is_idle = is_idle;
        Ok(())
    }

    fn set_partitions(&mut self, stream: u16, names: &[String], starts: &[u64]) -> Result<()> {
        for (partition, known) in self.of_stream(stream) {
            let name = names.get(partition.number as usize);
            if name != Some(&known.name) {
                return Err(Error::Position(format!(
                    "{partition} is `{}`, but the new list of partitions has {} at its place; add \
                     partitions behind the known ones",
                    known.name,
                    name.map_or_else(|| "nothing".to_owned(), |name| format!("`{name}`"))
                )));
            }
        }
        let known = self.of_stream(stream).count();
        let starts = list_starts(names.len() - known, starts)?;
        for ((number, name), start) in (0u32..).zip(names).skip(known).zip(starts) {
            let partition = Partition { stream, number };
            self.partitions.entry(partition).or_insert_with(|| PartitionPosition {
                name: name.clone(),
                next_offset: start,
                newest: None,
                is_idle: false,
                files: FileHistory::default(),
            });
        }
        Ok(())
    }

    fn find_known(&mut self, partition: Partition) -> Result<&mut PartitionPosition> {
        self.partitions.get_mut(&partition).ok_or_else(|| {
            Error::Position(format!(
                "{partition} is unknown; record the partitions of the stream first"
            ))
        })
    }
}

/// Returns the offsets at which `added` new partitions begin, by the list of a decision.
///
/// # Errors
/// Returns an error if the list is neither empty nor complete.
pub(crate) fn list_starts(added: usize, starts: &[u64]) -> Result<Vec<u64>> {
    if starts.is_empty() {
        return Ok(vec![0; added]);
    }
    if starts.len() != added {
        return Err(Error::Position(format!(
            "{} offsets at which partitions begin were recorded for {added} new partitions; \
             replay the log from the position of the checkpoint",
            starts.len()
        )));
    }
    Ok(starts.to_vec())
}

/// The form of a position in a file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    next_decision: u64,
    partitions: Vec<Entry>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    schemas: Vec<PinnedSchema>,
}

/// A partition in the form of a position in a file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    partition: Partition,
    position: PartitionPosition,
}

impl From<Position> for Listed {
    fn from(position: Position) -> Self {
        let entry = |(partition, position)| Entry { partition, position };
        let schemas = position.schemas().collect();
        let partitions = position.partitions.into_iter().map(entry).collect();
        Self { next_decision: position.next_decision, partitions, schemas }
    }
}

impl TryFrom<Listed> for Position {
    type Error = Error;

    fn try_from(listed: Listed) -> Result<Self> {
        let mut partitions = BTreeMap::new();
        // The partitions of a stream have the numbers from 0 on, so that the order is known.
        let mut wanted = Partition { stream: 0, number: 0 };
        for Entry { partition, position } in listed.partitions {
            let begins_stream = partition.number == 0
                && (partitions.is_empty() || partition.stream >= wanted.stream.saturating_add(1));
            if partition != wanted && !begins_stream {
                return Err(Error::Position(format!(
                    "{partition} is at a wrong place of the list of partitions; use an unchanged \
                     manifest of a checkpoint"
                )));
            }
            position.files.check(partition)?;
            wanted = Partition { number: partition.number + 1, ..partition };
            partitions.insert(partition, position);
        }
        let mut position =
            Self { next_decision: listed.next_decision, partitions, ..Self::default() };
        for PinnedSchema { stream, id, fingerprint } in listed.schemas {
            position.pin_schema(stream, id, fingerprint)?;
        }
        Ok(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::FileIdentity;

    const FIRST: Partition = Partition { stream: 0, number: 0 };
    const SECOND: Partition = Partition { stream: 0, number: 1 };

    fn partitions(names: &[&str]) -> Decision {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Decision::Partitions { stream: 0, names, starts: Vec::new() }
    }

    fn starting(names: &[&str], starts: &[u64]) -> Decision {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Decision::Partitions { stream: 0, names, starts: starts.to_vec() }
    }

    fn took(partition: Partition, from: u64, to: u64) -> Decision {
        Decision::Took(Took { partition, from, to, count: 1, hash: 9 })
    }

    /// Applies decisions from number 0 on.
    fn applied(decisions: &[Decision]) -> Position {
        let mut position = Position::default();
        for (number, decision) in (0..).zip(decisions) {
            position.apply(number, decision).unwrap();
        }
        position
    }

    #[test]
    fn a_position_follows_the_decisions() {
        let file = FileIdentity { name: "f".to_owned(), start: 0, size: 40, head: 3 };
        let mut position = applied(&[
            partitions(&["a", "b"]),
            Decision::File { partition: FIRST, file },
            took(FIRST, 0, 30),
            Decision::Idle { partition: SECOND },
            partitions(&["a", "b", "c"]),
            Decision::Cut { batch: 1, rows: 1, reason: crate::decisions::CutReason::Stop },
        ]);
        position.observe(FIRST, EventTime(50)).unwrap();
        position.observe(FIRST, EventTime(20)).unwrap();
        assert_eq!(position.next_decision(), 6);
        let first = position.partition(FIRST).unwrap();
        assert_eq!((first.next_offset, first.newest), (30, Some(EventTime(50))));
        assert_eq!(first.files.files().len(), 1);
        assert!(position.partition(SECOND).unwrap().is_idle);
        assert_eq!(position.of_stream(0).count(), 3);
        assert_eq!(position.of_stream(1).count(), 0);
    }

    #[test]
    fn new_partitions_begin_at_the_recorded_offsets() {
        let mut position = applied(&[starting(&["a", "b"], &[10, 0]), took(FIRST, 10, 12)]);
        position.apply(2, &starting(&["a", "b", "c"], &[5])).unwrap();
        let offsets: Vec<_> = position.partitions().map(|(_, known)| known.next_offset).collect();
        assert_eq!(offsets, [12, 0, 5]);
        // A log that was written before there were such offsets means 0.
        let old = r#"{"partitions":{"stream":0,"names":["a"]}}"#;
        assert_eq!(serde_json::from_str::<Decision>(old).unwrap(), partitions(&["a"]));
        assert_eq!(serde_json::to_string(&partitions(&["a"])).unwrap(), old);
    }

    #[test]
    fn empty_files_are_forgotten_like_others() {
        let file = |number: u64| {
            let name = format!("{number:03}");
            let file = FileIdentity { name, start: 0, size: 0, head: 3 };
            Decision::File { partition: FIRST, file }
        };
        let decisions: Vec<_> =
            [partitions(&["a"])].into_iter().chain((0..100).map(file)).collect();
        let position = applied(&decisions);
        let files = &position.partition(FIRST).unwrap().files;
        assert_eq!((files.files().len(), files.forgotten()), (32, 68));
    }

    #[test]
    fn a_position_survives_json_in_a_fixed_order() {
        let mut position = applied(&[
            Decision::Partitions { stream: 3, names: vec!["x".to_owned()], starts: vec![7] },
            partitions(&["b", "a"]),
            took(SECOND, 0, 30),
        ]);
        position.observe(SECOND, EventTime(-4)).unwrap();
        let text = serde_json::to_string(&position).unwrap();
        assert_eq!(serde_json::from_str::<Position>(&text).unwrap(), position);
        let places = ["\"b\"", "\"a\"", "\"x\""].map(|name| text.find(name).unwrap());
        assert!(places.is_sorted(), "{text}");
        for place in [r#""next_decision""#, r#""is_idle""#, r#""partition""#, r#""stream""#] {
            let unknown = text.replacen(place, &format!(r#""other":1,{place}"#), 1);
            let error = serde_json::from_str::<Position>(&unknown).unwrap_err().to_string();
            assert!(error.contains("unknown field `other`"), "{error}");
        }
        let empty = serde_json::to_string(&Position::default()).unwrap();
        assert_eq!(empty, r#"{"next_decision":0,"partitions":[]}"#);
    }

    #[test]
    fn schemas_are_part_of_a_position() {
        let schema = |id, fingerprint| Decision::Schema { stream: 1, id, fingerprint };
        let mut position = applied(&[schema(9, u64::MAX), schema(7, 5), schema(7, 5)]);
        let text = serde_json::to_string(&position).unwrap();
        assert_eq!(serde_json::from_str::<Position>(&text).unwrap(), position);
        let pinned = |id, fingerprint| PinnedSchema { stream: 1, id, fingerprint };
        assert_eq!(position.schemas().collect::<Vec<_>>(), [pinned(7, 5), pinned(9, u64::MAX)]);
        let before = position.clone();
        let error = position.apply(3, &schema(7, 6)).unwrap_err().to_string();
        assert!(error.contains("the schema with id 7 of stream 1"), "{error}");
        assert_eq!(position, before);
        let wrong = text.replacen("\"id\":9", "\"id\":7", 1);
        assert!(serde_json::from_str::<Position>(&wrong).is_err());
    }

    #[test]
    fn misuse_has_a_clear_error_and_no_effect() {
        let position = applied(&[
            partitions(&["a", "b"]),
            took(FIRST, 0, 30),
            Decision::Idle { partition: SECOND },
        ]);
        let other = Partition { stream: 0, number: 2 };
        for (number, decision, words) in [
            (2, took(FIRST, 30, 31), "decision 3 is the next one"),
            (3, took(FIRST, 29, 31), "offset 30 is the next one"),
            (3, took(FIRST, 30, 29), "consume messages in their order"),
            (3, took(SECOND, 0, 1), "record first that the partition is back"),
            (3, took(other, 0, 1), "partition 2 of stream 0 is unknown"),
            (3, Decision::Idle { partition: SECOND }, "is idle already"),
            (3, Decision::Back { partition: FIRST }, "is active already"),
            (3, partitions(&["a"]), "partition 1 of stream 0 is `b`"),
            (3, partitions(&["a", "c", "b"]), "has `c` at its place"),
            (3, starting(&["a", "b", "c"], &[1, 2]), "2 offsets at which partitions begin"),
        ] {
            let mut changed = position.clone();
            let error = changed.apply(number, &decision).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
            assert_eq!(changed, position);
        }
        assert!(position.clone().observe(other, EventTime(0)).is_err());
    }

    #[test]
    fn a_list_out_of_order_is_refused() {
        let position = applied(&[partitions(&["a", "b"])]);
        let text = serde_json::to_string(&position).unwrap();
        for (from, to) in [
            (r#""number":1"#, r#""number":0"#),
            (r#""number":1"#, r#""number":2"#),
            (r#""number":0"#, r#""number":1"#),
            (r#""stream":0,"number":1"#, r#""stream":1,"number":1"#),
        ] {
            let changed = text.replacen(from, to, 1);
            assert_ne!(changed, text);
            let error = serde_json::from_str::<Position>(&changed).unwrap_err().to_string();
            assert!(error.contains("wrong place of the list"), "{changed}: {error}");
        }
    }

    #[test]
    fn a_reset_moves_a_partition_inside_of_its_files() {
        let file = |name: &str, start| {
            let (name, size, head) = (name.to_owned(), 10, 0);
            FileIdentity { name, start, size, head }
        };
        let (first, second) = (file("1", 0), file("2", 10));
        let files = FileHistory::restore(FIRST, 0, vec![first.clone(), second.clone()]).unwrap();
        let mut position = Position::default();
        let took = Took { partition: FIRST, from: 0, to: 20, count: 4, hash: 0 };
        for decision in [
            partitions(&["a"]),
            Decision::File { partition: FIRST, file: first },
            Decision::File { partition: FIRST, file: second.clone() },
            Decision::Took(took),
            Decision::Reset { partition: FIRST, to: 5, files: files.clone() },
        ] {
            position.apply(position.next_decision(), &decision).unwrap();
        }
        assert_eq!(position.partition(FIRST).unwrap().next_offset, 5);
        let behind = FileHistory::restore(FIRST, 1, vec![second]).unwrap();
        for (to, files) in [(21, files), (5, behind)] {
            let reset = Decision::Reset { partition: FIRST, to, files };
            let error = position.apply(position.next_decision(), &reset).unwrap_err();
            assert!(error.to_string().contains("does not lie in the files"), "{error}");
        }
        assert_eq!(position.partition(FIRST).unwrap().next_offset, 5);
    }
}
