//! The modes of training: the ways in which several trainers train one model together.

use serde::{Deserialize, Serialize};
use zillion_config::ConfigError;
use zillion_ps::{MOST_STALENESS, Pace};
use zillion_rows::{Admission, OptimizerSpec, SegmentSpec, TableSpec};

use super::{ItemCounts, Job, TrainConfig};
use crate::error::Result;

/// The bound of staleness if the job names none.
const STALENESS: u64 = 4;

/// The way in which several trainers train together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Every step has one batch of each trainer, and every trainer waits for the step.
    #[default]
    Sync,
    /// The dense parameters are trained synchronously. The gradients of rows are applied when they
    /// arrive.
    Hybrid,
    /// Every trainer trains at its own speed. Its changes are applied when they arrive.
    Async,
    /// Every trainer makes several steps on rows of its own, and then pushes its changes.
    Geo,
}

impl Mode {
    /// Returns whether trainers are synchronous, which is the default and is not written.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde calls it with")]
    pub(crate) fn is_sync(&self) -> bool {
        *self == Self::Sync
    }

    /// Returns the name of the mode in a job file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Hybrid => "hybrid",
            Self::Async => "async",
            Self::Geo => "geo",
        }
    }
}

/// The way in which a run goes on after a server of its tables was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerLoss {
    /// All trainers and servers go back to the newest checkpoint. Nothing is lost.
    #[default]
    Rewind,
    /// Only the lost server goes back to the newest checkpoint. The pushes that it has applied
    /// since are lost, and counted.
    Continue,
}

impl ServerLoss {
    /// Returns whether the run is set back, which is the default and is not written.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde calls it with")]
    pub(crate) fn is_rewind(&self) -> bool {
        *self == Self::Rewind
    }
}

impl TrainConfig {
    /// Returns the pace of the trainers, or `None` if they are synchronous.
    pub(crate) fn pace(&self) -> Option<Pace> {
        let staleness = self.staleness;
        match self.mode {
            Mode::Sync => None,
            Mode::Hybrid => Some(Pace { staleness, counts_pushes: false }),
            Mode::Async => Some(Pace { staleness, counts_pushes: true }),
            Mode::Geo => Some(Pace { staleness: None, counts_pushes: true }),
        }
    }

    /// Checks the settings that belong to a mode, and writes out their defaults.
    pub(super) fn resolve_mode(&mut self) -> Result<()> {
        let refuse = |key: &str, message: &str| Err(ConfigError::at(key, message).into());
        let has_bound = matches!(self.mode, Mode::Hybrid | Mode::Async);
        if self.staleness.is_some() && !has_bound {
            let message =
                "belongs to the modes `hybrid` and `async`; remove it, or set `train.mode`";
            return refuse("train.staleness", message);
        }
        let is_apart = matches!(self.mode, Mode::Async | Mode::Geo);
        if !self.on_server_loss.is_rewind() && !is_apart {
            let message = "is `continue`, which belongs to the modes `async` and `geo`, because \
                           the steps of the other modes need every server; remove it, or set \
                           `train.mode`";
            return refuse("train.on_server_loss", message);
        }
        match (self.mode, self.local_steps) {
            (Mode::Geo, None) => {
                let message = "is missing; give the number of steps between two pushes of the \
                               mode `geo`";
                return refuse("train.local_steps", message);
            }
            (Mode::Geo, Some(_)) | (_, None) => {}
            (_, Some(_)) => {
                let message = "belongs to the mode `geo`; remove it, or set `train.mode`";
                return refuse("train.local_steps", message);
            }
        }
        if !has_bound {
            return Ok(());
        }
        let staleness = *self.staleness.get_or_insert(STALENESS);
        if staleness > MOST_STALENESS {
            let message = format!("must be 0 to {MOST_STALENESS}, found {staleness}");
            return Err(ConfigError::at("train.staleness", message).into());
        }
        Ok(())
    }
}

impl Job {
    /// Checks that the mode can do what the other settings ask for.
    pub(super) fn check_mode(&self) -> Result<()> {
        let train = &self.train;
        if train.mode.is_sync() {
            return Ok(());
        }
        let refuse = |key: &str, reason: &str| {
            let mode = train.mode.name();
            let message =
                format!("cannot be used with `train.mode = \"{mode}\"`, because {reason}");
            Err(ConfigError::at(key, message).into())
        };
        if train.accumulate.get() > 1 {
            return refuse(
                "train.accumulate",
                "each batch is pushed by itself; remove it, or use the mode `sync`",
            );
        }
        if train.clip_norm.is_some() {
            return refuse(
                "train.clip_norm",
                "rows are updated before the norm of all gradients is known; remove it, limit the \
                 gradients of rows by `clip` of a table, or use the mode `sync`",
            );
        }
        if !self.run.spill.is_empty() {
            return refuse("run.spill", "the rows are on servers; remove one of the two");
        }
        let whole = self.tables.iter().find(|table| table.has_whole_table_rule());
        match (train.mode, whole) {
            (Mode::Hybrid, Some(table)) => refuse(
                &format!("tables.{}", table.name),
                "a rule of the table updates all rows once in each step, but the pushes of a step \
                 come one by one; limit the rule to the rows of the step with \
                 `scope = \"touched\"` or `l2_scope = \"touched\"`, or use the mode `sync`",
            ),
            (Mode::Async | Mode::Geo, _) if train.average.is_some() => refuse(
                "train.average",
                "each trainer sees other dense parameters after each step; remove it, or use the \
                 mode `hybrid`",
            ),
            (Mode::Geo, _) if train.max_table_bytes.is_some() => refuse(
                "train.max_table_bytes",
                "trainers move rows of their own, which the servers might refuse or evict; remove \
                 it, or use another mode",
            ),
            (Mode::Geo, _) if train.item_counts == ItemCounts::Table => refuse(
                "train.item_counts",
                "the rows of a trainer have no counts between two pushes; use `data`",
            ),
            (Mode::Geo, _) => match self.tables.iter().find(|table| !is_plain_sgd(table)) {
                None => Ok(()),
                Some(table) => refuse(
                    &format!("tables.{}", table.name),
                    "trainers move rows of their own by plain SGD; give all segments the optimizer \
                     `sgd` without `l2`, `clip` and bounds, and the table no admission, eviction, \
                     limit, statistics or growth, or use another mode",
                ),
            },
            _ => Ok(()),
        }
    }

    /// Checks that a run of this job has the servers that its mode needs.
    pub(crate) fn check_mode_has_servers(&self) -> Result<()> {
        let mode = self.train.mode;
        if mode.is_sync() || self.ps.is_some() {
            return Ok(());
        }
        let message = format!(
            "is `{}`, which needs the servers of a parameter service; name them in `ps.servers`, or \
             use the mode `sync`",
            mode.name()
        );
        Err(ConfigError::at("train.mode", message).into())
    }
}

/// Returns whether a push changes the rows of a table by `-lr * g` and does nothing else.
fn is_plain_sgd(table: &TableSpec) -> bool {
    let is_plain = |segment: &SegmentSpec| {
        matches!(segment.optimizer, OptimizerSpec::Sgd { .. })
            && segment.l2 == 0.0
            && segment.clip.is_none()
            && segment.bounds.is_none()
    };
    let has_limit = table.max_bytes.is_some() || (!table.dense && table.max_rows.is_some());
    table.segments.iter().all(is_plain)
        && table.admission == Admission::All
        && table.eviction.is_never()
        && !has_limit
        && table.statistics.is_none()
        && table.grow.is_none()
}

#[cfg(test)]
mod tests {
    use super::super::smallest::read;
    use super::*;

    #[test]
    fn a_mode_is_a_part_of_the_result() {
        let plain = read("").unwrap();
        assert_eq!((plain.train.mode, plain.train.pace()), (Mode::Sync, None));
        let sync = read("[train]\nmode = 'sync'").unwrap();
        assert_eq!(sync.digest().unwrap(), plain.digest().unwrap());
        let hybrid = read("[train]\nmode = 'hybrid'").unwrap();
        let pace = Pace { staleness: Some(4), counts_pushes: false };
        assert_eq!(hybrid.train.pace(), Some(pace));
        let strict = read("[train]\nmode = 'async'\nstaleness = 0").unwrap();
        let pace = Pace { staleness: Some(0), counts_pushes: true };
        assert_eq!(strict.train.pace(), Some(pace));
        let digests = [&plain, &hybrid, &strict].map(|job| job.digest().unwrap());
        assert!(digests[0] != digests[1] && digests[1] != digests[2]);
        let printed: toml::Table = toml::from_str(&hybrid.in_force().unwrap()).unwrap();
        assert_eq!(Job::from_value(printed.into()).unwrap().train, hybrid.train);
    }

    #[test]
    fn pairs_that_a_mode_cannot_do_are_refused_by_name() {
        let geo = "[train]\nmode = 'geo'\nlocal_steps = 3\n";
        let sgd = "optimizer = { kind = 'sgd', lr = 0.1 }\n";
        assert!(read(&format!("{geo}[tables.user]\n{sgd}")).is_ok());
        let whole = "[tables.user]\ndense = true\nl2 = 0.1\n";
        for (settings, expected) in [
            ("[train]\nmode = 'fast'".to_owned(), "train.mode"),
            ("[train]\nstaleness = 1".to_owned(), "train.staleness"),
            ("[train]\nmode = 'async'\nstaleness = 65".to_owned(), "train.staleness"),
            ("[train]\nmode = 'async'\naccumulate = 2".to_owned(), "train.accumulate"),
            ("[train]\nmode = 'hybrid'\nclip_norm = 1.0".to_owned(), "train.clip_norm"),
            ("[train]\nmode = 'hybrid'\n[run.spill]\nuser = '1 GiB'".to_owned(), "run.spill"),
            ("[train]\nmode = 'async'\naverage = { kind = 'ema' }".to_owned(), "train.average"),
            (format!("{whole}[train]\nmode = 'hybrid'"), "tables.user"),
            ("[train]\nlocal_steps = 2".to_owned(), "train.local_steps"),
            ("[train]\nmode = 'geo'".to_owned(), "train.local_steps"),
            (format!("{geo}staleness = 2"), "train.staleness"),
            (format!("{geo}max_table_bytes = '1 GiB'"), "train.max_table_bytes"),
            (format!("{geo}item_counts = 'table'"), "train.item_counts"),
            (format!("{geo}[tables.user]\n{sgd}l2 = 0.1"), "tables.user"),
            (format!("{geo}[tables.user]\n{sgd}max_rows = 9"), "tables.user"),
            (format!("{geo}[tables.user]\noptimizer = {{ kind = 'adagrad' }}"), "tables.user"),
        ] {
            let error = read(&settings).unwrap_err();
            assert!(error.contains(expected), "{settings}: {error}");
        }
        assert!(read(&format!("{whole}[train]\nmode = 'async'")).is_ok());
        let error = read("[train]\nmode = 'async'").unwrap().check_mode_has_servers().unwrap_err();
        assert!(error.to_string().contains("train.mode"), "{error}");
    }
}
