//! The pending rows: the newest in memory, all others in segments on disk, and the index of all.
//!
//! Each segment is sorted by event time and arrival, and rows leave in this order. So what leaves a
//! segment is its beginning, and the oldest pending row is the least of the segments' first rows.
//! Nothing is read twice, and no order of rows is kept in memory beside that of the memtable.
//!
//! # Space
//! A segment whose rows have all left is removed. If more than [`MOST_SMALL`] segments are less
//! than half full of pending rows, some of them are merged. If the segments fill more than three
//! quarters of the bound of disk, the one with the least share of pending rows is rewritten, until
//! they do not. Pending rows fill at most half of the bound, so there is always such a segment.
//!
//! # Crash consistency
//! Segments are written, synced and renamed, and never change. After a crash, the folder may have
//! more segments than a checkpoint names. They are removed when the joiner is restored.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::path::{Path, PathBuf};
use std::{fs, io};

use zillion_device::{DeviceError, Files};

use super::error::{JoinError, JoinResult};
use super::index::{Index, Place};
use super::key::Key;
use super::memtable::Memtable;
use super::record::{self, HEAD, Head, Rank};
use super::segment::{self, MAGIC, Segment, SegmentFile, SegmentWriter};

/// The slot of rows that are in the memtable.
const MEMTABLE: u16 = u16::MAX;
/// The number of segments that may be less than half full of pending rows.
const MOST_SMALL: usize = 32;

/// The sizes that the pending rows keep to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) segment_bytes: u64,
    pub(crate) max_disk_bytes: u64,
}

/// The pending rows of a joiner.
#[derive(Debug)]
pub(crate) struct Pending {
    folder: PathBuf,
    files: Files,
    sizes: Sizes,
    index: Index,
    memtable: Memtable,
    /// The segments by slot. The index names slots, because they are shorter than numbers.
    slots: Vec<Option<Segment>>,
    /// The first pending row of each segment.
    fronts: BTreeSet<(Rank, u16)>,
    next_number: u64,
    /// The bytes of the records of all pending rows.
    live_bytes: u64,
}

impl Pending {
    /// Creates pending rows without any row. The segments will be in `folder`, which exists.
    pub(crate) fn new(folder: &Path, files: Files, sizes: Sizes, next_number: u64) -> Self {
        Self {
            folder: folder.to_path_buf(),
            files,
            sizes,
            index: Index::new(),
            memtable: Memtable::new(sizes.segment_bytes as usize + HEAD),
            slots: Vec::new(),
            fronts: BTreeSet::new(),
            next_number,
            live_bytes: 0,
        }
    }

    pub(crate) fn rows(&self) -> u64 {
        self.index.len()
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Returns the number of bytes of memory that the index has allocated.
    #[cfg(test)]
    pub(crate) fn index_bytes(&self) -> u64 {
        self.index.allocated_bytes()
    }

    /// Returns the number of the next segment.
    pub(crate) fn next_number(&self) -> u64 {
        self.next_number
    }

    pub(crate) fn get(&self, key: Key) -> Option<Place> {
        self.index.get(key)
    }

    /// Returns the written segments with pending rows, in the order of their numbers.
    pub(crate) fn segments(&self) -> Vec<&Segment> {
        let mut segments: Vec<_> = self.slots.iter().flatten().collect();
        segments.sort_by_key(|segment| segment.file.number);
        segments
    }

    /// Returns the size of all segments in bytes.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.slots.iter().flatten().map(|segment| segment.file.bytes).sum()
    }

    /// Adds a row whose key is not pending.
    ///
    /// # Errors
    /// Returns an error if a segment cannot be written, read or removed.
    pub(crate) fn insert(&mut self, head: &Head, row: &[u8]) -> JoinResult<()> {
        if !self.memtable.has_room(HEAD + row.len()) {
            if self.memtable.is_mostly_dead() {
                let index = &mut self.index;
                self.memtable.compact(|head, offset| move_row(index, head.key, MEMTABLE, offset));
            } else {
                self.seal()?;
            }
        }
        let offset = self.memtable.insert(head, row);
        let place = Place { time: head.rank.time, has_feedback: false, slot: MEMTABLE, offset };
        self.index.insert(head.key, place);
        self.live_bytes += (HEAD + row.len()) as u64;
        Ok(())
    }

    /// Marks a pending row as one with feedback.
    pub(crate) fn mark_feedback(&mut self, key: Key) {
        if let Some(place) = self.index.get(key) {
            self.index.insert(key, Place { has_feedback: true, ..place });
        }
    }

    /// Returns the rank of the row that leaves next.
    pub(crate) fn oldest(&self) -> Option<Rank> {
        let front = self.fronts.first().map(|(rank, _)| *rank);
        match (self.memtable.oldest(), front) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Removes the oldest row. Its record replaces the contents of `out`. Returns the head, and
    /// whether feedback was joined to the row.
    ///
    /// # Errors
    /// Returns an error if its segment cannot be read or removed, or is not as it was written.
    pub(crate) fn pop_oldest(&mut self, out: &mut Vec<u8>) -> JoinResult<Option<(Head, bool)>> {
        let Some(oldest) = self.oldest() else { return Ok(None) };
        let head = if self.memtable.oldest() == Some(oldest) {
            out.clear();
            out.extend_from_slice(self.memtable.pop_oldest().unwrap_or_default());
            record::head(out)
        } else {
            self.pop_front(out)?
        };
        let Some(head) = head else { return Ok(None) };
        self.live_bytes -= out.len() as u64;
        let place = self.index.remove(head.key);
        Ok(Some((head, place.is_some_and(|place| place.has_feedback))))
    }

    /// Removes the oldest row of all segments.
    fn pop_front(&mut self, out: &mut Vec<u8>) -> JoinResult<Option<Head>> {
        let Some(&(rank, slot)) = self.fronts.first() else { return Ok(None) };
        let buffer = self.buffer_bytes();
        let Some(segment) = &mut self.slots[slot as usize] else { return Ok(None) };
        let (head, is_left) = segment.pop(&self.files, buffer, out)?;
        let next = is_left.then_some(segment.oldest);
        self.fronts.remove(&(rank, slot));
        match next {
            Some(next) => {
                self.fronts.insert((next, slot));
            }
            None => self.remove(slot)?,
        }
        Ok(Some(head))
    }

    /// Reads the record of a pending row into `out`, which is replaced. Returns its head.
    ///
    /// # Errors
    /// Returns an error if its segment cannot be read, or is not as it was written.
    pub(crate) fn read(&self, key: Key, place: Place, out: &mut Vec<u8>) -> JoinResult<Head> {
        let segment = self.slots.get(place.slot as usize).and_then(Option::as_ref);
        match segment {
            Some(segment) => segment.read(&self.files, place.offset, out)?,
            None => {
                out.clear();
                out.extend_from_slice(self.memtable.record(place.offset));
            }
        }
        let path = segment.map_or(&self.folder, |segment| &segment.path);
        let head = record::decode(out).map(|(head, _)| head).filter(|head| head.key == key);
        let damaged = || JoinError::damaged(path, format!("is altered at byte {}", place.offset));
        head.ok_or_else(damaged)
    }

    /// Writes the rows of the memtable to a segment, if there are any.
    ///
    /// # Errors
    /// Returns an error if a segment cannot be written, read or removed.
    pub(crate) fn seal(&mut self) -> JoinResult<()> {
        if self.memtable.is_empty() {
            self.memtable.clear();
            return Ok(());
        }
        let number = self.next_number;
        let path = self.folder.join(segment::file_name(number));
        let mut file = None;
        self.files.write_file(&path, |out| {
            let mut writer = SegmentWriter::begin(out)?;
            for record in self.memtable.records() {
                writer.put(record)?;
            }
            file = Some(writer.finish(number));
            Ok(())
        })?;
        let slot = self.add_written(path, file, self.memtable.oldest());
        let mut offset = MAGIC.len() as u32;
        for record in self.memtable.records() {
            if let Some(head) = record::head(record) {
                move_row(&mut self.index, head.key, slot, offset);
            }
            offset += record.len() as u32;
        }
        self.memtable.clear();
        self.merge_small()?;
        self.reclaim()
    }

    /// Adds a segment that lies in the folder already, with the pending rows behind its cursor.
    ///
    /// # Errors
    /// Returns an error if the file is missing, cut off or altered, or if a key is pending already.
    pub(crate) fn adopt(&mut self, file: SegmentFile, cursor: u64) -> JoinResult<()> {
        let path = self.folder.join(segment::file_name(file.number));
        let slot = self.free_slot();
        let index = &mut self.index;
        let rank = segment::scan(&path, &file, cursor, |head, offset| {
            if index.get(head.key).is_some() {
                return Err(JoinError::damaged(&path, "has a row that is pending already"));
            }
            let time = head.rank.time;
            index.insert(head.key, Place { time, has_feedback: false, slot, offset });
            Ok(())
        })?;
        let segment = Segment::new(path, file, cursor, rank);
        self.live_bytes += segment.live_bytes();
        self.place(slot, segment);
        Ok(())
    }

    /// Merges segments with few pending rows, if there are many.
    fn merge_small(&mut self) -> JoinResult<()> {
        let half = self.sizes.segment_bytes / 2;
        let small = self.slots.iter().enumerate().filter_map(|(slot, segment)| {
            let segment = segment.as_ref().filter(|segment| segment.live_bytes() < half)?;
            Some((segment.file.number, slot as u16, segment.live_bytes()))
        });
        let mut small: Vec<_> = small.collect();
        if small.len() <= MOST_SMALL {
            return Ok(());
        }
        small.sort_unstable();
        let mut bytes = 0;
        small.retain(|(_, _, live)| {
            bytes += live;
            bytes <= self.sizes.segment_bytes
        });
        let slots: Vec<u16> = small.iter().map(|(_, slot, _)| *slot).collect();
        self.rewrite(&slots)
    }

    /// Rewrites segments that have rows that left, while the segments fill too much of the disk.
    fn reclaim(&mut self) -> JoinResult<()> {
        while self.disk_bytes() > self.sizes.max_disk_bytes / 4 * 3 {
            let with_dead = self.slots.iter().enumerate().filter_map(|(slot, segment)| {
                let segment = segment.as_ref()?;
                let dead = segment.cursor - MAGIC.len() as u64;
                // The share in parts of a million, so that it is a whole number.
                let share = dead * 1_000_000 / segment.file.bytes.max(1);
                (dead > 0).then_some((share, Reverse(segment.file.number), slot as u16))
            });
            let Some((_, _, slot)) = with_dead.max() else { return Ok(()) };
            self.rewrite(&[slot])?;
        }
        Ok(())
    }

    /// Writes the pending rows of some segments to a new one, and removes the old ones.
    fn rewrite(&mut self, slots: &[u16]) -> JoinResult<()> {
        let number = self.next_number;
        let path = self.folder.join(segment::file_name(number));
        let (buffer, files) = (self.buffer_bytes(), self.files.clone());
        let mut moved = Vec::new();
        let mut oldest = None;
        let mut file = None;
        let mut failure = None;
        let mut sources: Vec<Segment> =
            slots.iter().filter_map(|slot| self.slots[*slot as usize].take()).collect();
        for (segment, slot) in sources.iter().zip(slots) {
            self.fronts.remove(&(segment.oldest, *slot));
        }
        let written = files.write_file(&path, |out| {
            let mut writer = SegmentWriter::begin(out)?;
            let ranks = sources.iter().enumerate().map(|(at, s)| Reverse((s.oldest, at)));
            let mut heap: BinaryHeap<_> = ranks.collect();
            let mut record = Vec::new();
            while let Some(Reverse((rank, at))) = heap.pop() {
                let popped = sources[at].pop(&files, buffer, &mut record);
                let (head, is_left) = popped.map_err(|error| {
                    failure = Some(error);
                    io::Error::other("a segment cannot be read")
                })?;
                oldest.get_or_insert(rank);
                moved.push((head.key, writer.put(&record)?));
                if is_left {
                    heap.push(Reverse((sources[at].oldest, at)));
                }
            }
            file = Some(writer.finish(number));
            Ok(())
        });
        if let Some(error) = failure {
            return Err(error);
        }
        written?;
        let slot = self.add_written(path, file, oldest);
        for (key, offset) in moved {
            move_row(&mut self.index, key, slot, offset);
        }
        for segment in sources {
            self.files.remove_file(&segment.path)?;
        }
        Ok(())
    }

    /// Adds a segment that was just written, and returns its slot. The index does not know it yet.
    fn add_written(
        &mut self,
        path: PathBuf,
        file: Option<SegmentFile>,
        oldest: Option<Rank>,
    ) -> u16 {
        let slot = self.free_slot();
        if let (Some(file), Some(oldest)) = (file, oldest) {
            self.next_number = file.number + 1;
            self.place(slot, Segment::new(path, file, MAGIC.len() as u64, oldest));
        }
        slot
    }

    fn free_slot(&mut self) -> u16 {
        let free = self.slots.iter().position(Option::is_none);
        let free = free.unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        free as u16
    }

    fn place(&mut self, slot: u16, segment: Segment) {
        self.fronts.insert((segment.oldest, slot));
        self.slots[slot as usize] = Some(segment);
    }

    fn remove(&mut self, slot: u16) -> JoinResult<()> {
        if let Some(segment) = self.slots[slot as usize].take() {
            self.files.remove_file(&segment.path)?;
        }
        Ok(())
    }

    /// Returns the size of the buffer of a segment that is being read: with the largest number of
    /// segments that the bounds allow, all buffers fit into a few segments' sizes.
    fn buffer_bytes(&self) -> usize {
        (self.sizes.segment_bytes / 32).clamp(512, 64 << 10) as usize
    }
}

/// Creates the folder of a joiner, or removes what an earlier joiner left there.
pub(crate) fn prepare_folder(folder: &Path, files: &Files) -> JoinResult<()> {
    files.create_dir(folder)?;
    files.sweep(folder)?;
    let list = |e| DeviceError::file("list the folder", folder, e);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(list)? {
        let path = entry.map_err(list)?.path();
        if path.extension().is_some_and(|ending| ending == "segment") {
            found.push(path);
        }
    }
    found.sort();
    found.iter().try_for_each(|path| files.remove_file(path))?;
    Ok(())
}

/// Writes the new place of a row into the index.
fn move_row(index: &mut Index, key: Key, slot: u16, offset: u32) {
    if let Some(place) = index.get(key) {
        index.insert(key, Place { slot, offset, ..place });
    }
}
