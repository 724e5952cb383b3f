//! The schema: which columns a row has and what each of them means.
//!
//! It is read from a job's `[features]`, `[labels]` and `[columns]` sections. Order is the order of the
//! file: columns of a [`Batch`](crate::Batch), and so sums over features, follow it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::config::{self, ConfigError, from_value};
use crate::error::SchemaError;
use crate::key::TableId;

/// A validated schema.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Schema {
    /// Features in job order.
    pub features: Vec<FeatureSpec>,
    /// Names of the tables, in order of first mention.
    pub tables: Vec<String>,
    /// Labels in job order.
    pub labels: Vec<LabelSpec>,
    /// Column of sample weights.
    pub weight: Option<String>,
    /// Column of group ids for grouped metrics.
    pub group: Option<String>,
    /// Column of event times.
    pub event_time: Option<String>,
}

/// One feature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeatureSpec {
    /// Name in the job.
    pub name: String,
    /// Column of the data.
    pub column: String,
    /// What it is.
    pub kind: FeatureKind,
}

/// What a feature is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeatureKind {
    /// One id a row.
    Id {
        /// Declared type of the raw value.
        raw: RawType,
        /// The table that its keys index.
        table: TableId,
    },
    /// Any number of ids a row, pooled.
    Ids {
        /// Declared type of the raw values.
        raw: RawType,
        /// The table that its keys index.
        table: TableId,
        /// How the rows of the ids become one vector.
        pooling: Pooling,
    },
    /// A number that the model sees as a number.
    Numeric {
        /// What happens to it first.
        transform: NumericTransform,
        /// What stands for a missing value, before the transform; `None`: a missing value is an error.
        missing: Option<f64>,
    },
    /// A number that the model sees as the id of its bucket.
    Bucketized {
        /// Where the buckets are.
        buckets: Buckets,
        /// The table that its keys index.
        table: TableId,
    },
}

/// Declared type of an id, so that 42 in a CSV, in Parquet and in JSON agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RawType {
    /// Signed 64-bit integers.
    #[default]
    I64,
    /// Unsigned 64-bit integers; a negative value is an error.
    U64,
    /// Text.
    String,
}

/// How several rows become one vector. An empty list pools to zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// The sum.
    #[default]
    Sum,
    /// The sum over n.
    Mean,
    /// The sum over √n.
    Sqrtn,
    /// The largest, element by element.
    Max,
}

/// What happens to a number before the model sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NumericTransform {
    /// Nothing.
    #[default]
    Raw,
    /// `sign(x) · ln(1 + |x|)`.
    Log1p,
    /// Minus the mean, over the standard deviation of the training data.
    Standardise,
}

/// Where the buckets of a bucketized feature are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Buckets {
    /// Given, ascending; n boundaries make n + 1 buckets.
    Boundaries(Vec<f32>),
    /// This many buckets of equal count, from the training data.
    Quantiles(u32),
}

/// One label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelSpec {
    /// Name of the task.
    pub name: String,
    /// Column of the data.
    pub column: String,
}

impl FeatureSpec {
    /// The feature's table, if it has one.
    pub fn table(&self) -> Option<TableId> {
        match self.kind {
            FeatureKind::Id { table, .. }
            | FeatureKind::Ids { table, .. }
            | FeatureKind::Bucketized { table, .. } => Some(table),
            FeatureKind::Numeric { .. } => None,
        }
    }

    /// How its rows are pooled; `None` for a feature with one value a row.
    pub fn pooling(&self) -> Option<Pooling> {
        match self.kind {
            FeatureKind::Ids { pooling, .. } => Some(pooling),
            _ => None,
        }
    }

    /// Whether its transform needs a first pass over the training data.
    pub fn needs_statistics(&self) -> bool {
        matches!(
            self.kind,
            FeatureKind::Numeric { transform: NumericTransform::Standardise, .. }
                | FeatureKind::Bucketized { buckets: Buckets::Quantiles(_), .. }
        )
    }
}

impl Schema {
    /// Reads and validates the schema of a job.
    pub fn from_job(job: &Value) -> Result<Self, SchemaError> {
        let mut schema = Self::default();
        for (name, value) in section_table(job, "features")? {
            let path = format!("features.{name}");
            let config: FeatureConfig = from_value(value, &path)?;
            let feature = config.resolve(name, value, &path, &mut schema.tables)?;
            schema.features.push(feature);
        }
        if schema.features.is_empty() {
            return Err(ConfigError::at("features", "a job needs at least one feature").into());
        }
        for (name, value) in section_table(job, "labels")? {
            let config: LabelConfig = from_value(value, &format!("labels.{name}"))?;
            let column = config.column.unwrap_or_else(|| name.clone());
            schema.labels.push(LabelSpec { name: name.clone(), column });
        }
        if schema.labels.is_empty() {
            return Err(ConfigError::at("labels", "a job needs at least one label").into());
        }
        let columns: ColumnsConfig = config::section(job, "columns")?;
        schema.weight = columns.weight;
        schema.group = columns.group;
        schema.event_time = columns.event_time;
        schema.refuse_label_leaks()?;
        Ok(schema)
    }

    /// Features that index a table, in order: the columns of [`Batch::sparse`](crate::Batch).
    pub fn sparse(&self) -> impl Iterator<Item = &FeatureSpec> {
        self.features.iter().filter(|f| f.table().is_some())
    }

    /// Numeric features, in order: the columns of [`Batch::numeric`](crate::Batch).
    pub fn numeric(&self) -> impl Iterator<Item = &FeatureSpec> {
        self.features.iter().filter(|f| f.table().is_none())
    }

    /// The table of each sparse column.
    pub fn sparse_tables(&self) -> Vec<TableId> {
        self.features.iter().filter_map(FeatureSpec::table).collect()
    }

    /// The sections that [`Schema::from_job`] reads, with every default written out.
    pub fn to_job(&self) -> Vec<(String, Value)> {
        let features = self.features.iter().map(|f| (f.name.clone(), self.feature_section(f)));
        let labels = self.labels.iter().map(|l| {
            let column = ("column".to_owned(), Value::from(l.column.clone()));
            (l.name.clone(), Value::Table(Table::from_iter([column])))
        });
        let columns =
            [("weight", &self.weight), ("group", &self.group), ("event_time", &self.event_time)];
        let columns = columns.into_iter().filter_map(|(role, column)| {
            column.as_ref().map(|c| (role.to_owned(), Value::from(c.clone())))
        });
        vec![
            ("features".to_owned(), Value::Table(features.collect())),
            ("labels".to_owned(), Value::Table(labels.collect())),
            ("columns".to_owned(), Value::Table(columns.collect())),
        ]
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
        }
        set("column", feature.column.clone().into());
        if let Some(table) = feature.table() {
            set("table", self.tables[table.index()].clone().into());
        }
        Value::Table(section)
    }

    /// A text that is equal for equal schemas: what manifests hash.
    pub fn canonical(&self) -> String {
        format!("{self:?}")
    }

    /// A label that is also a feature makes every metric perfect and the model worthless.
    fn refuse_label_leaks(&self) -> Result<(), ConfigError> {
        for label in &self.labels {
            if let Some(feature) = self.features.iter().find(|f| f.column == label.column) {
                return Err(ConfigError::at(
                    &format!("features.{}.column", feature.name),
                    format!(
                        "column `{}` is also label `{}`; a feature must not be the label",
                        label.column, label.name
                    ),
                ));
            }
        }
        Ok(())
    }
}

/// How a job file writes a setting of a closed vocabulary.
fn word(setting: &impl Serialize) -> Value {
    Value::try_from(setting).expect("a unit variant is a string")
}

fn section_table<'a>(
    job: &'a Value,
    key: &str,
) -> Result<Vec<(&'a String, &'a Value)>, ConfigError> {
    match job.get(key) {
        None => Ok(Vec::new()),
        Some(Value::Table(table)) => Ok(table.iter().collect()),
        Some(other) => {
            Err(ConfigError::at(key, format!("expected a table, found {}", other.type_str())))
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LabelConfig {
    column: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ColumnsConfig {
    weight: Option<String>,
    group: Option<String>,
    event_time: Option<String>,
}

/// Every key that some kind of feature has; [`FeatureConfig::resolve`] refuses those of other kinds.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FeatureConfig {
    kind: KindName,
    column: Option<String>,
    #[serde(rename = "type")]
    raw: Option<RawType>,
    table: Option<String>,
    pooling: Option<Pooling>,
    transform: Option<NumericTransform>,
    missing: Option<f64>,
    boundaries: Option<Vec<f32>>,
    buckets: Option<u32>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KindName {
    Id,
    Ids,
    Numeric,
    Bucketized,
}

impl KindName {
    fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Id => &["kind", "column", "type", "table"],
            Self::Ids => &["kind", "column", "type", "table", "pooling"],
            Self::Numeric => &["kind", "column", "transform", "missing"],
            Self::Bucketized => &["kind", "column", "table", "boundaries", "buckets"],
        }
    }
}

impl FeatureConfig {
    fn resolve(
        self,
        name: &str,
        value: &Value,
        path: &str,
        tables: &mut Vec<String>,
    ) -> Result<FeatureSpec, ConfigError> {
        let allowed = self.kind.keys();
        let given: BTreeSet<&String> =
            value.as_table().into_iter().flat_map(|t| t.keys()).collect();
        if let Some(key) = given.into_iter().find(|k| !allowed.contains(&k.as_str())) {
            return Err(ConfigError::unknown_key(path, key, allowed));
        }
        let mut table = || table_id(tables, self.table.as_deref().unwrap_or(name), path);
        let kind = match self.kind {
            KindName::Id => FeatureKind::Id { raw: self.raw.unwrap_or_default(), table: table()? },
            KindName::Ids => FeatureKind::Ids {
                raw: self.raw.unwrap_or_default(),
                table: table()?,
                pooling: self.pooling.unwrap_or_default(),
            },
            KindName::Numeric => {
                if self.missing.is_some_and(|m| !m.is_finite()) {
                    return Err(ConfigError::at(&format!("{path}.missing"), "must be finite"));
                }
                FeatureKind::Numeric {
                    transform: self.transform.unwrap_or_default(),
                    missing: self.missing,
                }
            }
            KindName::Bucketized => FeatureKind::Bucketized {
                buckets: buckets(self.boundaries, self.buckets, path)?,
                table: table()?,
            },
        };
        let column = self.column.unwrap_or_else(|| name.to_owned());
        Ok(FeatureSpec { name: name.to_owned(), column, kind })
    }
}

fn table_id(tables: &mut Vec<String>, name: &str, path: &str) -> Result<TableId, ConfigError> {
    let position = tables.iter().position(|t| t == name).unwrap_or_else(|| {
        tables.push(name.to_owned());
        tables.len() - 1
    });
    u16::try_from(position).map(TableId).map_err(|_| {
        ConfigError::at(&format!("{path}.table"), "a job has at most 65,536 tables; share some")
    })
}

fn buckets(
    boundaries: Option<Vec<f32>>,
    quantiles: Option<u32>,
    path: &str,
) -> Result<Buckets, ConfigError> {
    match (boundaries, quantiles) {
        (Some(_), Some(_)) => {
            Err(ConfigError::at(path, "give `boundaries` or `buckets`, not both"))
        }
        (None, None) => Err(ConfigError::at(
            path,
            "a bucketized feature needs `boundaries = [..]` or `buckets = n` (equal counts)",
        )),
        (Some(b), None) => {
            let ascending = b.windows(2).all(|w| w[0] < w[1]) && b.iter().all(|x| x.is_finite());
            if b.is_empty() || !ascending {
                let message = "must be finite, ascending and not empty";
                return Err(ConfigError::at(&format!("{path}.boundaries"), message));
            }
            Ok(Buckets::Boundaries(b))
        }
        (None, Some(n)) if n < 2 => {
            Err(ConfigError::at(&format!("{path}.buckets"), "must be at least 2"))
        }
        (None, Some(n)) => Ok(Buckets::Quantiles(n)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Schema, String> {
        let job: Value = toml::from_str::<toml::Table>(text).unwrap().into();
        Schema::from_job(&job).map_err(|e| e.to_string())
    }

    #[test]
    fn a_schema_keeps_the_order_of_the_file_and_shares_tables() {
        let schema = read(
            r#"
            [features.zeta]
            kind = "id"
            table = "ids"
            [features.age]
            kind = "numeric"
            transform = "log1p"
            missing = 0
            [features.alpha]
            kind = "ids"
            type = "string"
            table = "ids"
            pooling = "sqrtn"
            column = "tags"
            [features.price]
            kind = "bucketized"
            boundaries = [0, 1.5]
            [labels.click]
            column = "label"
            [columns]
            group = "user"
            "#,
        )
        .unwrap();
        assert_eq!(
            schema.features.iter().map(|f| f.name.as_str()).collect::<Vec<_>>(),
            ["zeta", "age", "alpha", "price"]
        );
        assert_eq!(schema.tables, ["ids", "price"]);
        assert_eq!(schema.sparse_tables(), [TableId(0), TableId(0), TableId(1)]);
        assert_eq!(schema.numeric().count(), 1);
        assert_eq!(schema.features[2].pooling(), Some(Pooling::Sqrtn));
        assert_eq!(schema.features[2].column, "tags");
        assert_eq!(schema.group.as_deref(), Some("user"));
        let printed: Value = Value::Table(schema.to_job().into_iter().collect());
        assert_eq!(Schema::from_job(&printed).unwrap(), schema);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let with = |feature: &str| format!("[features.f]\n{feature}\n[labels.y]");
        for (text, message) in [
            (
                with("kind = 'idd'"),
                "unknown value \"idd\" for `features.f.kind`; did you mean `id`?",
            ),
            (
                with("kind = 'id'\npooling = 'sum'"),
                "unknown key `features.f.pooling`; expected one of `column`, `kind`, `table`, `type`",
            ),
            (
                with("kind = 'ids'\npoolin = 'sum'"),
                "unknown key `features.f.poolin`; did you mean `pooling`?",
            ),
            (
                with("kind = 'ids'\npooling = 'avg'"),
                "unknown value \"avg\" for `features.f.pooling`; expected one of `max`, `mean`, `sqrtn`, `sum`",
            ),
            (
                with("kind = 'bucketized'"),
                "`features.f`: a bucketized feature needs `boundaries = [..]` or `buckets = n` (equal counts)",
            ),
            (
                with("kind = 'bucketized'\nboundaries = [2, 1]"),
                "`features.f.boundaries`: must be finite, ascending and not empty",
            ),
            (with("kind = 'numeric'\nmissing = inf"), "`features.f.missing`: must be finite"),
            (
                with("kind = 'id'\ncolumn = 'y'"),
                "`features.f.column`: column `y` is also label `y`; a feature must not be the label",
            ),
            ("[labels.y]".to_owned(), "`features`: a job needs at least one feature"),
            ("[features.f]\nkind = 'id'".to_owned(), "`labels`: a job needs at least one label"),
            ("features = 3".to_owned(), "`features`: expected a table, found integer"),
        ] {
            assert_eq!(read(&text).unwrap_err(), message, "{text}");
        }
    }
}
