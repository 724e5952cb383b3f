//! The trait that every model of the zoo implements.

use super::*;

/// The segments of a row that a model reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Whether the model reads the vector of each feature.
    pub vector: bool,
    /// Whether the model reads the linear weight of each feature.
    pub linear: bool,
}

/// A model of the zoo, with its hyper-parameters. To add a model, add a variant of
/// [`ModelSpec`](super::ModelSpec) and a file. The file contains the keys of the model, their
/// defaults, and an implementation of this trait.
pub(super) trait ZooModel {
    /// Returns the keys that a job may leave out and that have no default value.
    fn optional_keys(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the segments of a row that the model reads.
    fn needs(&self) -> Needs {
        Needs { vector: true, linear: false }
    }

    /// Checks that the model can learn this number of labels. `kind` is the name of the model.
    fn check_labels(&self, kind: &str, labels: usize) -> Result<()> {
        match labels {
            0 | 1 => Ok(()),
            _ => Err(wrong_labels(format!(
                "{kind} learns one label, but the job has {labels}; keep one label, or choose a \
                 model that learns several: shared_bottom, mmoe, esmm, graph"
            ))),
        }
    }

    /// Returns whether the model can learn a label of several classes, with a score for each class.
    fn learns_classes(&self) -> bool {
        false
    }

    /// Returns the tasks of the model for labels with these names.
    fn tasks(&self, labels: &[&str]) -> Vec<Task> {
        labels.iter().enumerate().map(|(index, name)| Task::own(name, index)).collect()
    }

    /// Returns whether the model itself shifts its logits if training kept only a share of the rows
    /// with label 0.
    fn calibrates_itself(&self) -> bool {
        false
    }

    /// Builds the model and returns the log odds of each task. More nodes may follow, which
    /// [`ZooModel::build_loss`] and [`ZooModel::name_outputs`] then receive.
    fn build(&self, b: &mut GraphBuilder, inputs: &ModelInputs) -> Result<Vec<NodeId>>;

    /// Builds the loss of a model that has no separate loss for each task. Returns `None` for any
    /// other model.
    fn build_loss(
        &self,
        _b: &mut GraphBuilder,
        _name: &str,
        _inputs: &ModelInputs,
        _built: &[NodeId],
    ) -> Result<Option<NodeId>> {
        Ok(None)
    }

    /// Gives names to the additional outputs of a graph for inference.
    fn name_outputs(&self, _b: &mut GraphBuilder, _built: &[NodeId]) -> Result<()> {
        Ok(())
    }
}

/// Checks that there is at least one label, for a model that can learn any number of labels.
pub(super) fn check_some_label(kind: &str, labels: usize) -> Result<()> {
    match labels {
        0 => Err(wrong_labels(format!("{kind} needs at least one label; add one to the job"))),
        _ => Ok(()),
    }
}

/// Returns the error for a number of labels that the model cannot learn.
pub(super) fn wrong_labels(reason: String) -> Error {
    Error::Setting { name: "labels", reason }
}
