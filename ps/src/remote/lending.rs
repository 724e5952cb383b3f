//! The implementation of [`Lending`] for tables on servers.

use std::collections::VecDeque;
use std::ops::Range;

use zillion_embedding::LentRows;
use zillion_feature::{FeatureKey, SLOTS, Step, TableId};

use super::{RemoteClient, bad_answer};
use crate::client::Lending;
use crate::error::{Error, Result};
use crate::wire::{LentPart, Op, Reader, WireError, Writer, read_lent, write_lent};

/// The largest number of frames with rows that come back, and that the servers have not answered.
/// A session may have twice as many open frames.
const MOST_OPEN: usize = 32;

impl Lending for RemoteClient {
    fn ask_for_rows(&mut self, step: Step, keys: Vec<LentRows>) -> Result<()> {
        let mut frames = Vec::new();
        for server in 0..self.links.len() {
            let parts = self.parts(server, &keys);
            if !parts.is_empty() {
                let link = &mut self.links[server];
                let frame = link.send(Op::Take, step.0, |body| {
                    write_lent(body, parts.into_iter());
                })?;
                frames.push((server, frame));
            }
        }
        self.takes.push_back(frames);
        Ok(())
    }

    fn take_rows(&mut self) -> Result<Vec<LentRows>> {
        let Some(frames) = self.takes.pop_front() else {
            let reason = "no question for rows is open; call `ask_for_rows` first".to_owned();
            return Err(Error::Argument { call: "take_rows", reason });
        };
        let mut all: Vec<LentRows> = Vec::new();
        for body in self.answers_of(&frames)? {
            let mut reader = Reader::new(&body);
            let read = read_lent(&mut reader, &self.lent_words);
            let rows = read.and_then(|rows| reader.end().map(|()| rows));
            // The servers own ascending ranges of slots, so the keys of a table stay sorted.
            for mut rows in rows.map_err(bad_answer("take_rows"))? {
                match all.iter_mut().find(|of| of.table == rows.table) {
                    Some(of) => {
                        of.keys.append(&mut rows.keys);
                        of.words.append(&mut rows.words);
                    }
                    None => all.push(rows),
                }
            }
        }
        Ok(all)
    }

    fn take_table(
        &mut self,
        step: Step,
        table: TableId,
        add: &mut dyn FnMut(LentRows) -> Result<()>,
    ) -> Result<()> {
        for server in 0..self.links.len() {
            let mut next = 0;
            while next < SLOTS {
                let frame = self.links[server].send(Op::TakeTable, step.0, |body| {
                    let mut out = Writer(body);
                    out.u16(table.0);
                    out.u32(next as u32);
                })?;
                let body = self.links[server].take(frame)?;
                let mut reader = Reader::new(&body);
                let mut read = || {
                    let left = reader.u32()? as usize;
                    if left <= next {
                        return Err(WireError::new("the server has sent the same slots again"));
                    }
                    let rows = read_lent(&mut reader, &self.lent_words)?;
                    reader.clone().end().map(|()| (rows, left))
                };
                let (rows, left) = read().map_err(bad_answer("take_table"))?;
                rows.into_iter().try_for_each(&mut *add)?;
                next = left;
            }
        }
        Ok(())
    }

    fn give_back(&mut self, step: Step, next: &mut dyn FnMut() -> Option<LentRows>) -> Result<()> {
        let mut open: VecDeque<(usize, u64)> = VecDeque::new();
        while let Some(rows) = next() {
            let rows = [rows];
            for server in 0..self.links.len() {
                let parts = self.parts(server, &rows);
                if parts.is_empty() {
                    continue;
                }
                let link = &mut self.links[server];
                let frame = link.send(Op::GiveBack, step.0, |body| {
                    write_lent(body, parts.into_iter());
                })?;
                open.push_back((server, frame));
            }
            while open.len() > MOST_OPEN {
                let first = open.pop_front();
                self.answers_of(first.as_slice())?;
            }
        }
        self.answers_of(open.make_contiguous()).map(drop)
    }
}

impl RemoteClient {
    /// Returns the parts of rows, or of a question for them, that one server has.
    fn parts<'a>(&self, server: usize, rows: &'a [LentRows]) -> Vec<LentPart<'a>> {
        let part = |of: &'a LentRows| {
            let range = self.range_of(server, of.table.index(), &of.keys);
            let words = of.words.len() / of.keys.len().max(1);
            let words = &of.words[range.start * words..range.end * words];
            let keys = &of.keys[range];
            (!keys.is_empty()).then_some(LentPart { table: of.table, keys, words })
        };
        rows.iter().filter_map(part).collect()
    }

    /// Returns the range of the keys of a table, in the order of their slots, that a server owns.
    fn range_of(&self, server: usize, table: usize, keys: &[FeatureKey]) -> Range<usize> {
        let slots = self.owners.slots_of(server, table);
        let first = |slot: usize| keys.partition_point(|key| key.slot() < slot);
        if slots.is_empty() { 0..0 } else { first(slots.start)..first(slots.end) }
    }

    /// Waits for the answers to frames that were sent to some servers.
    fn answers_of(&mut self, frames: &[(usize, u64)]) -> Result<Vec<Vec<u8>>> {
        // Every answer is taken, also after an error, so that the next call finds its own.
        let take = |&(server, frame): &(usize, u64)| self.links[server].take(frame);
        let all: Vec<Result<Vec<u8>>> = frames.iter().map(take).collect();
        all.into_iter().collect()
    }
}
