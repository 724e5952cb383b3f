//! The groups of the rows of a batch, for losses that compare the rows of a group.

use zillion_config::ConfigError;
use zillion_feature::Batch;
use zillion_nn::zoo::ModelSpec;

use crate::error::Result;
use crate::job::Job;

impl Job {
    /// Returns whether the loss of a label compares the rows of groups.
    #[must_use]
    pub fn compares_groups(&self) -> bool {
        self.schema.labels.iter().any(|label| self.loss_of(&label.name).compares_groups())
    }

    /// Checks that the rows of groups can be compared, as the loss with the key `path` does.
    pub(crate) fn check_groups(&self, path: &str) -> Result<()> {
        let refuse = |message: &str| Err(ConfigError::at(path, message).into());
        if self.schema.group.is_none() {
            return refuse("compares the rows of groups; name their column with `columns.group`");
        }
        if matches!(self.model, ModelSpec::Esmm(_)) {
            return refuse(
                "compares the rows of groups, but esmm multiplies probabilities; choose another model",
            );
        }
        if !self.streams.is_empty() {
            return refuse(
                "compares the rows of whole groups, which streams do not keep together; train on files",
            );
        }
        if self.train.drop_last {
            return refuse(
                "has batches of whole groups, which differ in their rows; remove `train.drop_last`",
            );
        }
        Ok(())
    }
}

/// Sets `numbers` to the number of each row's group, counted from 0. The rows of a group are
/// neighbours.
pub(crate) fn number_groups(batch: &Batch, numbers: &mut Vec<f32>) {
    numbers.clear();
    let keys = batch.group.as_deref().unwrap_or_default();
    let mut number = 0.0;
    for (row, key) in keys.iter().enumerate() {
        if row > 0 && keys[row - 1] != *key {
            number += 1.0;
        }
        numbers.push(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_with_one_key_have_one_number() {
        let group = Some(vec![9, 9, 4, 7, 7, 7, 9]);
        let batch = Batch { rows: 7, group, ..Batch::default() };
        let mut numbers = vec![5.0];
        number_groups(&batch, &mut numbers);
        assert_eq!(numbers, [0.0, 0.0, 1.0, 2.0, 2.0, 2.0, 3.0]);
    }
}
