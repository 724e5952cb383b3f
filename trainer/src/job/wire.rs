//! The number type of the gradients of rows on their way to the tables.

use serde::{Deserialize, Serialize};

use super::{Mode, TrainConfig};

/// The number type to which trainers round the gradients of rows before they push them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wire {
    /// Gradients are pushed as they were computed.
    #[default]
    F32,
    /// Gradients are rounded to bf16, stochastically, and take two bytes each on the wire.
    Bf16,
}

impl Wire {
    /// Returns whether gradients are not rounded, which is the default and is not written.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde calls it with")]
    pub(crate) fn is_f32(&self) -> bool {
        *self == Self::F32
    }
}

impl TrainConfig {
    /// Returns whether the gradients of each batch are rounded to bf16. In the mode `geo`, the sums
    /// of several batches are rounded instead.
    pub(crate) fn rounds_batches(&self) -> bool {
        self.wire == Wire::Bf16 && self.mode != Mode::Geo
    }
}

#[cfg(test)]
mod tests {
    use crate::job::{Job, difference};

    fn job(train: &str) -> crate::error::Result<Job> {
        let text =
            format!("[features.user]\nkind = 'id'\n[labels.y]\n[model]\nkind = 'lr'\n{train}");
        Job::from_value(toml::from_str::<toml::Table>(&text).unwrap().into())
    }

    #[test]
    fn the_wire_is_a_part_of_the_result() {
        let (plain, f32, bf16) = (
            job("").unwrap(),
            job("[train]\nwire = 'f32'").unwrap(),
            job("[train]\nwire = 'bf16'").unwrap(),
        );
        assert_eq!(plain.digest().unwrap(), f32.digest().unwrap());
        assert_ne!(plain.digest().unwrap(), bf16.digest().unwrap());
        let read = |job: &Job| toml::from_str::<toml::Table>(&job.in_force().unwrap()).unwrap();
        assert_eq!(Job::from_value(read(&bf16).into()).unwrap().train, bf16.train);
        let changed = difference(&read(&plain).into(), &read(&bf16).into()).unwrap();
        assert_eq!(changed, ("train.wire".into(), "absent".into(), "\"bf16\"".into()));
        let error = job("[train]\nwire = 'f16'").unwrap_err().to_string();
        assert!(error.contains("train.wire"), "{error}");
    }
}
