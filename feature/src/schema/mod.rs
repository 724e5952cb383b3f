//! The schema: the columns of a row and their meaning.
//!
//! The schema is read from the sections `[features]`, `[labels]`, `[columns]` and `[side]` of a
//! job, and keeps their order. The columns of a [`Batch`](crate::Batch) follow this order, and so
//! do sums over features.

mod classes;
mod kinds;
mod label_config;
mod print;
mod raw_type;
mod read;
#[cfg(test)]
mod tests;
mod time;

use serde::{Deserialize, Serialize};

use crate::key::TableId;
use crate::moment::DateOrder;
use zillion_config::ConfigError;

pub use classes::Classes;
pub use kinds::{
    Buckets, FeatureKind, FeatureSpec, LabelKind, LabelSpec, NumericTransform, Pooling, SideRef,
    SideSpec,
};
pub use raw_type::RawType;
pub use time::TimeUnit;

/// A schema whose settings were validated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Schema {
    /// The features, in the order of the job.
    pub features: Vec<FeatureSpec>,
    /// The names of the tables, in the order in which features mention them first.
    pub tables: Vec<String>,
    /// The labels, in the order of the job.
    pub labels: Vec<LabelSpec>,
    /// The side tables, in the order of the job. Each of them is read by at least one feature.
    pub sides: Vec<SideSpec>,
    /// The column of sample weights, or `None` if all weights are 1.
    pub weight: Option<String>,
    /// The column of group ids for grouped metrics, or `None` if there are no groups.
    pub group: Option<String>,
    /// The column of event times, or `None` if rows have no event time.
    pub event_time: Option<String>,
    /// The unit of the event times, which count from the start of 1970. If it is `None`, the
    /// meaning of the event times is unknown.
    #[serde(default)]
    pub event_time_unit: Option<TimeUnit>,
    /// The order of day and month in event times such as `01.02.2024`, or `None` if such times are
    /// refused unless one of the two numbers is above 12.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_date_order: Option<DateOrder>,
}

impl Schema {
    /// Returns the features that look up a table, in the order of the columns in
    /// [`Batch::sparse`](crate::Batch).
    pub fn sparse(&self) -> impl Iterator<Item = &FeatureSpec> {
        self.features.iter().filter(|f| f.table().is_some())
    }

    /// Returns the numeric features, in the order of their columns in
    /// [`Batch::numeric`](crate::Batch). A vector has several columns.
    pub fn numeric(&self) -> impl Iterator<Item = &FeatureSpec> {
        self.features.iter().filter(|f| f.table().is_none())
    }

    /// Returns the number of numeric columns of a batch.
    pub fn numeric_width(&self) -> usize {
        self.features.iter().map(FeatureSpec::numeric_width).sum()
    }

    /// Returns the names of the numeric columns of a batch: that of the feature, or `name[i]` for
    /// float i of a vector.
    pub fn numeric_names(&self) -> Vec<String> {
        let names = |f: &FeatureSpec| match f.kind {
            FeatureKind::Vector { size, .. } => {
                (0..size).map(|i| format!("{}[{i}]", f.name)).collect()
            }
            _ => vec![f.name.clone()],
        };
        self.numeric().flat_map(names).collect()
    }

    /// Returns for each feature the position of its column among the sparse or numeric columns of a
    /// batch. For a vector, it is the position of its first column.
    pub fn column_positions(&self) -> Vec<usize> {
        let (mut sparse, mut numeric) = (0, 0);
        let next = |f: &FeatureSpec| {
            let (next, width) = match f.table() {
                Some(_) => (&mut sparse, 1),
                None => (&mut numeric, f.numeric_width()),
            };
            *next += width;
            *next - width
        };
        self.features.iter().map(next).collect()
    }

    /// Returns an error if a feature has a name such as `x[1]`, which is that of a float of a
    /// vector.
    fn refuse_float_names(&self) -> Result<(), ConfigError> {
        let is_float = |name: &str| {
            let place = name.strip_suffix(']').and_then(|name| name.rsplit_once('['));
            place.is_some_and(|(_, at)| !at.is_empty() && at.bytes().all(|b| b.is_ascii_digit()))
        };
        match self.features.iter().find(|feature| is_float(&feature.name)) {
            None => Ok(()),
            Some(feature) => Err(ConfigError::at(
                &format!("features.{}", feature.name),
                "is a name for a float of a vector; rename the feature",
            )),
        }
    }

    /// Returns the table of each sparse column.
    pub fn sparse_tables(&self) -> Vec<TableId> {
        self.features.iter().filter_map(FeatureSpec::table).collect()
    }

    /// Returns an error if two labels are always equal, because training would train the same task
    /// twice.
    fn refuse_equal_labels(&self) -> Result<(), ConfigError> {
        for (index, label) in self.labels.iter().enumerate() {
            let same = |l: &&LabelSpec| {
                (&l.column, l.at_least, &l.values, l.kind)
                    == (&label.column, label.at_least, &label.values, label.kind)
            };
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

    /// Returns an error if a label is also read as a feature. The model would then copy the label:
    /// its metrics would be perfect, and its predictions useless.
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
