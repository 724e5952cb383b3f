//! The schema: the columns of a row and the meaning of each.
//!
//! The schema is read from a job's `[features]`, `[labels]`, `[columns]` and `[side]` sections.
//! Their order is the order of the file: columns of a [`Batch`](crate::Batch), and so sums over
//! features, follow it.

mod kinds;
mod print;
mod read;
#[cfg(test)]
mod tests;
mod time;

use serde::{Deserialize, Serialize};

use crate::key::TableId;
use zillion_config::ConfigError;

pub use kinds::{
    Buckets, FeatureKind, FeatureSpec, LabelSpec, NumericTransform, Pooling, RawType, SideRef,
    SideSpec,
};
pub use time::TimeUnit;

/// A schema that has been validated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Schema {
    /// The features, in job order.
    pub features: Vec<FeatureSpec>,
    /// The names of the tables, in order of first mention.
    pub tables: Vec<String>,
    /// The labels, in job order.
    pub labels: Vec<LabelSpec>,
    /// The side tables, in job order; at least one feature reads each of them.
    pub sides: Vec<SideSpec>,
    /// The column of sample weights.
    pub weight: Option<String>,
    /// The column of group ids for grouped metrics.
    pub group: Option<String>,
    /// The column of event times.
    pub event_time: Option<String>,
    /// The unit in which the event times count from 1970; without a unit, the event times are
    /// numbers of unknown meaning.
    #[serde(default)]
    pub event_time_unit: Option<TimeUnit>,
}

impl Schema {
    /// Returns the features that index a table, in order: the columns of
    /// [`Batch::sparse`](crate::Batch).
    pub fn sparse(&self) -> impl Iterator<Item = &FeatureSpec> {
        self.features.iter().filter(|f| f.table().is_some())
    }

    /// Returns the numeric features, in order: the columns of [`Batch::numeric`](crate::Batch).
    pub fn numeric(&self) -> impl Iterator<Item = &FeatureSpec> {
        self.features.iter().filter(|f| f.table().is_none())
    }

    /// Returns the position of each feature among the sparse or the numeric columns of a batch.
    pub fn column_positions(&self) -> Vec<usize> {
        let (mut sparse, mut numeric) = (0.., 0..);
        let next = |f: &FeatureSpec| match f.table() {
            Some(_) => sparse.next(),
            None => numeric.next(),
        };
        self.features.iter().filter_map(next).collect()
    }

    /// Returns the table of each sparse column.
    pub fn sparse_tables(&self) -> Vec<TableId> {
        self.features.iter().filter_map(FeatureSpec::table).collect()
    }

    /// Refuses two labels that are always equal, because they would be one task that is trained
    /// twice.
    fn refuse_equal_labels(&self) -> Result<(), ConfigError> {
        for (index, label) in self.labels.iter().enumerate() {
            let same = |l: &&LabelSpec| l.column == label.column && l.at_least == label.at_least;
            if let Some(other) = self.labels[..index].iter().find(same) {
                return Err(ConfigError::at(
                    &format!("labels.{}", label.name),
                    format!(
                        "is the same as label `{}`, column `{}`; give it `column = \"..\"` or another \
                         `at_least = <number>`",
                        other.name, label.column
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Refuses a label that is also a feature, because the feature would make every metric perfect
    /// and the model worthless.
    fn refuse_label_leaks(&self) -> Result<(), ConfigError> {
        for label in &self.labels {
            for feature in self.features.iter().filter(|f| !f.is_cross()) {
                let (key, column) = match &feature.side {
                    Some(side) => ("by", &side.by),
                    None => ("column", &feature.column),
                };
                if *column == label.column {
                    return Err(ConfigError::at(
                        &format!("features.{}.{key}", feature.name),
                        format!(
                            "column `{column}` is also label `{}`; a feature must not be the label",
                            label.name
                        ),
                    ));
                }
            }
        }
        Ok(())
    }
}
