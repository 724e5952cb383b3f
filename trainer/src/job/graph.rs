//! The graph of a job's model.

use zillion_nn::zoo;
use zillion_nn::{Graph, Mode};

use super::Job;
use crate::error::Result;
use crate::graph_inputs::model_inputs;

impl Job {
    /// Builds the job's model for training or for inference.
    ///
    /// # Errors
    /// Returns an error if the settings of the model do not fit the features, the tables or the
    /// labels of the job.
    pub fn graph(&self, mode: Mode) -> Result<Graph> {
        let mut inputs = model_inputs(&self.schema, &self.tables, |label| self.loss_of(label));
        if let Some((label, keep)) = self.data.negatives(&self.schema)? {
            inputs.labels[label].logit_shift = keep.ln() as f32;
        }
        Ok(zoo::build(&self.model, &inputs, mode)?)
    }
}
