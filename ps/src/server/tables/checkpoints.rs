//! The work of the frames of checkpoints. The server writes and reads the files itself.

use zillion_embedding::SnapshotMark;

use super::{Tables, bad, message, put};
use crate::client::{CheckpointTicket, Checkpointing};
use crate::error::{Error, Result};
use crate::mark::{CheckpointMark, ServerMark};
use crate::wire::{BeginCheckpoint, Header, Op, RestoreTables, Ticket, Writer, read_json};

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
                let folder = self.folder.path(call, &begin.folder)?;
                let files = self.files.clone();
                let ticket = match begin.since {
                    None => self.client.begin_checkpoint(&folder, &files)?,
                    Some(numbers) => {
                        let mark = CheckpointMark::local(SnapshotMark::of_numbers(numbers));
                        self.client.begin_changes(&folder, &files, &mark)?
                    }
                };
                put(answer, &Ticket { number: ticket.number() });
            }
            Op::FollowCheckpoints => self.client.follow_checkpoints()?,
            Op::CheckpointMark => {
                let mark = self.client.checkpoint_mark().and_then(|mark| mark.as_local());
                let mark = mark.map(|tables| ServerMark { boot: self.boot, tables });
                put(answer, &mark.map(|mark| (mark.boot, mark.tables.numbers())));
            }
            Op::PollCheckpoint => {
                let is_ready = self.client.poll_checkpoint(&CheckpointTicket::new(ticket()?))?;
                Writer(answer).u8(u8::from(is_ready));
            }
            Op::FinishCheckpoint => {
                let parts = self.client.finish_checkpoint(CheckpointTicket::new(ticket()?))?;
                put(answer, &parts);
            }
            Op::AbandonCheckpoint => {
                self.client.abandon_checkpoint(CheckpointTicket::new(ticket()?));
            }
            _ => self.restore(body)?,
        }
        Ok(())
    }

    fn restore(&mut self, body: &[u8]) -> Result<()> {
        let call = "restore";
        let RestoreTables { folder, mut tables, below, only_check } =
            read_json(body).map_err(bad(call))?;
        let folder = self.folder.path(call, &folder)?;
        if below.len() != tables.len() {
            let reason = format!(
                "the checkpoint has {} tables, but the files below are those of {}",
                tables.len(),
                below.len()
            );
            return Err(Error::Argument { call, reason });
        }
        for (table, below) in tables.iter_mut().zip(below) {
            let below = below.into_iter().map(|files| {
                let folder = self.folder.path(call, &files.folder)?;
                Ok(files.into_parts(folder))
            });
            let below = below.collect::<Result<Vec<_>>>()?;
            if let Some(changes) = &mut table.changes {
                changes.below = below;
            }
        }
        match only_check {
            true => self.client.check_restore(&folder, &tables),
            false => self.client.restore(&folder, &tables),
        }
    }
}
