//! The conversion of the section of a label to its specification.

use serde::{Deserialize, Serialize};
use toml::Value;
use zillion_config::ConfigError;

use super::{Classes, LabelKind, LabelSpec};
use crate::label_value::{LabelValues, OneOrMore};

/// The settings of a label.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LabelConfig {
    pub(super) column: Option<String>,
    pub(super) at_least: Option<f64>,
    pub(super) positive: Option<OneOrMore>,
    pub(super) negative: Option<OneOrMore>,
    pub(super) kind: Option<LabelKind>,
    pub(super) classes: Option<Vec<Value>>,
    pub(super) mean: Option<f64>,
    pub(super) weight: Option<f32>,
}

impl LabelConfig {
    pub(super) fn resolve(self, name: &str, path: &str) -> Result<LabelSpec, ConfigError> {
        let refuse =
            |key: &str, reason: &str| Err(ConfigError::at(&format!("{path}.{key}"), reason));
        if self.at_least.is_some_and(|threshold| !threshold.is_finite()) {
            return refuse("at_least", "must be finite");
        }
        let kind = self.kind.unwrap_or_default();
        if self.at_least.is_some() && !kind.is_binary() {
            return refuse("at_least", "makes the label 0 or 1, so `kind` must be \"binary\"");
        }
        let values = match (self.positive, self.negative) {
            (None, Some(_)) => {
                return refuse("negative", "needs `positive`, the value that makes the label 1");
            }
            (None, None) => None,
            (Some(_), _) if self.at_least.is_some() => {
                return refuse(
                    "positive",
                    "and `at_least` both make the label; remove one of them",
                );
            }
            (Some(_), _) if !kind.is_binary() => {
                return refuse("positive", "makes the label 0 or 1, so `kind` must be \"binary\"");
            }
            (Some(positive), negative) => match LabelValues::new(positive, negative) {
                Ok(values) => Some(values),
                Err((key, reason)) => return refuse(key, reason),
            },
        };
        let (is_mean, range): (fn(f64) -> bool, _) = match kind {
            LabelKind::Binary => (|mean| mean > 0.0 && mean < 1.0, "must be above 0 and below 1"),
            LabelKind::Number => (|mean| (mean as f32).is_finite(), "must be a finite float"),
            LabelKind::Count => (|mean| mean > 0.0 && mean.is_finite(), "must be above 0"),
            LabelKind::Class => (|_| false, "has no meaning for classes; remove it"),
        };
        if self.mean.is_some_and(|mean| !is_mean(mean)) {
            return refuse("mean", range);
        }
        if kind == LabelKind::Class && name.contains('=') {
            return refuse("kind", "needs a name of the label without `=`, which precedes a class");
        }
        let classes = match (self.classes.as_deref(), kind) {
            (Some(values), LabelKind::Class) => match Classes::read(values) {
                Ok(classes) => Some(classes),
                Err(reason) => return refuse("classes", &reason),
            },
            (Some(_), _) => return refuse("classes", "needs `kind = \"class\"`; set the kind"),
            (None, LabelKind::Class) => {
                return refuse(
                    "classes",
                    "is missing; list the values of the column, [\"a\", \"b\"]",
                );
            }
            (None, _) => None,
        };
        let weight = self.weight.unwrap_or(1.0);
        if !(weight.is_finite() && weight >= 0.0) {
            return refuse("weight", "must be finite and not negative");
        }
        Ok(LabelSpec {
            name: name.to_owned(),
            column: self.column.unwrap_or_else(|| name.to_owned()),
            at_least: self.at_least,
            values,
            kind,
            classes,
            mean: self.mean,
            weight,
        })
    }
}
