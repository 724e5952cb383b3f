//! The implementation of [`Checkpointing`] for tables on servers. Each server writes its own files
//! into the folder of the store that the client names, and reads them from there.

use std::path::Path;

use zillion_device::Files;
use zillion_embedding::SnapshotMark;
use zillion_rows::TableParts;

use super::link::Link;
use super::{RemoteClient, bad_answer};
use crate::client::{CheckpointTicket, Checkpointing};
use crate::error::{Error, Result};
use crate::map::MapEntry;
use crate::mark::{CheckpointMark, ServerMark};
use crate::wire::{
    BeginCheckpoint, BegunCheckpoint, Below, Committed, Op, Reader, RestoreTables, Ticket,
    read_json, write_json,
};

/// The number of rows below which a checkpoint is written at once. The questions whether it is
/// written would take longer.
const FEW_ROWS: u64 = 10_000;

impl Checkpointing for RemoteClient {
    fn writes_beside_steps(&self) -> bool {
        self.checkpointed_rows >= FEW_ROWS
    }

    fn next_cut(&mut self) -> Option<String> {
        self.names.is_bucket().then(|| {
            self.cuts += 1;
            format!("{:010}-{:08}", self.generation, self.cuts)
        })
    }

    fn begin_checkpoint(&mut self, folder: &Path, _files: &Files) -> Result<CheckpointTicket> {
        self.begin("begin_checkpoint", folder, &[])
    }

    fn follow_checkpoints(&mut self) -> Result<()> {
        self.order.check_settled("follow_checkpoints")?;
        self.ask_all(Op::FollowCheckpoints, |_| {}).map(drop)
    }

    fn checkpoint_mark(&mut self) -> Option<CheckpointMark> {
        let bodies = self.ask_all(Op::CheckpointMark, |_| {}).ok()?;
        let read = |body: &Vec<u8>| {
            let mark: Option<(u64, [u32; 2])> = read_json(body).ok()?;
            let (boot, numbers) = mark?;
            Some(ServerMark { boot, tables: SnapshotMark::of_numbers(numbers) })
        };
        let servers = bodies.iter().map(read).collect::<Option<_>>()?;
        Some(CheckpointMark { servers })
    }

    fn begin_changes(
        &mut self,
        folder: &Path,
        _files: &Files,
        since: &CheckpointMark,
    ) -> Result<CheckpointTicket> {
        let boots = self.links.iter().map(|link| link.welcome().boot);
        if !since.servers.iter().map(|mark| mark.boot).eq(boots) {
            let reason = "the mark belongs to other servers, or to servers before they were \
                          started again; write a whole checkpoint";
            return Err(Error::Argument { call: "begin_changes", reason: reason.to_owned() });
        }
        let marks: Vec<[u32; 2]> = since.servers.iter().map(|mark| mark.tables.numbers()).collect();
        self.begin("begin_changes", folder, &marks)
    }

    fn poll_checkpoint(&mut self, ticket: &CheckpointTicket) -> Result<bool> {
        let tickets = self.tickets_of("poll_checkpoint", ticket)?;
        let bodies = self.ask_tickets(Op::PollCheckpoint, &tickets)?;
        let read = |body: &Vec<u8>| Reader::new(body).bool().map_err(bad_answer("poll_checkpoint"));
        let ready = bodies.iter().map(read).collect::<Result<Vec<bool>>>()?;
        Ok(ready.into_iter().all(|is_ready| is_ready))
    }

    fn finish_checkpoint(&mut self, ticket: CheckpointTicket) -> Result<Vec<TableParts>> {
        let tickets = self.tickets_of("finish_checkpoint", &ticket)?;
        self.tickets = None;
        let bodies = self.ask_tickets(Op::FinishCheckpoint, &tickets)?;
        let read = |body: &Vec<u8>| read_json(body).map_err(bad_answer("finish_checkpoint"));
        let parts = bodies.iter().map(read).collect::<Result<Vec<Vec<TableParts>>>>()?;
        self.check_newest()?;
        Ok(TableParts::merge(&parts)?)
    }

    fn abandon_checkpoint(&mut self, ticket: CheckpointTicket) {
        if let Ok(tickets) = self.tickets_of("abandon_checkpoint", &ticket) {
            self.tickets = None;
            if let Err(error) = self.ask_tickets(Op::AbandonCheckpoint, &tickets) {
                tracing::warn!("a checkpoint cannot be abandoned on every server: {error}");
            }
        }
    }

    fn wants_checkpoint(&self) -> bool {
        self.links.iter().any(Link::wants_checkpoint)
    }

    fn record_checkpoint(&mut self, kept: &[u64]) -> Result<()> {
        let requests: Vec<u64> = self.links.iter().map(Link::begun_request).collect();
        self.ask_each(Op::Committed, |server, body| {
            write_json(body, &Committed { request: requests[server], kept: kept.to_vec() });
        })
        .map(drop)
    }

    fn restore_step(&self) -> Option<u64> {
        self.restore
    }

    fn restore(&mut self, folder: &Path, parts: &[TableParts]) -> Result<()> {
        self.order.check_settled("restore")?;
        self.drop_ahead()?;
        let mut below = Vec::new();
        for table in parts {
            let files = table.changes.iter().flat_map(|changes| &changes.below).map(|files| {
                Ok(Below {
                    folder: self.names.name("restore", &files.folder)?,
                    rows: files.rows,
                    parts: files.parts.clone(),
                    gone: files.gone.clone(),
                })
            });
            below.push(files.collect::<Result<Vec<_>>>()?);
        }
        let folder = self.names.name("restore", folder)?;
        let mut restore = RestoreTables { folder, tables: parts.to_vec(), below, only_check: true };
        // No server may replace its rows if another one refuses the checkpoint.
        if self.links.len() > 1 {
            self.ask_empty(Op::Restore, |_, body| write_json(body, &restore))?;
        }
        restore.only_check = false;
        self.ask_empty(Op::Restore, |_, body| write_json(body, &restore))?;
        self.order.reset();
        self.tickets = None;
        self.plans.clear();
        self.announced = None;
        Ok(())
    }
}

impl RemoteClient {
    /// Checks that no other process has begun a later generation on other servers. On the same
    /// servers, the later generation would have ended this one, or was refused.
    fn check_newest(&self) -> Result<()> {
        match self.superseding() {
            Ok(None) => Ok(()),
            Ok(Some(newest)) => Err(Error::Superseded {
                run: self.run.clone(),
                generation: self.generation,
                newest,
            }),
            // A run does not stop because etcd is away.
            Err(Error::Unreachable { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns the number of a later generation on other servers, or `None` if there is none.
    fn superseding(&self) -> Result<Option<u64>> {
        let boots: Vec<u64> = self.links.iter().map(|link| link.welcome().boot).collect();
        for number in self.generation + 1..=self.log.newest(&self.run)? {
            let entry = self.log.entry(&self.run, number)?;
            let is_ours = |entry: &MapEntry| {
                entry.servers.iter().map(|(_, boot)| *boot).eq(boots.iter().copied())
            };
            if entry.is_some_and(|entry| !is_ours(&entry)) {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// Begins a checkpoint on every server, or on none.
    fn begin(
        &mut self,
        call: &'static str,
        folder: &Path,
        since: &[[u32; 2]],
    ) -> Result<CheckpointTicket> {
        self.order.check_settled(call)?;
        if self.tickets.is_some() {
            return Err(Error::Order {
                call,
                moment: format!("while checkpoint {} was being written", self.checkpoints),
                remedy: "call `finish_checkpoint` or `abandon_checkpoint` first",
            });
        }
        self.settle_if_paced()?;
        let folder = self.names.name(call, folder)?;
        let frames = self.send_each(Op::BeginCheckpoint, |server, body| {
            let since = since.get(server).copied();
            write_json(body, &BeginCheckpoint { folder: folder.clone(), since });
        })?;
        // A request whose checkpoint fails is served by the next checkpoint that is due.
        self.links.iter_mut().for_each(Link::begin_requested);
        let mut tickets = Vec::new();
        let mut failure = None;
        let mut rows = 0;
        for (link, &frame) in self.links.iter_mut().zip(&frames) {
            let ticket = link.take(frame);
            let ticket = ticket
                .and_then(|body| read_json::<BegunCheckpoint>(&body).map_err(bad_answer(call)));
            match ticket {
                Ok(begun) => {
                    rows += begun.rows;
                    tickets.push(Some(begun.number));
                }
                Err(error) => {
                    tickets.push(None);
                    failure = failure.or(Some(error));
                }
            }
        }
        if let Some(failure) = failure {
            self.abandon_begun(&tickets);
            return Err(failure);
        }
        self.tickets = Some(tickets.into_iter().flatten().collect());
        self.checkpoints += 1;
        self.checkpointed_rows = rows;
        Ok(CheckpointTicket::new(self.checkpoints))
    }

    /// Abandons the checkpoint on the servers that have begun it.
    fn abandon_begun(&mut self, tickets: &[Option<u64>]) {
        let step = self.order.step().0;
        for (link, ticket) in self.links.iter_mut().zip(tickets) {
            let Some(number) = *ticket else { continue };
            let sent = link.send(Op::AbandonCheckpoint, step, |body| {
                write_json(body, &Ticket { number });
            });
            if let Err(error) = sent.and_then(|frame| link.take(frame)) {
                tracing::warn!("a checkpoint cannot be abandoned on every server: {error}");
            }
        }
    }

    /// Returns the tickets of the servers, if the checkpoint of a ticket is open.
    fn tickets_of(&self, call: &'static str, ticket: &CheckpointTicket) -> Result<Vec<u64>> {
        match &self.tickets {
            Some(tickets) if ticket.number() == self.checkpoints => Ok(tickets.clone()),
            _ => {
                let number = ticket.number();
                let reason =
                    format!("checkpoint {number} was finished or abandoned; begin another one");
                Err(Error::Argument { call, reason })
            }
        }
    }

    /// Sends each server its ticket.
    fn ask_tickets(&mut self, op: Op, tickets: &[u64]) -> Result<Vec<Vec<u8>>> {
        self.ask_each(op, |server, body| write_json(body, &Ticket { number: tickets[server] }))
    }
}
