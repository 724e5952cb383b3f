//! The work of the frames that lend rows to a trainer and take them back.
//!
//! # Invariants
//! * All rows are lent to the only trainer of the generation, from its first question on. Frames of
//!   steps are refused from then on, because the server's rows are old.
//! * Rows come back only while they are lent.

use zillion_embedding::LentRows;
use zillion_feature::TableId;

use super::{Tables, bad};
use crate::client::PIECE_WORDS;
use crate::error::{Error, Result};
use crate::wire::{Header, LentPart, Op, Reader, WireError, Writer, read_lent, write_lent};

impl Tables {
    /// Does the work of a frame of a loan.
    pub(super) fn loan(
        &mut self,
        header: &Header,
        body: &[u8],
        answer: &mut Vec<u8>,
    ) -> Result<()> {
        let call = header.op.name();
        if self.trainers > 1 || self.paced.is_some() {
            let reason = "rows are lent to a trainer that is alone, and this run has several \
                          trainers or trains at their own speed; compute on processors";
            return Err(Error::Argument { call, reason: reason.to_owned() });
        }
        let words = self.client.lent_words();
        if header.op == Op::TakeTable {
            let mut reader = Reader::new(body);
            let mut read = || {
                let (table, first) = (TableId(reader.u16()?), reader.u32()? as usize);
                reader.clone().end().map(|()| (table, first))
            };
            let (table, first) = read().map_err(bad(call))?;
            let (rows, left) = self.client.lend_slots(table, first, PIECE_WORDS)?;
            self.is_lent = true;
            Writer(answer).u32(left as u32);
            write_lent(answer, std::iter::once(LentPart::from(&rows)));
            return Ok(());
        }
        let is_question = header.op == Op::Take;
        let none = vec![0; words.len()];
        let mut reader = Reader::new(body);
        let rows = read_lent(&mut reader, if is_question { &none } else { &words })
            .and_then(|rows| reader.end().map(|()| rows))
            .map_err(bad(call))?;
        if is_question {
            self.check_answer(call, &rows, &words)?;
            let lent = self.client.lend(&rows)?;
            self.is_lent = true;
            write_lent(answer, lent.iter().map(LentPart::from));
            return Ok(());
        }
        if !self.is_lent {
            let reason = "rows come back that are not lent; ask for them first".to_owned();
            return Err(Error::Argument { call, reason });
        }
        self.client.take_lent(&rows)
    }

    /// Checks that the rows of a question fit into a frame.
    fn check_answer(&self, call: &'static str, keys: &[LentRows], words: &[usize]) -> Result<()> {
        let row = |of: &LentRows| {
            let bytes = size_of::<u64>() + words[of.table.index()] * size_of::<u32>();
            of.keys.len() as u64 * bytes as u64
        };
        let bytes: u64 = keys.iter().map(row).sum();
        if bytes <= self.max_frame_bytes {
            return Ok(());
        }
        let problem = WireError::new(format!(
            "the rows take {bytes} bytes, but a frame may have {}; make batches smaller, or raise \
             `ps.max_frame_bytes` of the server",
            self.max_frame_bytes
        ));
        Err(bad(call)(problem))
    }

    /// Refuses frames that read or change rows while the newest ones are with the trainer.
    pub(super) fn check_not_lent(&self, header: &Header) -> Result<()> {
        let reads_steps = matches!(
            header.op,
            Op::Announce
                | Op::Pull
                | Op::Push
                | Op::Norm
                | Op::Apply
                | Op::Skip
                | Op::Sweep
                | Op::Discard
                | Op::Regulariser
                | Op::Prefill
                | Op::Adopt
        );
        if !self.is_lent || !reads_steps {
            return Ok(());
        }
        let reason = "the rows are lent to the trainer, which has the newest ones; train there, or \
                      restore a checkpoint first";
        Err(Error::Argument { call: header.op.name(), reason: reason.to_owned() })
    }
}
