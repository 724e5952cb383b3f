//! The continuation of a run without a rewind, after a server was lost
//! (`train.on_server_loss = "continue"`).
//!
//! The other servers keep their tables, and the trainers keep their dense parameters and their
//! positions in the data. Only the lost server takes its rows from the newest checkpoint. The
//! pushes that it has applied since are lost. So are the pushes to other servers that came after
//! the end of the generation. Both are counted exactly: a trainer knows the number of pushes that
//! it has sent, and the number of those that each server has applied.
//!
//! # Invariants
//! * A push is applied once by each server, or is counted as lost for this server, or is sent again
//!   because its trainer has not counted it as sent.
//! * The trainers continue only if all of them are between the same two meetings. Otherwise some
//!   might have done the work of a meeting and others not. The run is then set back, as after the
//!   loss of a trainer.

use serde::{Deserialize, Serialize};
use zillion_ps::{Continued, Contribution};

use super::Run;
use super::note::StartNote;
use super::prepare::find_basis;
use crate::error::{Error, Result};
use crate::job::ServerLoss;
use crate::observer::Observer;

/// The note of a trainer that wants to continue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ContinueNote {
    /// The number of the trainer's pushes that are lost; `None` if it is not known.
    lost: Option<u64>,
    /// The moments of the trainer's meetings.
    moments: u64,
}

/// Returns the number of pushes that are lost, or `None` if the run cannot continue.
fn sum_of_losses(notes: &[ContinueNote]) -> Option<u64> {
    let moments = notes.first()?.moments;
    let is_between = notes.iter().all(|note| note.moments == moments) && moments.is_multiple_of(2);
    let add = |sum: u64, note: &ContinueNote| sum.checked_add(note.lost?);
    notes.iter().try_fold(0, add).filter(|_| is_between)
}

impl Run {
    /// Returns the number of pushes of this trainer, if the run may continue after a generation has
    /// ended with an error. `newest` is the step of the newest checkpoint.
    pub(super) fn clock_to_continue(
        &mut self,
        ended: &zillion_ps::Error,
        newest: Option<u64>,
    ) -> Option<u64> {
        // A loss while the run continues sets it back.
        let is_second = std::mem::take(&mut self.rewinds.is_continuing);
        let is_wanted = self.job.train.on_server_loss == ServerLoss::Continue;
        let is_loss = matches!(ended, zillion_ps::Error::Rewound { .. });
        // Trainer 0 decides whether there is a checkpoint for the lost server.
        // The pushes since an older one are counted as lost already.
        let meetings = &self.buffers.apart.meetings;
        let cut = newest.and_then(|step| meetings.pushes_at(step));
        let is_new = cut.is_some_and(|pushes| pushes >= meetings.continued_at);
        let has_rows = is_new || !self.options.trainer.is_first();
        let has_begun = self.buffers.apart.meetings.has_begun();
        let continues = is_wanted && is_loss && has_rows && has_begun && !is_second;
        self.rewinds.is_continuing = continues;
        continues.then_some(self.buffers.apart.pushes)
    }

    /// Continues in a generation that goes on with the tables of the one before it.
    ///
    /// # Errors
    /// Returns an error by which the run is set back if the trainers are not all between the same
    /// two meetings.
    pub(super) fn continue_run(
        &mut self,
        continued: Continued,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let step = self.fill_empty_servers(continued)?;
        let apart = &self.buffers.apart;
        let since = apart.meetings.pushes_at(step).map(|pushes| apart.pushes - pushes);
        let lost = match continued.empty_servers {
            0 => continued.unapplied,
            servers => since
                .and_then(|since| continued.unapplied?.checked_add(servers.checked_mul(since)?)),
        };
        let mine = ContinueNote { lost, moments: apart.meetings.moments };
        let total = sum_of_losses(&self.exchange_notes(&mine)?);
        let Some(total) = total else {
            let cause = "a server was lost while the trainers met".to_owned();
            let error = zillion_ps::Error::Rewound { generation: continued.generation, cause };
            return Err(error.into());
        };
        self.take_shared_state()?;
        self.position.progress.lost_pushes += total;
        self.counts.lost_pushes += lost.unwrap_or(0);
        self.rewinds.is_continuing = false;
        self.buffers.apart.meetings.continued_at = self.buffers.apart.pushes;
        if let Some(cause) = self.rewinds.forget_pending() {
            let servers = match continued.empty_servers {
                1 => "1 server has".to_owned(),
                servers => format!("{servers} servers have"),
            };
            let pushes = match total {
                1 => "1 push of all trainers is".to_owned(),
                pushes => format!("{pushes} pushes of all trainers are"),
            };
            observer.note(&format!(
                "the run continues; {servers} the rows of step {step}, and {pushes} lost ({cause})"
            ));
        }
        Ok(())
    }

    /// Fills the tables of the servers that were started again. Returns the step of the checkpoint
    /// from which trainer 0 has filled them.
    fn fill_empty_servers(&mut self, continued: Continued) -> Result<u64> {
        if !self.options.trainer.is_first() {
            let note = StartNote::from_bytes(&self.client.start(Vec::new())?)?;
            return note.checkpoint.ok_or_else(|| Error::Exchange {
                problem: "trainer 0 names no checkpoint".to_owned(),
            });
        }
        let Self { job, options, output, .. } = self;
        let (checkpoint, _) = find_basis(job, options, &output.dir, output.bucket.as_ref())?;
        let checkpoint = checkpoint.ok_or_else(|| Error::Exchange {
            problem: "the run has no checkpoint any more".to_owned(),
        })?;
        if continued.empty_servers > 0 {
            self.restore_tables(&checkpoint)?;
            self.begin_pace()?;
        }
        self.output.checkpointed = None;
        self.output.link = None;
        self.forget_published_changes()?;
        let step = checkpoint.manifest.step;
        let note = StartNote { checkpoint: Some(step), ..StartNote::default() };
        self.client.start(note.to_bytes())?;
        Ok(step)
    }

    /// Sends this trainer's note to the others, and returns the notes of all trainers.
    fn exchange_notes(&mut self, mine: &ContinueNote) -> Result<Vec<ContinueNote>> {
        let note = serde_json::to_vec(mine).expect("a note is plain data with text keys");
        let mine = Contribution { note, ..Contribution::default() };
        let notes = self.client.exchange(mine)?.notes;
        let read = |bytes: &Vec<u8>| {
            serde_json::from_slice(bytes).map_err(|error| Error::Exchange {
                problem: format!("the note of a trainer cannot be read ({error})"),
            })
        };
        notes.iter().map(read).collect()
    }

    /// Takes over the dense parameters that the trainers share, and the step after which all of
    /// them stop. A trainer in the middle of a round keeps its own parameters up to its next push.
    fn take_shared_state(&mut self) -> Result<()> {
        let shared = self.client.look_at_shared()?;
        match self.buffers.round.groups {
            0 => self.take_over(&shared),
            _ => {
                self.buffers.apart.stop_at = shared.stop_at;
                self.begin_step()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trainers_continue_only_between_the_same_meetings() {
        let note = |lost, moments| ContinueNote { lost, moments };
        assert_eq!(sum_of_losses(&[note(Some(3), 4), note(Some(2), 4)]), Some(5));
        assert_eq!(sum_of_losses(&[note(Some(3), 4), note(Some(2), 6)]), None);
        assert_eq!(sum_of_losses(&[note(Some(3), 5), note(Some(2), 5)]), None);
        assert_eq!(sum_of_losses(&[note(Some(3), 4), note(None, 4)]), None);
        assert_eq!(sum_of_losses(&[note(Some(3), 4), note(Some(u64::MAX), 4)]), None);
    }
}
