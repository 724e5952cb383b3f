//! The tasks of a model: the scores of a row, and the labels to compare them with.

/// A task of a model: one score, and the label to compare it with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// The name in outputs and reports, which is usually the name of the label.
    pub name: String,
    /// The label that the score is compared with.
    pub label: TaskLabel,
}

/// The label to compare a score with, given by the indices of labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskLabel {
    /// A label, in the rows that have it.
    Own {
        /// The index of the label.
        label: usize,
    },
    /// The product of two labels, in the rows where it is known: the first label is 0, or the row
    /// has both labels.
    Both {
        /// The label that comes first.
        first: usize,
        /// The label that has a meaning only after the first.
        second: usize,
    },
    /// The second label, in the rows whose first label is 1.
    Given {
        /// The label that comes first.
        first: usize,
        /// The label that has a meaning only after the first.
        second: usize,
    },
}

impl TaskLabel {
    /// Returns the label that gives the task its name and weight.
    #[must_use]
    pub fn of(self) -> usize {
        match self {
            Self::Own { label } => label,
            Self::Both { second, .. } | Self::Given { second, .. } => second,
        }
    }
}

impl Task {
    pub(super) fn own(name: &str, label: usize) -> Self {
        Self { name: name.to_owned(), label: TaskLabel::Own { label } }
    }

    /// Returns whether the task has its own loss. A task without a loss is learned through other
    /// tasks.
    #[must_use]
    pub fn is_learned(&self) -> bool {
        !matches!(self.label, TaskLabel::Given { .. })
    }

    /// Returns the name of the output `of` for this task. `index` is the position of the task in
    /// the model.
    #[must_use]
    pub fn output(&self, of: &str, index: usize) -> String {
        if index == 0 { of.to_owned() } else { format!("{of}/{}", self.name) }
    }
}
