//! The tasks of a model: its scores of a row, and the labels that the scores are compared with.

/// A task of a model: one score and the label that it is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// The name in outputs and reports, which is usually the name of the label.
    pub name: String,
    /// The label that the score is compared with.
    pub label: TaskLabel,
}

/// The label that a score is compared with, by indices of labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskLabel {
    /// A label, over the rows that have it.
    Own {
        /// The index of the label.
        label: usize,
    },
    /// The product of two labels, over all rows where the product is known: the first label is 0,
    /// or neither label is missing.
    Both {
        /// The label that comes first.
        first: usize,
        /// The label that has a meaning only after the first.
        second: usize,
    },
    /// The second label over the rows whose first one is 1.
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

    /// Returns whether the task has a loss of its own; otherwise it is learned through other tasks.
    #[must_use]
    pub fn is_learned(&self) -> bool {
        !matches!(self.label, TaskLabel::Given { .. })
    }

    /// Returns the name of the task's output `of`, for the model's task number `index`.
    #[must_use]
    pub fn output(&self, of: &str, index: usize) -> String {
        if index == 0 { of.to_owned() } else { format!("{of}/{}", self.name) }
    }
}
