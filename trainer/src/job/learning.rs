//! The settings of learning for the parts of a model: rates by name, frozen parts, and the losses
//! of labels.
//!
//! Parts are named by dense parameters (`zillion model graph` lists them) and by tables. In a
//! pattern, `*` stands for any text. A pattern that matches nothing is an error, because it is
//! probably misspelt.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use zillion_config::ConfigError;
use zillion_feature::{LabelKind, TableId};
use zillion_nn::zoo::{self, LossSpec, ModelSpec};
use zillion_nn::{Graph, Mode, ParamSpec};

use super::Job;
use crate::error::Result;

/// The name that stands for every label in `[train.loss]`.
const EVERY_LABEL: &str = "*";

/// The learning rate of the dense parameters that a pattern matches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateConfig {
    /// The pattern of the parameters' names, with `*` for any text.
    #[serde(rename = "match")]
    pub pattern: String,
    /// The factor by which the optimizer's learning rate is multiplied; an alternative to `lr`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<f64>,
    /// The learning rate before any schedule; an alternative to `scale`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lr: Option<f64>,
}

/// The version from which a new run begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WarmStart {
    /// The registry: a folder, `file:///…`, `s3://bucket/prefix`, `gs://…`, `az://…`.
    pub registry: String,
    /// The name of the model in the registry; absent: the job's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The number of the version; an alternative to `pointer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// The name of the pointer whose version is used when the run begins; absent: `stable`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
}

/// The source of item frequencies. A retrieval model corrects its scores by the frequencies in
/// training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemCounts {
    /// A first pass over the training data counts the items, before the first step.
    #[default]
    Data,
    /// The count of the item's row is used, which is the number of steps that pushed the row. This
    /// setting needs no first pass, but the counts grow during training.
    Table,
}

impl ItemCounts {
    /// Returns whether a first pass counts the items.
    pub fn is_data(&self) -> bool {
        *self == Self::Data
    }
}

/// The start of the bias of an output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputBias {
    /// The output begins at the mean of the label in the training data.
    #[default]
    Mean,
    /// The output begins at a score of 0, which is a probability of 0.5.
    Zero,
}

impl OutputBias {
    /// Returns whether outputs begin at the means of labels.
    pub fn is_mean(&self) -> bool {
        *self == Self::Mean
    }
}

impl RateConfig {
    /// Returns the factor by which `base` is multiplied. Returns an error with the wrong key and
    /// its problem.
    fn factor(&self, base: f64) -> std::result::Result<f32, (&'static str, String)> {
        let (key, factor) = match (self.scale, self.lr) {
            (Some(scale), None) => ("scale", scale),
            (None, Some(lr)) => ("lr", lr / base),
            _ => {
                return Err((
                    "match",
                    "needs `scale` or `lr`, but not both; set one of them".to_owned(),
                ));
            }
        };
        let factor = factor as f32;
        if factor.is_finite() && factor > 0.0 {
            return Ok(factor);
        }
        Err((key, "must be a number above 0; use `train.freeze` to freeze parameters".to_owned()))
    }
}

impl Job {
    /// Checks the settings of learning that depend on the model, labels and tables.
    pub(super) fn check_learning(&self) -> Result<()> {
        let train = &self.train;
        if let Some((key, reason)) = train.schedule.as_ref().and_then(|schedule| schedule.problem())
        {
            let path = ["train.schedule", key].join(if key.is_empty() { "" } else { "." });
            return Err(ConfigError::at(&path, reason).into());
        }
        if train.warm_start.as_ref().is_some_and(|w| w.version.is_some() && w.pointer.is_some()) {
            let message = "names a version and a pointer; remove one of `version` and `pointer`";
            return Err(ConfigError::at("train.warm_start", message).into());
        }
        self.check_losses()?;
        self.check_item_counts()?;
        let frozen_tables = self.frozen_tables()?;
        if train.rates.is_empty() && train.freeze.is_empty() && frozen_tables.is_empty() {
            return Ok(());
        }
        let mut graph = self.graph(Mode::Train)?;
        self.freeze(&mut graph)?;
        self.rate_factors(&graph.params)?;
        let learns = graph.params.iter().any(|param| param.trainable);
        if !learns && frozen_tables.len() == self.tables.len() {
            let message = "leaves nothing to learn: every parameter and every table is frozen; freeze fewer of them";
            return Err(ConfigError::at("train.freeze", message).into());
        }
        Ok(())
    }

    fn check_item_counts(&self) -> Result<()> {
        if self.train.item_counts.is_data() {
            return Ok(());
        }
        let refuse = |message: String| Err(ConfigError::at("train.item_counts", message).into());
        let item = self.item_feature().filter(|_| zoo::reads_log_frequency(&self.model));
        let Some(table) = item.and_then(|item| self.schema.features[item].table()) else {
            return refuse(
                "has an effect only for a two_tower with `sampling_correction`; remove it"
                    .to_owned(),
            );
        };
        let name = &self.tables[table.index()].name;
        if self.schema.sparse().filter(|feature| feature.table() == Some(table)).count() > 1 {
            return refuse(format!(
                "counts the rows of table `{name}`, which other features use too, so their ids would be counted \
                 as items; give the items a table of their own, or set \"data\""
            ));
        }
        if self.frozen_tables()?.contains(&table) {
            return refuse(format!(
                "needs the counts of table `{name}`, which is frozen and counts nothing; unfreeze the table, or set \"data\""
            ));
        }
        Ok(())
    }

    fn check_losses(&self) -> Result<()> {
        self.check_label_kinds()?;
        let losses = &self.train.loss;
        let Some(first) = losses.keys().next() else { return Ok(()) };
        let path = |label: &str| format!("train.loss.{label}");
        if matches!(self.model, ModelSpec::TwoTower(_)) {
            let message = "has no effect, because a two_tower learns by a softmax over the items of a batch; \
                           remove the section";
            return Err(ConfigError::at(&path(first), message).into());
        }
        let mut known: Vec<&str> = self.schema.labels.iter().map(|l| l.name.as_str()).collect();
        known.push(EVERY_LABEL);
        for (label, loss) in losses {
            if !known.contains(&label.as_str()) {
                return Err(ConfigError::unknown_key("train.loss", label, &known).into());
            }
            if loss.is_nothing() {
                let message = "has two weights of 0, so nothing would be learned; to evaluate a label without \
                               learning it, set `weight = 0` for the label";
                return Err(ConfigError::at(&path(label), message).into());
            }
            let kinds = || self.schema.labels.iter().map(|l| l.kind);
            let learns = |kind| loss.label_kind() == kind;
            let fits = if label == EVERY_LABEL {
                kinds().any(learns)
            } else {
                learns(self.label_kind(label))
            };
            if !fits {
                let message = format!(
                    "`{}` learns labels of another kind; give the label `kind = \"{}\"`, or choose another loss",
                    loss.name(),
                    name_of_kind(loss.label_kind())
                );
                return Err(ConfigError::at(&path(label), &message).into());
            }
            if loss.compares_groups() {
                self.check_groups(&path(label))?;
            }
        }
        Ok(())
    }

    /// Checks that the model and the data can have labels that are not 0 or 1, if there are any.
    fn check_label_kinds(&self) -> Result<()> {
        let Some(label) = self.schema.labels.iter().find(|label| !label.kind.is_binary()) else {
            return Ok(());
        };
        let needs = |what: &str| {
            let message = format!(
                "must be \"binary\", because {what}; remove the key, and give `at_least` to a label of other numbers"
            );
            Err(ConfigError::at(&format!("labels.{}.kind", label.name), &message).into())
        };
        match &self.model {
            ModelSpec::TwoTower(_) => return needs("a two_tower learns which items were chosen"),
            ModelSpec::Esmm(_) => return needs("esmm learns a click and a conversion"),
            _ => {}
        }
        if label.kind == LabelKind::Class {
            // A model refuses what it cannot learn, and names the models that can.
            self.graph(Mode::Infer)?;
        }
        if !self.streams.is_empty() {
            return needs("validation over streams compares probabilities");
        }
        let thinned = self.data.negatives(&self.schema)?;
        if thinned.is_some_and(|(at, _)| !self.schema.labels[at].kind.is_binary()) {
            let message = "samples rows by a label that is not 0 or 1; name another label, or remove `data.negatives`";
            return Err(ConfigError::at("data.negatives.label", message).into());
        }
        Ok(())
    }

    /// Returns the loss of a label.
    pub(crate) fn loss_of(&self, label: &str) -> LossSpec {
        let losses = &self.train.loss;
        let kind = self.label_kind(label);
        let of_every = losses.get(EVERY_LABEL).filter(|loss| loss.label_kind() == kind);
        let named = losses.get(label).or(of_every).copied();
        named.unwrap_or_else(|| LossSpec::default_for(kind))
    }

    fn label_kind(&self, label: &str) -> LabelKind {
        let known = self.schema.labels.iter().find(|known| known.name == label);
        known.map(|known| known.kind).unwrap_or_default()
    }

    /// Freezes the dense parameters that match the job's patterns. A frozen parameter gets no
    /// gradient and has no optimizer state. Running statistics are not learned, so they are not
    /// frozen and continue to follow the data.
    pub(crate) fn freeze(&self, graph: &mut Graph) -> Result<()> {
        for pattern in &self.train.freeze {
            let mut found = false;
            for param in graph.params.iter_mut().filter(|param| matches(pattern, &param.name)) {
                found |= param.trainable;
                param.trainable = false;
            }
            // A parameter that an earlier pattern has frozen may match this one too.
            let earlier = self.train.freeze.iter().take_while(|other| *other != pattern);
            let again = earlier.into_iter().any(|other| {
                graph.params.iter().any(|p| matches(other, &p.name) && matches(pattern, &p.name))
            });
            if !found && !again {
                return Err(no_parameter("train.freeze", pattern, &graph.params));
            }
        }
        Ok(())
    }

    /// Returns the factor of each parameter's learning rate, in the order of `params`. If several
    /// patterns match a parameter's name, the first of them gives the factor.
    pub(crate) fn rate_factors(&self, params: &[ParamSpec]) -> Result<Vec<f32>> {
        let base = self.train.optimizer.lr();
        let mut factors = vec![None; params.len()];
        for (index, rate) in self.train.rates.iter().enumerate() {
            let path = |key: &str| format!("train.rates[{index}].{key}");
            let factor =
                rate.factor(base).map_err(|(key, message)| ConfigError::at(&path(key), message))?;
            let mut found = false;
            for (own, param) in factors.iter_mut().zip(params) {
                if param.trainable && own.is_none() && matches(&rate.pattern, &param.name) {
                    (*own, found) = (Some(factor), true);
                }
            }
            if !found {
                return Err(no_parameter(&path("match"), &rate.pattern, params));
            }
        }
        Ok(factors.into_iter().map(|factor| factor.unwrap_or(1.0)).collect())
    }

    /// Returns whether the job freezes the table of this name.
    ///
    /// # Errors
    /// Returns an error if a pattern of `train.freeze_tables` matches no table.
    pub fn is_frozen(&self, table: &str) -> Result<bool> {
        let frozen = self.frozen_tables()?;
        Ok(frozen.iter().any(|id| self.tables[id.index()].name == table))
    }

    /// Returns the tables that the job freezes.
    pub(crate) fn frozen_tables(&self) -> Result<Vec<TableId>> {
        let mut frozen = Vec::new();
        for pattern in &self.train.freeze_tables {
            let tables = (0..).map(TableId).zip(&self.tables);
            let found = tables.filter(|(_, spec)| matches(pattern, &spec.name));
            let found: Vec<TableId> = found.map(|(id, _)| id).collect();
            if found.is_empty() {
                let names: Vec<&str> = self.tables.iter().map(|t| t.name.as_str()).collect();
                let error = ConfigError::unknown_value("train.freeze_tables", pattern, &names);
                return Err(error.into());
            }
            frozen.extend(found);
        }
        frozen.sort_unstable();
        frozen.dedup();
        Ok(frozen)
    }
}

/// Makes the error for a pattern that matches no parameter, with the names of the parameters.
fn no_parameter(path: &str, pattern: &str, params: &[ParamSpec]) -> crate::error::Error {
    let names = params.iter().filter(|param| param.trainable).map(|param| param.name.as_str());
    let names: Vec<&str> = names.collect();
    let message = format!(
        "{pattern:?} matches no trained parameter, or only parameters that earlier patterns \
         match; use one of the parameters {}",
        names.join(", ")
    );
    ConfigError::at(path, message).into()
}

/// Returns whether a name matches a pattern, in which `*` stands for any text, even an empty one.
fn matches(pattern: &str, name: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut pieces: Vec<&str> = pieces.collect();
    let Some(last) = pieces.pop() else { return rest.is_empty() };
    for piece in pieces {
        // The first match is the best one, because it leaves the longest rest.
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Returns the value of `labels.X.kind` for a kind of label.
fn name_of_kind(kind: LabelKind) -> &'static str {
    match kind {
        LabelKind::Binary => "binary",
        LabelKind::Number => "number",
        LabelKind::Count => "count",
        LabelKind::Class => "class",
    }
}

/// The losses of a job by label.
pub(super) type Losses = BTreeMap<String, LossSpec>;

#[cfg(test)]
mod tests {
    use super::*;

    fn job(more: &str) -> Result<Job> {
        let text = format!(
            "[data]\ntrain = ['x.csv']\n[features.user]\nkind = 'id'\n[features.item]\nkind = 'id'\n\
             [labels.click]\n[model]\nkind = 'deepfm'\nhidden = [8, 4]\n{more}"
        );
        Job::from_value(toml::from_str::<toml::Table>(&text).expect("TOML").into())
    }

    #[test]
    fn stars_stand_for_any_text() {
        for (pattern, name, yes) in [
            ("mlp.0.weight", "mlp.0.weight", true),
            ("mlp.0.weight", "mlp.0.weights", false),
            ("mlp.*", "mlp.0.weight", true),
            ("*.bias", "mlp.0.bias", true),
            ("*", "", true),
            ("mlp.*.weight", "mlp.10.weight", true),
            ("mlp.*.weight", "mlp.weight", false),
            ("*0*0*", "a0b0", true),
            ("*0*0*", "a0b", false),
            ("a*a", "a", false),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, name), yes, "{pattern} {name}");
        }
    }

    #[test]
    fn the_first_pattern_that_a_parameter_answers_to_counts() {
        let job = job("[train]\noptimizer = { kind = 'adam', lr = 0.01 }\nfreeze = ['mlp.0.*']\n\
             [[train.rates]]\nmatch = 'mlp.1.weight'\nscale = 0.5\n\
             [[train.rates]]\nmatch = 'mlp.*'\nlr = 0.001")
        .unwrap();
        let mut graph = job.graph(Mode::Train).unwrap();
        job.freeze(&mut graph).unwrap();
        let factors = job.rate_factors(&graph.params).unwrap();
        let of = |name: &str| {
            let at = graph.params.iter().position(|p| p.name == name).expect(name);
            (factors[at], graph.params[at].trainable)
        };
        assert_eq!(of("mlp.0.weight"), (1.0, false));
        assert_eq!(of("mlp.1.weight"), (0.5, true));
        assert_eq!(of("mlp.1.bias"), (0.1, true));
        // The printed job is read as the same job.
        let again = toml::from_str::<toml::Table>(&job.in_force().unwrap()).unwrap();
        assert_eq!(Job::from_value(again.into()).unwrap().train, job.train);
    }

    #[test]
    fn a_job_that_says_nothing_of_it_is_printed_as_before() {
        let printed = job("").unwrap().in_force().unwrap();
        for key in ["schedule", "wire", "accumulate", "average", "rates", "freeze", "loss"] {
            assert!(!printed.contains(key), "{key} in {printed}");
        }
    }

    #[test]
    fn losses_are_of_labels() {
        let job = job("[train.loss.'*']\nkind = 'focal'").unwrap();
        assert_eq!(job.loss_of("click"), LossSpec::Focal { gamma: 2.0, alpha: None });
        assert!(job.in_force().unwrap().contains("focal"));
    }

    #[test]
    fn settings_that_make_no_sense_name_their_key() {
        for (settings, words) in [
            ("[train]\nfreeze = ['mpl.*']", "train.freeze"),
            ("[train]\nfreeze_tables = ['usr']", "did you mean `user`"),
            ("[train]\nfreeze = ['*']\nfreeze_tables = ['*']", "leaves nothing to learn"),
            ("[[train.rates]]\nmatch = 'mlp.9.*'\nscale = 2", "train.rates[0].match"),
            ("[[train.rates]]\nmatch = 'mlp.*'", "needs `scale` or `lr`"),
            ("[[train.rates]]\nmatch = 'mlp.*'\nscale = 0", "train.rates[0].scale"),
            (
                "[[train.rates]]\nmatch = '*'\nscale = 2\n[[train.rates]]\nmatch = 'mlp.*'\nscale = 3",
                "train.rates[1].match",
            ),
            ("[train.schedule]", "train.schedule"),
            (
                "[train.schedule]\nwarmup_steps = 5\nwarmup = 2",
                "unknown key `train.schedule.warmup`",
            ),
            (
                "[train.schedule]\ndecay = { kind = 'step', every = 5, floor = 3 }",
                "train.schedule.decay.floor",
            ),
            ("[train.loss.clik]\nkind = 'bce'", "did you mean `click`"),
            (
                "[train.loss.click]\nkind = 'bce'\npositive_weight = 0\nnegative_weight = 0",
                "train.loss.click",
            ),
            (
                "[train.warm_start]\nregistry = 'r'\nversion = 3\npointer = 'stable'",
                "train.warm_start",
            ),
            ("[train.warm_start]\nversion = 3", "train.warm_start"),
            ("[train]\nitem_counts = 'table'", "train.item_counts"),
            ("[train.average]\nkind = 'ema'\ndecay = 1", "`train.average`: must be above 0"),
            ("[train]\naccumulate = 0", "train.accumulate"),
        ] {
            let error = job(settings).expect_err(settings).to_string();
            assert!(error.contains(words), "{settings}: {error}");
        }
    }
}
