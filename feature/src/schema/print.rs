//! The conversion of a schema to the sections of a job.

use serde::Serialize;
use toml::{Table, Value};

use super::label_config::LabelConfig;
use super::read::{ColumnsConfig, SideConfig};
use super::{Buckets, FeatureKind, FeatureSpec, LabelSpec, Schema, SideSpec};

impl Schema {
    /// Returns the sections of a job. [`Schema::from_job`] reads them as this schema. Default
    /// values are included.
    pub fn to_job(&self) -> Vec<(String, Value)> {
        let features = self.features.iter().map(|f| (f.name.clone(), self.feature_section(f)));
        let labels = self.labels.iter().map(|l| (l.name.clone(), to_value(&label_config(l))));
        let columns = ColumnsConfig {
            weight: self.weight.clone(),
            group: self.group.clone(),
            event_time: self.event_time.clone(),
            event_time_unit: self.event_time_unit,
            event_date_order: self.event_date_order,
        };
        let mut sections = vec![
            ("features".to_owned(), Value::Table(features.collect())),
            ("labels".to_owned(), Value::Table(labels.collect())),
            ("columns".to_owned(), to_value(&columns)),
        ];
        if !self.sides.is_empty() {
            let sides = self.sides.iter().map(|s| (s.name.clone(), to_value(&side_config(s))));
            sections.push(("side".to_owned(), Value::Table(sides.collect())));
        }
        sections
    }

    fn feature_section(&self, feature: &FeatureSpec) -> Value {
        let mut section = Table::new();
        let mut set = |key: &str, value: Value| section.insert(key.to_owned(), value);
        match &feature.kind {
            FeatureKind::Id { raw, .. } => {
                set("kind", "id".into());
                // The type of a derived number is not a setting.
                if feature.time.is_none() {
                    set("type", to_value(raw));
                }
            }
            FeatureKind::Ids { raw, pooling, .. } => {
                set("kind", "ids".into());
                set("type", to_value(raw));
                set("pooling", to_value(pooling));
            }
            FeatureKind::Sequence { raw, max_len, pooling, .. } => {
                set("kind", "sequence".into());
                set("type", to_value(raw));
                set("max_len", i64::from(*max_len).into());
                set("pooling", to_value(pooling));
            }
            FeatureKind::Numeric { transform, missing } => {
                set("kind", "numeric".into());
                set("transform", to_value(transform));
                if let Some(missing) = missing {
                    set("missing", (*missing).into());
                }
            }
            FeatureKind::Vector { size, missing } => {
                set("kind", "vector".into());
                set("size", i64::from(*size).into());
                if let Some(missing) = missing {
                    set("missing", (*missing).into());
                }
            }
            FeatureKind::Bucketized { buckets, .. } => {
                set("kind", "bucketized".into());
                match buckets {
                    Buckets::Boundaries(b) => {
                        let b: Vec<Value> = b.iter().map(|&x| f64::from(x).into()).collect();
                        set("boundaries", b.into())
                    }
                    Buckets::Quantiles(n) => set("buckets", i64::from(*n).into()),
                };
            }
            FeatureKind::Cross { of, .. } => {
                set("kind", "cross".into());
                let names: Vec<Value> =
                    of.iter().map(|&f| self.features[f].name.clone().into()).collect();
                set("of", names.into());
            }
        }
        if !feature.is_cross() {
            set("column", feature.column.clone().into());
        }
        if let Some(time) = &feature.time {
            set("derive", to_value(&time.derive));
            set("zone", to_value(&time.zone));
            if let Some(unit) = time.unit {
                set("time_unit", to_value(&unit));
            }
            if let Some(order) = time.order {
                set("date_order", to_value(&order));
            }
        }
        if let Some(side) = &feature.side {
            set("side", self.sides[side.side].name.clone().into());
            set("by", side.by.clone().into());
        }
        if let Some(table) = feature.table() {
            set("table", self.tables[table.index()].clone().into());
        }
        Value::Table(section)
    }
}

fn label_config(label: &LabelSpec) -> LabelConfig {
    let weight = (label.weight != 1.0).then_some(label.weight);
    let kind = (!label.kind.is_binary()).then_some(label.kind);
    let (column, at_least) = (Some(label.column.clone()), label.at_least);
    let values = label.values.as_ref();
    let positive = values.map(|values| values.positive.clone());
    let negative = values.and_then(|values| values.negative.clone());
    let classes = label.classes.as_ref().map(super::Classes::to_values);
    LabelConfig { column, at_least, positive, negative, kind, classes, mean: label.mean, weight }
}

fn side_config(side: &SideSpec) -> SideConfig {
    SideConfig { path: side.path.clone(), key: side.key.clone(), raw: side.raw }
}

/// Returns settings in the form of a job file, without the settings that have no value.
fn to_value(settings: &impl Serialize) -> Value {
    Value::try_from(settings).expect("settings are strings, numbers and tables of them")
}
