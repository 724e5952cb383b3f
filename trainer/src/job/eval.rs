//! The `[eval]` section: the figures to measure in addition to those of each label.
//!
//! `ndcg_at` and `recall_at` give the values of k. A figure with the value k uses only the first k
//! items of a ranked list. Without `candidates`, a ranked list holds the rows of a group. With
//! `candidates`, each row of the data has a ranked list of all rows of the side table `candidates`.

use serde::{Deserialize, Serialize};
use zillion_config::ConfigError;
use zillion_feature::{FeatureKind, FeatureSpec, LabelKind, RawType};
use zillion_nn::optim::PlateauMetric;
use zillion_nn::zoo::{LossSpec, ModelSpec, TwoTowerSpec};

use super::Job;
use crate::error::Result;

/// The value of k if the job gives none.
const DEFAULT_CUTOFF: u32 = 10;

/// The `[eval]` section: the figures to measure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvalConfig {
    /// The side table whose rows are ranked for each row of the data; for `two_tower`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub candidates: Option<String>,
    /// The feature whose items are left out of a row's ranking, for example the row's history.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclude: Option<String>,
    /// The values of k for which `ndcg@k` is measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ndcg_at: Vec<u32>,
    /// The values of k for which `recall@k` is measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recall_at: Vec<u32>,
    /// The values of k for which `mrr@k` is measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mrr_at: Vec<u32>,
    /// The features whose values have figures of their own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<String>,
}

/// The columns of a ranking, as positions in the schema and in a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Retrieved {
    /// The position of the candidates' side table in the schema.
    pub(crate) side: usize,
    /// The sparse column of a batch that holds the item.
    pub(crate) item: usize,
    /// The positions of the other features of the item's tower in the schema.
    pub(crate) attributes: Vec<usize>,
    /// The sparse column of a batch that holds the excluded items.
    pub(crate) exclude: Option<usize>,
}

impl EvalConfig {
    /// Returns the settings with the defaults that depend on other settings.
    pub(super) fn resolve(mut self) -> Self {
        if self.candidates.is_some() && self.ndcg_at.is_empty() && self.recall_at.is_empty() {
            self.ndcg_at.push(DEFAULT_CUTOFF);
            self.recall_at.push(DEFAULT_CUTOFF);
        }
        self
    }

    /// Returns the first ranking figure. It decides which epoch is the best if there is no label.
    fn first_metric(&self) -> Option<PlateauMetric> {
        let recall = self.recall_at.first().map(|&k| PlateauMetric::Recall(k));
        recall.or_else(|| self.ndcg_at.first().map(|&k| PlateauMetric::Ndcg(k)))
    }

    fn has(&self, metric: PlateauMetric) -> bool {
        match metric {
            PlateauMetric::Ndcg(k) => self.ndcg_at.contains(&k),
            PlateauMetric::Recall(k) => self.recall_at.contains(&k),
            _ => true,
        }
    }
}

impl Job {
    /// Checks the settings of `[eval]` that depend on other settings.
    pub(super) fn check_eval(&self) -> Result<()> {
        let eval = &self.eval;
        let cutoffs = [
            ("eval.ndcg_at", &eval.ndcg_at),
            ("eval.recall_at", &eval.recall_at),
            ("eval.mrr_at", &eval.mrr_at),
        ];
        for (key, cutoffs) in cutoffs {
            if cutoffs.contains(&0) {
                return Err(ConfigError::at(key, "must be at least 1, found 0").into());
            }
            if !cutoffs.is_empty() && eval.candidates.is_none() && self.schema.group.is_none() {
                let message = "needs groups of rows or candidates to rank; set `columns.group = \
                               \"..\"` or, for a two_tower, `eval.candidates = \"..\"`";
                return Err(ConfigError::at(key, message).into());
            }
        }
        let has_binary = self.schema.labels.iter().any(|label| label.kind.is_binary());
        let of_rows = [
            ("eval.ndcg_at", !eval.ndcg_at.is_empty() && eval.candidates.is_none()),
            ("eval.recall_at", !eval.recall_at.is_empty() && eval.candidates.is_none()),
            ("eval.mrr_at", !eval.mrr_at.is_empty() && eval.candidates.is_none()),
            ("eval.segments", !eval.segments.is_empty()),
        ];
        for (key, is_set) in of_rows {
            if is_set && !has_binary && !self.schema.labels.is_empty() {
                let message = "needs a label of 0 and 1, but the labels are numbers or classes; \
                               remove the key, or set `kind = \"binary\"` of a label";
                return Err(ConfigError::at(key, message).into());
            }
        }
        self.check_segments()?;
        self.check_metric()?;
        self.resolve_retrieval()?;
        if self.schema.labels.is_empty() && eval.candidates.is_none() && !self.data.valid.is_empty()
        {
            let message = "is missing, but a job without labels is validated by retrieval; name \
                           the side table of the items, or remove `data.valid`";
            return Err(ConfigError::at("eval.candidates", message).into());
        }
        let metric = self.judge();
        if !eval.has(metric) {
            let key =
                if matches!(metric, PlateauMetric::Ndcg(_)) { "ndcg_at" } else { "recall_at" };
            let message = format!("is {metric}, which is not measured; add it to `eval.{key}`");
            return Err(ConfigError::at("train.plateau.metric", message).into());
        }
        if self.schema.labels.is_empty()
            && self.train.plateau.is_some()
            && !matches!(metric, PlateauMetric::Ndcg(_) | PlateauMetric::Recall(_))
        {
            let message = format!(
                "is {metric}, which needs labels, but the job has no labels; set it to \
                 \"recall@10\""
            );
            return Err(ConfigError::at("train.plateau.metric", message).into());
        }
        Ok(())
    }

    /// Checks that each feature of `eval.segments` has one id in each row.
    fn check_segments(&self) -> Result<()> {
        for (index, name) in self.eval.segments.iter().enumerate() {
            let (_, feature) = self.sparse_feature(name, "eval.segments")?;
            let refuse = |message: &str| {
                Err(ConfigError::at("eval.segments", format!("`{name}` {message}")).into())
            };
            if feature.pooling().is_some() {
                return refuse("has lists of ids; name features with one id in each row");
            }
            if self.eval.segments[..index].contains(name) {
                return refuse("is named twice; name each feature once");
            }
        }
        if let (Some(_), None) = (self.eval.segments.first(), self.schema.labels.first()) {
            let message = "needs labels, but the job has none; remove the key";
            return Err(ConfigError::at("eval.segments", message).into());
        }
        Ok(())
    }

    /// Checks that the metric of the schedule fits the kind of the label.
    fn check_metric(&self) -> Result<()> {
        let Some(plateau) = &self.train.plateau else { return Ok(()) };
        use PlateauMetric::{Accuracy, Auc, Logloss, Mae, PrAuc, Rmse};
        let Some(kind) = self.judged_kind() else { return Ok(()) };
        let metric = plateau.metric;
        let (label, fits, is_fit) = match kind {
            LabelKind::Binary => {
                let is_fit = !matches!(metric, Rmse | Mae | Accuracy);
                ("0 or 1", "\"auc\" or \"logloss\"", is_fit)
            }
            LabelKind::Number | LabelKind::Count => {
                ("a number", "\"rmse\" or \"mae\"", matches!(metric, Rmse | Mae))
            }
            LabelKind::Class => {
                let is_of_one_class = plateau.task.is_some();
                let is_fit = match metric {
                    Auc | Logloss => true,
                    Accuracy => !is_of_one_class,
                    PrAuc => is_of_one_class,
                    _ => false,
                };
                ("one of several classes", "\"auc\", \"logloss\" or \"accuracy\"", is_fit)
            }
        };
        if is_fit {
            return Ok(());
        }
        let message = format!("is {}, but the label is {label}; set it to {fits}", plateau.metric);
        Err(ConfigError::at("train.plateau.metric", message).into())
    }

    /// Returns the kind of the label by which epochs are judged; absent without a label.
    fn judged_kind(&self) -> Option<LabelKind> {
        let named = self.train.plateau.as_ref().and_then(|plateau| plateau.task.as_ref());
        let tasks = self.tasks();
        let task = tasks.iter().find(|task| named.is_none_or(|name| *name == task.name))?;
        self.schema.labels.get(task.label.of()).map(|label| label.kind)
    }

    /// Returns the figure that decides which epoch is the best.
    pub fn judge(&self) -> PlateauMetric {
        match &self.train.plateau {
            Some(plateau) => plateau.metric,
            None if self.schema.labels.is_empty() => self.eval.first_metric().unwrap_or_default(),
            None if self.judged_kind().is_some_and(LabelKind::is_number) => PlateauMetric::Rmse,
            // Scores of different groups were never compared.
            None if self.first_loss().is_some_and(|loss| loss.compares_groups()) => {
                PlateauMetric::Gauc
            }
            None => PlateauMetric::default(),
        }
    }

    /// Returns the loss of the first label.
    fn first_loss(&self) -> Option<LossSpec> {
        self.schema.labels.first().map(|label| self.loss_of(&label.name))
    }

    /// Returns the position of a retrieval model's item feature in the schema.
    pub(crate) fn item_feature(&self) -> Option<usize> {
        let ModelSpec::TwoTower(spec) = &self.model else { return None };
        self.schema.features.iter().position(|f| f.name == spec.item_feature())
    }

    /// Returns the position of a retrieval model's item feature among the sparse columns of a
    /// batch.
    pub(crate) fn item_column(&self) -> Option<usize> {
        let ModelSpec::TwoTower(spec) = &self.model else { return None };
        self.schema.sparse().position(|f| f.name == spec.item_feature())
    }

    /// Returns the columns of the ranking, or `None` if nothing is ranked.
    pub(crate) fn resolve_retrieval(&self) -> Result<Option<Retrieved>> {
        let Some(name) = &self.eval.candidates else {
            return match self.eval.exclude {
                Some(_) => {
                    let message = "excludes items from `eval.candidates`, which is not set; set `eval.candidates`, or remove `eval.exclude`";
                    Err(ConfigError::at("eval.exclude", message).into())
                }
                None => Ok(None),
            };
        };
        let ModelSpec::TwoTower(spec) = &self.model else {
            let message = format!(
                "needs a two_tower to rank items, but the model is {}; remove it, or change the \
                 model",
                self.model.kind()
            );
            return Err(ConfigError::at("eval.candidates", message).into());
        };
        let sides: Vec<&str> = self.schema.sides.iter().map(|s| s.name.as_str()).collect();
        let Some(side) = sides.iter().position(|s| s == name) else {
            return Err(ConfigError::unknown_value("eval.candidates", name, &sides).into());
        };
        let (item, id) = self.sparse_feature(spec.item_feature(), "model.item_id")?;
        let raw = self.schema.sides[side].raw;
        if raw_type(id) != Some(raw) || id.side.is_some() {
            let message = format!(
                "differs from the item: the keys of this side table are the ids of feature `{}`; give both the same `type`, \
                 and make `{}` a column of the data",
                id.name, id.name
            );
            return Err(ConfigError::at(&format!("side.{name}.type"), message).into());
        }
        Ok(Some(Retrieved {
            side,
            item,
            attributes: self.attributes(spec, side, id)?,
            exclude: self.resolve_excluded(raw)?,
        }))
    }

    /// Returns the positions of the features of the item's tower, without the item's id. All of
    /// them must be columns of the side table.
    fn attributes(&self, spec: &TwoTowerSpec, side: usize, id: &FeatureSpec) -> Result<Vec<usize>> {
        let mut attributes = Vec::new();
        for name in spec.item.iter().filter(|name| **name != id.name) {
            let Some(position) = self.schema.features.iter().position(|f| f.name == *name) else {
                continue;
            };
            let from = self.schema.features[position].side.as_ref();
            if !from.is_some_and(|from| from.side == side && from.by == id.column) {
                let table = &self.schema.sides[side].name;
                let message = format!(
                    "is in the item's tower, but is not a column of side table `{table}` joined by `{}`; add the column there, \
                     because a candidate has no other columns",
                    id.column
                );
                return Err(ConfigError::at(&format!("features.{name}"), message).into());
            }
            attributes.push(position);
        }
        Ok(attributes)
    }

    fn resolve_excluded(&self, raw: RawType) -> Result<Option<usize>> {
        let Some(name) = &self.eval.exclude else { return Ok(None) };
        let (column, feature) = self.sparse_feature(name, "eval.exclude")?;
        if raw_type(feature) != Some(raw) {
            let message = format!(
                "names `{name}`, whose ids do not have the type of the candidates; name a feature \
                 of that type"
            );
            return Err(ConfigError::at("eval.exclude", message).into());
        }
        Ok(Some(column))
    }

    /// Finds a feature that indexes a table, and its column in a batch.
    fn sparse_feature(&self, name: &str, key: &str) -> Result<(usize, &FeatureSpec)> {
        let found = self.schema.sparse().enumerate().find(|(_, f)| f.name == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = self.schema.sparse().map(|f| f.name.as_str()).collect();
            ConfigError::unknown_value(key, name, &names).into()
        })
    }
}

fn raw_type(feature: &FeatureSpec) -> Option<RawType> {
    match feature.kind {
        FeatureKind::Id { raw, .. }
        | FeatureKind::Ids { raw, .. }
        | FeatureKind::Sequence { raw, .. } => Some(raw),
        _ => None,
    }
}
