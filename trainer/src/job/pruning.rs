//! The `[train.prune]` section: the share of the weights of rows that training sets to zero, and
//! the steps in which it does so.
//!
//! The share grows by the cubic schedule of Zhu and Gupta (2017), "To prune, or not to prune": fast
//! at first, when many weights have no effect, and slowly at the end.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};
use zillion_config::ConfigError;
use zillion_feature::TableId;

use super::Job;
use crate::error::Result;

/// The settings of pruning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PruneConfig {
    /// The share of the weights of each segment that is zero in the end.
    pub share: f64,
    /// The step after which the share grows.
    #[serde(default)]
    pub from: u64,
    /// The step from which on the whole share is pruned.
    pub until: u64,
    /// The number of steps between two prunings. The end of an epoch prunes too.
    #[serde(default = "default_every")]
    pub every: NonZeroU64,
    /// The names of the tables that are pruned; empty: all tables that are not frozen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<String>,
}

impl PruneConfig {
    /// Returns the share of weights that is zero after a pruning at this step.
    pub(crate) fn share_at(&self, step: u64) -> f64 {
        if step >= self.until {
            return self.share;
        }
        let done = step.saturating_sub(self.from) as f64 / (self.until - self.from) as f64;
        self.share * (1.0 - (1.0 - done).powi(3))
    }

    /// Returns whether the end of this step prunes.
    pub(crate) fn is_due(&self, step: u64) -> bool {
        step > self.from && (step - self.from).is_multiple_of(self.every.get())
    }
}

impl Job {
    /// Checks the settings of pruning.
    pub(super) fn check_prune(&self) -> Result<()> {
        let Some(prune) = &self.train.prune else { return Ok(()) };
        let refuse = |key: &str, message: &str| Err(ConfigError::at(key, message).into());
        if !(prune.share > 0.0 && prune.share < 1.0) {
            let message = format!("must be above 0 and below 1, found {}", prune.share);
            return refuse("train.prune.share", &message);
        }
        if prune.until < prune.from {
            let message = format!(
                "is step {}, before step {} of `train.prune.from`; give a later step",
                prune.until, prune.from
            );
            return refuse("train.prune.until", &message);
        }
        if self.ps.is_some() || !self.train.mode.is_sync() {
            let message = "cannot be used with tables on servers, because the threshold is one of \
                           all rows of a table and no server knows the rows of the others; remove \
                           it, or keep the tables in the trainer";
            return refuse("train.prune", message);
        }
        let tables = self.pruned_tables()?;
        if tables.is_empty() {
            return refuse(
                "train.prune",
                "prunes nothing, because every table is frozen; remove it",
            );
        }
        for spec in tables.iter().filter_map(|table| self.tables.get(table.index())) {
            let key = |key: &str| format!("tables.{}.{key}", spec.name);
            if spec.grow.is_some_and(|grow| !grow.is_off()) {
                let message = "cannot be used with `train.prune`, because the missing weights of a \
                               narrow row are not stored; remove it, or name the other tables in \
                               `train.prune.tables`";
                return refuse(&key("grow"), message);
            }
            if self.run.spill.contains_key(&spec.name) {
                let message = format!(
                    "names table `{}`, which `train.prune` changes, but rows on disk cannot be \
                     pruned; remove it, or name the other tables in `train.prune.tables`",
                    spec.name
                );
                return refuse("run.spill", &message);
            }
            let bounds = spec.segments.iter().filter_map(|segment| segment.bounds);
            if bounds.into_iter().any(|bounds| bounds.low > 0.0 || bounds.high < 0.0) {
                let message = "exclude zero, to which `train.prune` sets weights; change them, or \
                               name the other tables in `train.prune.tables`";
                return refuse(&key("bounds"), message);
            }
        }
        Ok(())
    }

    /// Returns the tables that are pruned, in the order of the schema.
    pub(crate) fn pruned_tables(&self) -> Result<Vec<TableId>> {
        let Some(prune) = &self.train.prune else { return Ok(Vec::new()) };
        let frozen = self.frozen_tables()?;
        for name in &prune.tables {
            let Some(at) = self.tables.iter().position(|table| table.name == *name) else {
                let names: Vec<&str> = self.tables.iter().map(|t| t.name.as_str()).collect();
                return Err(ConfigError::unknown_value("train.prune.tables", name, &names).into());
            };
            if frozen.iter().any(|table| table.index() == at) {
                let message =
                    format!("names table `{name}`, which is frozen; remove one of the two");
                return Err(ConfigError::at("train.prune.tables", &message).into());
            }
        }
        let is_named = |name: &String| prune.tables.is_empty() || prune.tables.contains(name);
        let tables = (0..).map(TableId).zip(&self.tables);
        let tables = tables.filter(|(id, spec)| !frozen.contains(id) && is_named(&spec.name));
        Ok(tables.map(|(id, _)| id).collect())
    }
}

fn default_every() -> NonZeroU64 {
    NonZeroU64::new(100).expect("a literal above zero")
}

#[cfg(test)]
mod tests {
    use super::super::smallest::read;
    use super::*;

    #[test]
    fn the_share_grows_from_a_step_to_a_step() {
        let job = read("[train.prune]\nshare = 0.8\nfrom = 100\nuntil = 300\nevery = 50").unwrap();
        let prune = job.train.prune.clone().unwrap();
        let near = |step: u64, share: f64| (prune.share_at(step) - share).abs() < 1e-12;
        assert!(near(0, 0.0) && near(100, 0.0) && near(200, 0.8 * 0.875) && near(300, 0.8));
        assert!(near(301, 0.8) && (100..300).all(|s| prune.share_at(s) < prune.share_at(s + 1)));
        let due: Vec<u64> = (0..=260).filter(|&step| prune.is_due(step)).collect();
        assert_eq!(due, [150, 200, 250]);
        assert_eq!(job.pruned_tables().unwrap(), [TableId(0)]);
        let printed: toml::Table = toml::from_str(&job.in_force().unwrap()).unwrap();
        assert_eq!(Job::from_value(printed.into()).unwrap().train, job.train);
        assert_ne!(job.digest().unwrap(), read("").unwrap().digest().unwrap());
        let at_once = read("[train.prune]\nshare = 0.5\nuntil = 0").unwrap().train.prune.unwrap();
        assert_eq!((at_once.share_at(0), at_once.every.get()), (0.5, 100));
    }

    #[test]
    fn settings_that_cannot_be_are_refused_by_name() {
        let prune = "[train.prune]\nshare = 0.5\nuntil = 10\n";
        for (settings, expected) in [
            ("[train.prune]\nuntil = 10".to_owned(), "share"),
            ("[train.prune]\nshare = 0.5".to_owned(), "until"),
            (prune.replace("0.5", "0.0"), "train.prune.share"),
            (prune.replace("0.5", "1.0"), "train.prune.share"),
            (prune.replace("0.5", "nan"), "train.prune.share"),
            (format!("{prune}from = 11"), "train.prune.until"),
            (format!("{prune}every = 0"), "train.prune.every"),
            (format!("{prune}shares = 1"), "shares"),
            (format!("{prune}tables = ['uzer']"), "train.prune.tables"),
            (format!("[train]\nfreeze_tables = ['user']\n{prune}"), "every table is frozen"),
            (
                format!("[train]\nfreeze_tables = ['user']\n{prune}tables = ['user']"),
                "which is frozen",
            ),
            (format!("{prune}[ps]\nservers = ['a:1']\nstore = '/s'"), "train.prune"),
            (format!("{prune}[run.spill]\nuser = '2 GiB'"), "run.spill"),
            (format!("{prune}[tables.user]\nbounds = [0.1, 1.0]"), "tables.user.bounds"),
        ] {
            let error = read(&settings).unwrap_err();
            assert!(error.contains(expected), "{settings}: {error}");
        }
    }
}
