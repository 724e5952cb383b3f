//! What a model says about a row: which scores, and what each of them is held against.

use super::spec::ModelSpec;
use crate::error::{Error, Result};

/// One score of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// What it is called in outputs and reports: its label's name where it has one of its own.
    pub name: String,
    /// What it is held against.
    pub label: TaskLabel,
}

/// What a score is held against, in indices of labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskLabel {
    /// A label, over the rows that have it.
    Own {
        /// The label.
        label: usize,
    },
    /// Whether both labels are 1, over all rows where that is known: the first is 0, or both are there.
    Both {
        /// The label that comes first.
        first: usize,
        /// The one that only means something after it.
        second: usize,
    },
    /// The second label over the rows whose first one is 1.
    Given {
        /// The label that comes first.
        first: usize,
        /// The one that only means something after it.
        second: usize,
    },
}

impl TaskLabel {
    /// The label whose name and weight are the task's.
    #[must_use]
    pub fn of(self) -> usize {
        match self {
            Self::Own { label } => label,
            Self::Both { second, .. } | Self::Given { second, .. } => second,
        }
    }
}

impl Task {
    fn own(name: &str, label: usize) -> Self {
        Self { name: name.to_owned(), label: TaskLabel::Own { label } }
    }

    /// Whether the task has a loss of its own; else it is learned through others.
    #[must_use]
    pub fn is_learned(&self) -> bool {
        !matches!(self.label, TaskLabel::Given { .. })
    }

    /// The name of the task's output, as the model's task number `index`.
    #[must_use]
    pub fn output(&self, of: &str, index: usize) -> String {
        if index == 0 { of.to_owned() } else { format!("{of}/{}", self.name) }
    }
}

/// The tasks of a model over labels of these names, which [`check_labels`] has found fit; the first one
/// is what single figures are about.
#[must_use]
pub fn tasks(spec: &ModelSpec, labels: &[&str]) -> Vec<Task> {
    match (spec, labels) {
        (ModelSpec::Esmm(_), [click, conversion, ..]) => {
            let (first, second) = (0, 1);
            vec![
                Task::own(click, 0),
                Task { name: (*conversion).to_owned(), label: TaskLabel::Both { first, second } },
                Task {
                    name: format!("{conversion}_given_{click}"),
                    label: TaskLabel::Given { first, second },
                },
            ]
        }
        _ => labels.iter().enumerate().map(|(index, name)| Task::own(name, index)).collect(),
    }
}

/// The same, for a model built without labels, which scores nevertheless.
pub(super) fn tasks_or_nameless(spec: &ModelSpec, labels: &[&str]) -> Vec<Task> {
    if labels.is_empty() { vec![Task::own("", 0)] } else { tasks(spec, labels) }
}

/// Whether the model can learn this many labels.
///
/// # Errors
/// Says which models learn several, or how many this one needs.
pub fn check_labels(spec: &ModelSpec, labels: usize) -> Result<()> {
    let kind = spec.kind();
    let refuse = |reason| Err(Error::Setting { name: "labels", reason });
    match spec {
        ModelSpec::Esmm(_) if labels != 2 => refuse(format!(
            "esmm learns two labels in this order, the click and the conversion after it; there are {labels}"
        )),
        ModelSpec::SharedBottom(_) | ModelSpec::Mmoe(_) | ModelSpec::Graph(_) if labels == 0 => {
            refuse(format!("{kind} needs at least one label"))
        }
        // A graph names a node a label, or is refused by the label that it forgot.
        ModelSpec::SharedBottom(_)
        | ModelSpec::Mmoe(_)
        | ModelSpec::Esmm(_)
        | ModelSpec::Graph(_) => Ok(()),
        _ if labels > 1 => refuse(format!(
            "{kind} learns one label, and there are {labels}; leave one, or choose a model that learns \
             several: shared_bottom, mmoe, esmm, graph"
        )),
        _ => Ok(()),
    }
}
