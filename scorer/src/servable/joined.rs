//! The scoring of several requests in one pass.
//!
//! A pass over one row reads all weights of the dense layers for it, and costs hardly less than a
//! pass over four rows. So a server joins the rows of small requests that come together.
//!
//! # Invariants
//! A request gets the same bits as if it had been scored alone. So requests are joined only if the
//! rows of the model are independent ([`Servable::has_independent_rows`]) and no column is shared.

use std::time::Instant;

use zillion_feature::Batch;

use super::{RowScores, Servable};
use crate::error::{Error, Result};
use crate::late::LateCheck;
use crate::scratch::request_size;

impl Servable {
    /// Returns whether the scores of a row have the same bits whatever other rows its batch has, so
    /// that the version can score several requests in one pass.
    pub fn has_independent_rows(&self) -> bool {
        self.engine.has_independent_rows
    }

    /// Scores the rows of several requests in one pass, and returns the scores of each request.
    /// The encoder of the version has made `batches`, which have no shared columns. A key that has
    /// no row counts as missing once, in the first request. The pass stops when `is_late` returns
    /// `true`.
    ///
    /// # Errors
    /// Returns [`Error::Late`] if the work was stopped, and another error if the model cannot be
    /// computed.
    ///
    /// # Panics
    /// Panics if a batch has a shared column.
    pub fn score_joined(
        &self,
        batches: &[&Batch],
        is_late: Option<LateCheck<'_>>,
    ) -> Result<Vec<RowScores>> {
        if let [single] = batches {
            return Ok(vec![self.score_encoded(single, is_late)?]);
        }
        let mut scratch = self.engine.take_scratch()?;
        let mut joined = std::mem::take(&mut scratch.joined);
        joined.join(batches.iter().copied());
        let scores = self.score_with(&mut scratch, &joined, is_late);
        let size = request_size(&joined);
        scratch.joined = joined;
        self.engine.scratches.put(scratch, size, Instant::now());
        self.split(&scores?, batches)
    }

    /// Deals the scores of joined batches out to their requests.
    fn split(&self, scores: &RowScores, batches: &[&Batch]) -> Result<Vec<RowScores>> {
        let mut first = 0;
        let of_request = |(at, batch): (usize, &&Batch)| {
            let rows = first..first + batch.rows;
            first = rows.end;
            let own = |logits: &Vec<f32>| logits.get(rows.clone()).map(<[f32]>::to_vec);
            Some(RowScores {
                logits: scores.logits.iter().map(own).collect::<Option<_>>()?,
                missing: if at == 0 { scores.missing } else { 0 },
                missing_side_rows: batch.side_missing.iter().sum(),
            })
        };
        let split: Option<_> = batches.iter().enumerate().map(of_request).collect();
        split.ok_or_else(|| {
            Error::Refused(format!(
                "version {} has fewer scores than rows, which is a bug; report it",
                self.version()
            ))
        })
    }
}
