//! The implementation of [`Exchanging`] for tables on servers. Each server adds up one part of the
//! dense gradients. The first server also passes on the notes.

use super::{RemoteClient, bad_answer};
use crate::client::{Contribution, Exchanged, Exchanging, TrainerPlace};
use crate::code::ErrorCode;
use crate::error::{Error, Result};
use crate::wire::{Leave, Op, Reader, WireError, WireResult, Writer};

impl Exchanging for RemoteClient {
    fn place(&self) -> TrainerPlace {
        self.place
    }

    fn start(&mut self, note: Vec<u8>) -> Result<Vec<u8>> {
        let bodies = self.ask_all(Op::Start, |body| body.extend(&note))?;
        // All tables are filled now.
        self.kept = None;
        Ok(bodies.into_iter().next().unwrap_or_default())
    }

    fn exchange(&mut self, mine: Contribution) -> Result<Exchanged> {
        if self.place.count == 1 {
            let Contribution { rows, dense, note } = mine;
            return Ok(Exchanged { rows: rows as u64, dense, notes: vec![note] });
        }
        let servers = self.links.len();
        let bound = |server: usize| mine.dense.len() * server / servers;
        let step = match &mut self.clock {
            // Trainers that do not wait for each other exchange values outside of steps.
            Some(clock) => clock.next_exchange(),
            None => self.order.step().0,
        };
        let frames = self.send_at(Op::Exchange, step, |server, body| {
            let part = &mine.dense[bound(server)..bound(server + 1)];
            let mut out = Writer(body);
            out.u64(mine.rows as u64);
            out.u32(part.len() as u32);
            out.all(part);
            out.blob(if server == 0 { &mine.note } else { &[] });
        })?;
        let bodies = self.answers(&frames)?;
        read_parts(&bodies).map_err(bad_answer("exchange"))
    }

    fn leave(&mut self, error: &Error) {
        let cause = match error {
            Error::Rewound { cause, .. } | Error::Restored { cause, .. } => cause.clone(),
            other => other.to_string(),
        };
        self.close_all(Leave { code: error.code().number(), cause });
    }

    fn abort(&mut self, error: &str) {
        self.close_all(Leave { code: ErrorCode::Aborted.number(), cause: error.to_owned() });
    }
}

impl RemoteClient {
    /// Ends the sessions on all servers, and tells them why.
    fn close_all(&mut self, leave: Leave) {
        self.links.iter_mut().for_each(|link| link.close(Some(&leave)));
    }
}

/// Puts the parts of all servers together.
fn read_parts(bodies: &[Vec<u8>]) -> WireResult<Exchanged> {
    let mut all = Exchanged::default();
    for (server, body) in bodies.iter().enumerate() {
        let mut reader = Reader::new(body);
        let rows = reader.u64()?;
        if server > 0 && rows != all.rows {
            return Err(WireError::new("the servers give different numbers of rows"));
        }
        all.rows = rows;
        let floats = reader.u32()? as usize;
        reader.f32s(floats, &mut all.dense)?;
        for _ in 0..reader.u32()? {
            let note = reader.blob()?.to_vec();
            if server == 0 {
                all.notes.push(note);
            }
        }
        reader.end()?;
    }
    Ok(all)
}
