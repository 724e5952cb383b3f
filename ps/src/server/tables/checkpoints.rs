//! The work of the frames of checkpoints. The server writes and reads the files itself, in the
//! shared folder or in the bucket of the run.

use zillion_embedding::SnapshotMark;

use super::{Tables, bad, message, put};
use crate::client::{CheckpointTicket, Checkpointing};
use crate::error::{Error, Result};
use crate::mark::{CheckpointMark, ServerMark};
use crate::server::home::CHECKPOINT;
use crate::server::uploads::Uploads;
use crate::wire::{
    BeginCheckpoint, BegunCheckpoint, Header, Op, RestoreTables, Ticket, Writer, read_json,
};

impl Tables {
    /// Does the work of a frame of a checkpoint.
    pub(super) fn checkpoint(
        &mut self,
        header: &Header,
        body: &[u8],
        answer: &mut Vec<u8>,
    ) -> Result<()> {
        let call = header.op.name();
        let ticket = || message(header, body).map(|ticket: Ticket| ticket.number);
        match header.op {
            Op::BeginCheckpoint => {
                let begin: BeginCheckpoint = message(header, body)?;
                put(answer, &self.begin_checkpoint(call, &begin)?);
            }
            Op::FollowCheckpoints => self.client.follow_checkpoints()?,
            Op::CheckpointMark => {
                let mark = self.client.checkpoint_mark().and_then(|mark| mark.as_local());
                let mark = mark.map(|tables| ServerMark { boot: self.boot, tables });
                put(answer, &mark.map(|mark| (mark.boot, mark.tables.numbers())));
            }
            Op::PollCheckpoint => {
                let is_written = self.client.poll_checkpoint(&CheckpointTicket::new(ticket()?))?;
                let is_ready = is_written && self.uploads.as_ref().is_none_or(Uploads::is_ready);
                Writer(answer).u8(u8::from(is_ready));
            }
            Op::FinishCheckpoint => {
                let parts = self.client.finish_checkpoint(CheckpointTicket::new(ticket()?));
                let sent = match (&parts, self.uploads.take()) {
                    (Ok(_), Some(uploads)) => uploads.finish(),
                    _ => Ok(()),
                };
                self.drop_uploads();
                let parts = parts?;
                sent?;
                put(answer, &parts);
            }
            Op::AbandonCheckpoint => {
                let ticket = CheckpointTicket::new(ticket()?);
                // Writers that wait for the store are released first.
                self.uploads = None;
                self.client.abandon_checkpoint(ticket);
                self.drop_uploads();
            }
            _ => self.restore(body)?,
        }
        Ok(())
    }

    fn begin_checkpoint(
        &mut self,
        call: &'static str,
        begin: &BeginCheckpoint,
    ) -> Result<BegunCheckpoint> {
        if self.uploads.is_some() {
            let reason = "another checkpoint is on its way to the store; finish or abandon it";
            return Err(Error::Argument { call, reason: reason.to_owned() });
        }
        let (folder, files, uploads) = self.home.begin_checkpoint(call, &begin.folder)?;
        let ticket = match begin.since {
            None => self.client.begin_checkpoint(&folder, &files)?,
            Some(numbers) => {
                let mark = CheckpointMark::local(SnapshotMark::of_numbers(numbers));
                self.client.begin_changes(&folder, &files, &mark)?
            }
        };
        self.uploads = uploads;
        let rows = self.client.statistics().iter().map(|table| table.rows).sum();
        Ok(BegunCheckpoint { number: ticket.number(), rows })
    }

    /// Stops the uploads of a checkpoint, and removes its files that were not sent.
    pub(super) fn drop_uploads(&mut self) {
        self.uploads = None;
        if self.home.is_bucket() {
            self.home.scratch.end(CHECKPOINT);
        }
    }

    fn restore(&mut self, body: &[u8]) -> Result<()> {
        let call = "restore";
        let restore: RestoreTables = read_json(body).map_err(bad(call))?;
        if restore.below.len() != restore.tables.len() {
            let reason = format!(
                "the checkpoint has {} tables, but the files below are those of {}",
                restore.tables.len(),
                restore.below.len()
            );
            return Err(Error::Argument { call, reason });
        }
        let restored = self.try_restore(call, &restore);
        // The files that a check has fetched are needed for the restore that follows.
        if restored.is_err() || !restore.only_check {
            self.home.drop_fetched();
        }
        restored
    }

    fn try_restore(&mut self, call: &'static str, restore: &RestoreTables) -> Result<()> {
        let folder = self.fetch(call, restore)?;
        let mut tables = restore.tables.clone();
        for (table, below) in tables.iter_mut().zip(&restore.below) {
            let below = below.iter().map(|files| {
                let folder = self.home.folder_of(call, &files.folder)?;
                Ok(files.clone().into_parts(folder))
            });
            let below = below.collect::<Result<Vec<_>>>()?;
            if let Some(changes) = &mut table.changes {
                changes.below = below;
            }
        }
        if restore.only_check {
            return self.client.check_restore(&folder, &tables);
        }
        self.client.restore(&folder, &tables)?;
        self.is_lent = false;
        // The restore has abandoned an open checkpoint.
        self.drop_uploads();
        Ok(())
    }
}
