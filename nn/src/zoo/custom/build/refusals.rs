//! The errors of nodes of a job, with the keys that they belong to.

use zillion_config::ConfigError;

use super::Layer;
use crate::error::Error;
use crate::zoo::inputs::SparseInput;

impl Layer<'_> {
    pub(super) fn refuse_missing_segment(
        &self,
        key: &str,
        column: &SparseInput,
        what: &str,
    ) -> Error {
        self.refuse_key(
            key,
            format!("the rows of `{}` have no {what}; name other features", column.name),
        )
    }

    pub(super) fn key(&self, attribute: &str) -> String {
        format!("model.nodes.{}.{attribute}", self.name)
    }

    pub(super) fn refuse(&self, why: String) -> Error {
        ConfigError::at(&format!("model.nodes.{}", self.name), why).into()
    }

    pub(super) fn refuse_key(&self, key: &str, why: String) -> Error {
        ConfigError::at(&self.key(key), why).into()
    }

    /// Returns the same error with the name of the node in the job.
    pub(super) fn name_node(&self, error: Error) -> Error {
        match error {
            Error::Shape { node, reason } if node == self.name => self.refuse(reason),
            Error::Shape { node, reason } => {
                self.refuse(format!("{reason} (in its part `{node}`)"))
            }
            other => other,
        }
    }
}
