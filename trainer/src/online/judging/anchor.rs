//! The encoded rows of the anchor, and their batch.

use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD as STANDARD;
use serde::{Deserialize, Serialize};
use zillion_feature::{Batch, LookupPlan, PlanScratch, Schema};
use zillion_stream::gate::Admitted;

use super::super::columns::RowShape;
use super::super::row_codec;
use crate::error::Result;

/// The encoded anchor rows and staged rows, at the places that the gate has given them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub(super) struct AnchorStore {
    rows: Vec<Vec<u8>>,
    staged: Vec<Vec<u8>>,
    /// The batch of the rows, until they change.
    batch: Option<Arc<AnchorBatch>>,
}

/// The form in a file: rows as base64.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    rows: Vec<String>,
    staged: Vec<String>,
}

/// The anchor rows as a batch.
#[derive(Clone, Debug)]
pub(crate) struct AnchorBatch {
    pub(crate) batch: Batch,
    pub(crate) plan: LookupPlan,
    /// The scores of the stable version, once they are known.
    pub(crate) stable: Option<Vec<f32>>,
    /// The scores of the baseline, once they are known.
    pub(crate) baseline: Option<Vec<f32>>,
}

impl From<AnchorStore> for Stored {
    fn from(store: AnchorStore) -> Self {
        let encode = |rows: Vec<Vec<u8>>| rows.iter().map(|row| STANDARD.encode(row)).collect();
        Self { rows: encode(store.rows), staged: encode(store.staged) }
    }
}

impl TryFrom<Stored> for AnchorStore {
    type Error = base64::DecodeError;

    fn try_from(stored: Stored) -> std::result::Result<Self, Self::Error> {
        let decode = |rows: Vec<String>| rows.iter().map(|row| STANDARD.decode(row)).collect();
        let rows: std::result::Result<_, _> = decode(stored.rows);
        let staged: std::result::Result<_, _> = decode(stored.staged);
        Ok(Self { rows: rows?, staged: staged?, batch: None })
    }
}

impl AnchorStore {
    /// Stores a row of a batch among the staged rows.
    pub(super) fn stage(&mut self, batch: &Batch, shape: &RowShape, row: usize, place: usize) {
        if self.staged.len() <= place {
            self.staged.resize(place + 1, Vec::new());
        }
        let bytes = &mut self.staged[place];
        bytes.clear();
        row_codec::encode(batch, shape, row, bytes);
    }

    /// Moves staged rows to their places in the anchor.
    pub(super) fn admit(&mut self, admitted: &[Admitted]) {
        for &Admitted { from, to } in admitted {
            if self.rows.len() <= to {
                self.rows.resize(to + 1, Vec::new());
            }
            self.rows[to] = std::mem::take(&mut self.staged[from]);
        }
        if !admitted.is_empty() {
            self.batch = None;
        }
    }

    /// Forgets the scores of the other versions, because one of them has changed.
    pub(super) fn forget_scores(&mut self) {
        self.batch = None;
    }

    /// Returns the scores of the stable version and of the baseline, as far as they are known.
    pub(super) fn known_scores(&self) -> Option<(&[f32], Option<&[f32]>)> {
        let batch = self.batch.as_ref()?;
        Some((batch.stable.as_deref()?, batch.baseline.as_deref()))
    }

    /// Returns the rows as a batch; `None` without rows.
    pub(super) fn batch(&mut self, schema: &Schema) -> Result<Option<&mut AnchorBatch>> {
        if self.rows.is_empty() {
            return Ok(None);
        }
        if self.batch.is_none() {
            let shape = RowShape::of(schema);
            let mut batch = shape.empty();
            for row in &self.rows {
                row_codec::decode(&mut batch, &shape, row)?;
            }
            let plan = LookupPlan::build(&batch, schema, &mut PlanScratch::default());
            self.batch = Some(Arc::new(AnchorBatch { batch, plan, stable: None, baseline: None }));
        }
        Ok(self.batch.as_mut().map(Arc::make_mut))
    }
}
