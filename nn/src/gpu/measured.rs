//! The properties of each batch that the host computes: its division, its sizes, its form, and the
//! occurrences of its rows.

use zillion_device::gpu::Pinned;

use crate::error::Result;
use crate::gpu::batch::BatchPlaces;
use crate::gpu::cut::Cut;
use crate::gpu::row_plan::{Occurrences, RowPlan};
use crate::gpu::sizes::{Form, Sizes};
use crate::gpu::sources::Sources;
use crate::inputs::Inputs;
use crate::lowered::Lowered;
use crate::ops::StepSeed;

/// The measures of a batch. The buffers are reused for the next batch.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) cut: Cut,
    pub(crate) sizes: Sizes,
    pub(crate) form: Form,
    occurrences: Occurrences,
}

impl Measured {
    /// Returns the measures of a batch of `block` rows and values a column, without unique rows. It
    /// has all optional parts.
    pub(crate) fn new(lowered: &Lowered, block: usize) -> Self {
        let inputs = &lowered.graph.inputs;
        let form = Form {
            lists: vec![true; inputs.columns.len()],
            weighted: vec![true; inputs.columns.len()],
            masked: vec![true; inputs.labels.len()],
            sample_weights: true,
            strides: inputs.tables.iter().map(|table| table.stride).collect(),
            exact_rows: 0,
        };
        let sizes = Sizes {
            rows: block,
            values: vec![block; inputs.columns.len()],
            unique: vec![0; inputs.tables.len()],
            occurrences: vec![0; inputs.tables.len()],
            ..Sizes::default()
        };
        Self { cut: Cut::new(lowered), sizes, form, occurrences: Occurrences::default() }
    }

    /// Computes all properties of a batch.
    pub(crate) fn set(&mut self, lowered: &Lowered, plans: &[RowPlan], inputs: &Inputs<'_>) {
        let Self { cut, sizes, form, .. } = self;
        cut.set(lowered, inputs);
        form.set(inputs, !lowered.single_columns.is_empty());
        sizes.rows = inputs.rows;
        sizes.values.clear();
        sizes.values.extend(inputs.columns.iter().map(|column| column.inverse.len()));
        sizes.unique.clear();
        sizes.unique.extend(inputs.tables.iter().map(|table| table.unique));
        sizes.occurrences.clear();
        sizes.occurrences.resize(inputs.tables.len(), 0);
        for plan in plans {
            sizes.occurrences[plan.table] = plan.count(inputs);
        }
        (sizes.tiles, sizes.blocks) = (cut.tiles(), cut.blocks());
    }

    /// Writes the batch, without the rows of its tables, to a pinned copy of its block.
    pub(crate) fn write(
        &mut self,
        to: &mut Pinned,
        places: &BatchPlaces,
        (lowered, sources, plans): (&Lowered, &Sources, &[RowPlan]),
        inputs: &Inputs<'_>,
        seed: StepSeed,
    ) -> Result<()> {
        places.write(to, sources, &self.cut, inputs, seed)?;
        for plan in plans {
            plan.list(lowered, inputs, &mut self.occurrences)?;
            places.write_occurrences(to, plan, &self.occurrences)?;
        }
        Ok(())
    }
}
