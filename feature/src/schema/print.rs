//! The conversion of a schema back to the sections that it was read from.

use serde::Serialize;
use toml::{Table, Value};

use super::{Buckets, FeatureKind, FeatureSpec, LabelSpec, Schema, SideSpec};

impl Schema {
    /// Returns the sections that [`Schema::from_job`] reads, with every default written out.
    pub fn to_job(&self) -> Vec<(String, Value)> {
        let features = self.features.iter().map(|f| (f.name.clone(), self.feature_section(f)));
        let columns =
            [("weight", &self.weight), ("group", &self.group), ("event_time", &self.event_time)];
        let columns = columns.into_iter().filter_map(|(role, column)| {
            column.as_ref().map(|c| (role.to_owned(), Value::from(c.clone())))
        });
        let unit = self.event_time_unit.as_ref();
        let columns = columns.chain(unit.map(|unit| ("event_time_unit".to_owned(), word(unit))));
        let mut sections = vec![
            ("features".to_owned(), Value::Table(features.collect())),
            ("labels".to_owned(), Value::Table(self.labels.iter().map(label_section).collect())),
            ("columns".to_owned(), Value::Table(columns.collect())),
        ];
        if !self.sides.is_empty() {
            let sides = self.sides.iter().map(side_section);
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
                set("type", word(raw));
            }
            FeatureKind::Ids { raw, pooling, .. } => {
                set("kind", "ids".into());
                set("type", word(raw));
                set("pooling", word(pooling));
            }
            FeatureKind::Sequence { raw, max_len, pooling, .. } => {
                set("kind", "sequence".into());
                set("type", word(raw));
                set("max_len", i64::from(*max_len).into());
                set("pooling", word(pooling));
            }
            FeatureKind::Numeric { transform, missing } => {
                set("kind", "numeric".into());
                set("transform", word(transform));
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

fn label_section(label: &LabelSpec) -> (String, Value) {
    let mut section = Table::new();
    section.insert("column".to_owned(), label.column.clone().into());
    if let Some(threshold) = label.at_least {
        section.insert("at_least".to_owned(), threshold.into());
    }
    if label.weight != 1.0 {
        section.insert("weight".to_owned(), f64::from(label.weight).into());
    }
    (label.name.clone(), Value::Table(section))
}

fn side_section(side: &SideSpec) -> (String, Value) {
    let section = [
        ("path".to_owned(), side.path.clone().into()),
        ("key".to_owned(), side.key.clone().into()),
        ("type".to_owned(), word(&side.raw)),
    ];
    (side.name.clone(), Value::Table(Table::from_iter(section)))
}

/// Returns the spelling in a job file of a setting that is an enum.
fn word(setting: &impl Serialize) -> Value {
    Value::try_from(setting).expect("a unit variant is a string")
}
