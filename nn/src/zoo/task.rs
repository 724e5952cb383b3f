//! The tasks of a model. A task connects a score with a label.

/// A task of a model: a score, and the label with which the score is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// The name of the task in outputs and reports, which is usually the name of the label.
    pub name: String,
    /// The label with which the score is compared.
    pub label: TaskLabel,
}

/// The label with which a score is compared. Labels are given by their indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskLabel {
    /// A single label, in the rows that have this label.
    Own {
        /// The index of the label.
        label: usize,
    },
    /// The product of two labels, in the rows where it is known. These are the rows whose first
    /// label is 0, and the rows that have both labels.
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
    /// One class of a label against all others, in the rows that have the label.
    Class {
        /// The index of the label.
        label: usize,
        /// The index of the class.
        class: usize,
    },
}

impl TaskLabel {
    /// Returns the index of the label from which the task has its name and its weight.
    #[must_use]
    pub fn of(self) -> usize {
        match self {
            Self::Own { label } | Self::Class { label, .. } => label,
            Self::Both { second, .. } | Self::Given { second, .. } => second,
        }
    }
}

impl Task {
    pub(super) fn own(name: &str, label: usize) -> Self {
        Self { name: name.to_owned(), label: TaskLabel::Own { label } }
    }

    /// Returns the tasks of the classes of a label, whose index is `label`. `names` are the names
    /// of the tasks.
    #[must_use]
    pub fn of_classes(label: usize, names: &[String]) -> Vec<Self> {
        let task = |(class, name): (usize, &String)| Self {
            name: name.clone(),
            label: TaskLabel::Class { label, class },
        };
        names.iter().enumerate().map(task).collect()
    }

    /// Returns whether the task has its own loss. A task without a loss is learned through the
    /// losses of other tasks.
    #[must_use]
    pub fn is_learned(&self) -> bool {
        !matches!(self.label, TaskLabel::Given { .. })
    }

    /// Returns the name of the output `of` for this task. The task has the position `index` in the
    /// model.
    #[must_use]
    pub fn output(&self, of: &str, index: usize) -> String {
        if index == 0 { of.to_owned() } else { format!("{of}/{}", self.name) }
    }
}
