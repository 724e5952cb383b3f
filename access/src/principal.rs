//! Principals: callers with a name, roles, models and a quota.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::quota::Quota;
use crate::refusal::Refusal;

/// A group of calls that a principal may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The calls that score rows.
    Score,
    /// The calls that describe models and versions.
    Read,
    /// The call that returns the metrics of the server.
    Metrics,
    /// The calls that load and unload models, and that promote and roll back versions.
    Operate,
    /// The calls that publish versions.
    Publish,
}

/// The models for which the roles of a principal are valid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Models {
    /// All models, including models that are created later.
    #[default]
    All,
    /// Only the models with these names.
    Only(BTreeSet<String>),
}

impl Models {
    /// Returns whether the set contains the model.
    pub fn contains(&self, model: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(models) => models.contains(model),
        }
    }
}

/// A caller that has proved its identity.
#[derive(Clone, Debug, PartialEq)]
pub struct Principal {
    /// The name of the principal, which the audit log contains.
    pub name: String,
    /// The groups of calls that the principal may make.
    pub roles: BTreeSet<Role>,
    /// The models for which the roles are valid.
    pub models: Models,
    /// The maximum amount of work that the principal may request.
    pub quota: Quota,
}

impl Principal {
    /// Returns the principal of a listener without authentication, which may make every call.
    pub fn anonymous() -> Self {
        let roles = [Role::Score, Role::Read, Role::Metrics, Role::Operate, Role::Publish];
        Self {
            name: "anonymous".to_owned(),
            roles: roles.into(),
            models: Models::All,
            quota: Quota::default(),
        }
    }

    /// Checks that the principal may make a call of the group `role`. If the call names a model,
    /// `model` is its name.
    ///
    /// # Errors
    /// Returns [`Refusal::NoRole`] or [`Refusal::NoModel`] if the principal may not make the call.
    pub fn check(&self, role: Role, model: Option<&str>) -> Result<(), Refusal> {
        if !self.roles.contains(&role) {
            return Err(Refusal::NoRole(role));
        }
        match model {
            Some(model) if !self.models.contains(model) => Err(Refusal::NoModel),
            _ => Ok(()),
        }
    }
}
