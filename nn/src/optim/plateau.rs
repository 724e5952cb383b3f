//! The plateau schedule. If a validation metric does not improve, the learning rate is lowered. If
//! this happens several times in a row, training ends.
//!
//! The rule is that of the published click-through benchmarks (FuxiCTR). A validation is a miss if
//! its metric is not better than the best metric so far by more than `min_delta`. Every miss
//! multiplies the learning rate by `factor`, but the rate never falls below a minimum. The
//! `patience`-th miss in a row stops the training.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::checks::{at_least_one, factor, not_negative, positive};

/// The metric that decides whether a validation is a miss. A job writes `"auc"`, `"gauc"`,
/// `"pr_auc"`, `"logloss"`, `"accuracy"`, `"rmse"`, `"mae"`, `"ndcg@10"` or `"recall@10"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum PlateauMetric {
    /// The area under the ROC curve: larger is better.
    #[default]
    Auc,
    /// The area under the ROC curve inside each group, averaged: larger is better.
    Gauc,
    /// The area under the precision-recall curve: larger is better.
    PrAuc,
    /// The log loss: smaller is better.
    Logloss,
    /// The share of rows whose class has the largest probability: larger is better.
    Accuracy,
    /// The root of the mean squared error of predicted numbers: smaller is better.
    Rmse,
    /// The mean absolute error of predicted numbers: smaller is better.
    Mae,
    /// The NDCG of lists: larger is better. It is larger if relevant items are nearer to the
    /// beginning of a list.
    Ndcg(u32),
    /// The recall of lists: larger is better. It is the share of the relevant items that are among
    /// the first items of a list.
    Recall(u32),
}

impl PlateauMetric {
    /// Returns whether a smaller value of the metric is better.
    #[must_use]
    pub fn lower_is_better(self) -> bool {
        matches!(self, Self::Logloss | Self::Rmse | Self::Mae)
    }
}

impl fmt::Display for PlateauMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auc => f.write_str("auc"),
            Self::Gauc => f.write_str("gauc"),
            Self::PrAuc => f.write_str("pr_auc"),
            Self::Logloss => f.write_str("logloss"),
            Self::Accuracy => f.write_str("accuracy"),
            Self::Rmse => f.write_str("rmse"),
            Self::Mae => f.write_str("mae"),
            Self::Ndcg(k) => write!(f, "ndcg@{k}"),
            Self::Recall(k) => write!(f, "recall@{k}"),
        }
    }
}

impl From<PlateauMetric> for String {
    fn from(metric: PlateauMetric) -> Self {
        metric.to_string()
    }
}

impl TryFrom<String> for PlateauMetric {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let head = |what: &str| text.strip_prefix(what)?.parse().ok().filter(|&k: &u32| k > 0);
        match text.as_str() {
            "auc" => Ok(Self::Auc),
            "gauc" => Ok(Self::Gauc),
            "pr_auc" => Ok(Self::PrAuc),
            "logloss" => Ok(Self::Logloss),
            "accuracy" => Ok(Self::Accuracy),
            "rmse" => Ok(Self::Rmse),
            "mae" => Ok(Self::Mae),
            _ => head("ndcg@")
                .map(Self::Ndcg)
                .or_else(|| head("recall@").map(Self::Recall))
                .ok_or_else(|| {
                    format!(
                        "unknown metric `{text}`; choose auc, gauc, pr_auc, logloss, accuracy, rmse, mae, ndcg@k or recall@k"
                    )
                }),
        }
    }
}

/// The settings of the plateau schedule, as a job writes them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlateauSpec {
    /// The number by which a miss multiplies the learning rate, in `(0, 1]`. With 1, the rate stays
    /// unchanged.
    #[serde(deserialize_with = "factor")]
    pub factor: f64,
    /// The minimum of the learning rate. A miss never reduces the rate below it.
    #[serde(deserialize_with = "not_negative")]
    pub min_lr: f64,
    /// The number of consecutive misses that stops the training, at least 1.
    #[serde(deserialize_with = "at_least_one")]
    pub patience: u32,
    /// The margin by which a metric must be better than the best metric so far.
    #[serde(deserialize_with = "not_negative")]
    pub min_delta: f64,
    /// The metric that decides whether a validation is a miss.
    pub metric: PlateauMetric,
    /// The task whose metric counts in a model with several tasks, or `None` for the first task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
}

impl Default for PlateauSpec {
    fn default() -> Self {
        Self {
            factor: 0.1,
            min_lr: 1e-6,
            patience: 2,
            min_delta: 1e-6,
            metric: PlateauMetric::Auc,
            task: None,
        }
    }
}

/// The effect of a validation on training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The metric is the best so far: keep these weights.
    Better,
    /// The validation is a miss: the learning rate is lower from now on.
    Miss,
    /// The validation is the last miss that `patience` allows: stop, and return to the best
    /// weights.
    Stop,
}

/// The state of the plateau schedule, which is serialised into a checkpoint and restored from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plateau {
    spec: PlateauSpec,
    #[serde(deserialize_with = "positive")]
    base_lr: f64,
    lr: f64,
    best: Option<f64>,
    best_observation: u64,
    observations: u64,
    misses: u32,
}

impl Plateau {
    /// Creates a schedule without observations. `base_lr` is the job's learning rate, which must be
    /// above zero.
    #[must_use]
    pub fn new(spec: PlateauSpec, base_lr: f64) -> Self {
        Self {
            spec,
            base_lr,
            lr: base_lr,
            best: None,
            best_observation: 0,
            observations: 0,
            misses: 0,
        }
    }

    /// Records the metric of a validation and returns the verdict. A metric that could not be
    /// computed, or that is NaN, is a miss.
    pub fn observe(&mut self, metric: Option<f64>) -> Verdict {
        self.observations += 1;
        if let Some(metric) = metric.filter(|&metric| self.is_better(metric)) {
            self.best = Some(metric);
            self.best_observation = self.observations;
            self.misses = 0;
            return Verdict::Better;
        }
        self.misses += 1;
        // If the base rate is already below the minimum, it stays as the job has set it.
        self.lr = (self.lr * self.spec.factor).max(self.spec.min_lr.min(self.lr));
        if self.misses >= self.spec.patience { Verdict::Stop } else { Verdict::Miss }
    }

    fn is_better(&self, metric: f64) -> bool {
        let Some(best) = self.best else { return !metric.is_nan() };
        match self.spec.metric.lower_is_better() {
            true => metric <= best - self.spec.min_delta,
            false => metric >= best + self.spec.min_delta,
        }
    }

    /// Returns the factor by which every learning rate is multiplied at present.
    #[must_use]
    pub fn rate_scale(&self) -> f32 {
        (self.lr / self.base_lr) as f32
    }

    /// Returns the settings of the schedule.
    #[must_use]
    pub fn spec(&self) -> &PlateauSpec {
        &self.spec
    }

    /// Returns the current learning rate.
    #[must_use]
    pub fn lr(&self) -> f64 {
        self.lr
    }

    /// Returns the best metric so far, or `None` before the first one.
    #[must_use]
    pub fn best(&self) -> Option<f64> {
        self.best
    }

    /// Returns the number of the best observation, counted from 1, or 0 before the first
    /// observation.
    #[must_use]
    pub fn best_observation(&self) -> u64 {
        self.best_observation
    }

    /// Returns the number of misses since the best observation.
    #[must_use]
    pub fn misses(&self) -> u32 {
        self.misses
    }

    /// Returns whether the number of consecutive misses has reached `patience`.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.misses >= self.spec.patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_benchmarks_rule() {
        let mut plateau = Plateau::new(PlateauSpec::default(), 1e-3);
        assert_eq!(plateau.observe(Some(0.9)), Verdict::Better);
        assert_eq!(plateau.rate_scale(), 1.0);
        // The metric is better, but by less than 1e-6.
        assert_eq!(plateau.observe(Some(0.900_000_5)), Verdict::Miss);
        assert!((plateau.lr() - 1e-4).abs() < 1e-18);
        assert_eq!(plateau.rate_scale(), 0.1);
        // An improvement resets the count of misses but does not raise the rate again.
        assert_eq!(plateau.observe(Some(0.91)), Verdict::Better);
        assert_eq!((plateau.misses(), plateau.rate_scale()), (0, 0.1));
        assert_eq!(plateau.observe(Some(0.905)), Verdict::Miss);
        assert_eq!(plateau.observe(Some(0.91)), Verdict::Stop);
        assert!(plateau.is_stopped());
        assert_eq!((plateau.best(), plateau.best_observation()), (Some(0.91), 3));
        assert!((plateau.lr() - 1e-6).abs() < 1e-18);
    }

    #[test]
    fn the_floor_never_raises_a_rate() {
        let mut plateau = Plateau::new(PlateauSpec::default(), 1e-7);
        plateau.observe(None);
        assert_eq!(plateau.lr(), 1e-7);
        let spec = PlateauSpec { patience: 9, ..PlateauSpec::default() };
        let mut plateau = Plateau::new(spec, 1e-3);
        (0..8).for_each(|_| _ = plateau.observe(None));
        assert_eq!(plateau.lr(), 1e-6);
        assert!((plateau.rate_scale() - 1e-3).abs() < 1e-9);
    }

    #[test]
    fn an_unknown_metric_is_a_miss() {
        let mut plateau = Plateau::new(PlateauSpec::default(), 1e-3);
        assert_eq!(plateau.observe(Some(f64::NAN)), Verdict::Miss);
        assert_eq!(plateau.observe(None), Verdict::Stop);
        assert_eq!(plateau.best(), None);
    }

    #[test]
    fn smaller_is_better_when_asked() {
        let spec = PlateauSpec { metric: PlateauMetric::Logloss, ..PlateauSpec::default() };
        let mut plateau = Plateau::new(spec, 1e-3);
        assert_eq!(plateau.observe(Some(0.5)), Verdict::Better);
        assert_eq!(plateau.observe(Some(0.4)), Verdict::Better);
        assert_eq!(plateau.observe(Some(0.45)), Verdict::Miss);
    }

    #[test]
    fn goes_on_from_its_serialised_state() {
        let metrics = [0.7, 0.8, 0.79, 0.81, 0.80, 0.80];
        let mut whole = Plateau::new(PlateauSpec::default(), 1e-3);
        let expected: Vec<Verdict> = metrics.iter().map(|&m| whole.observe(Some(m))).collect();
        for cut in 0..metrics.len() {
            let mut first = Plateau::new(PlateauSpec::default(), 1e-3);
            let mut verdicts: Vec<Verdict> =
                metrics[..cut].iter().map(|&m| first.observe(Some(m))).collect();
            let saved = toml::to_string(&first).unwrap();
            let mut second: Plateau = toml::from_str(&saved).unwrap();
            verdicts.extend(metrics[cut..].iter().map(|&m| second.observe(Some(m))));
            assert_eq!((verdicts, &second), (expected.clone(), &whole));
        }
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        for bad in ["factor = 0", "factor = 1.5", "patience = 0", "min_delta = -1", "minimum = 1"] {
            assert!(toml::from_str::<PlateauSpec>(bad).is_err(), "{bad}");
        }
        assert_eq!(toml::from_str::<PlateauSpec>("").unwrap(), PlateauSpec::default());
        for bad in ["acu", "recall", "recall@", "recall@0", "ndcg@-1", "auc@10"] {
            let error = toml::from_str::<PlateauSpec>(&format!("metric = \"{bad}\"")).unwrap_err();
            assert!(error.to_string().contains("unknown metric"), "{error}");
        }
        for metric in ["auc", "gauc", "logloss", "ndcg@5", "recall@100"] {
            let spec: PlateauSpec = toml::from_str(&format!("metric = \"{metric}\"")).unwrap();
            assert!(toml::to_string(&spec).unwrap().contains(&format!("\"{metric}\"")));
        }
    }
}
