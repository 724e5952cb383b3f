//! The conversion of the sections of a job to a schema.

use serde::{Deserialize, Serialize};
use toml::Value;

use super::label_config::LabelConfig;
use super::{
    Buckets, FeatureKind, FeatureSpec, NumericTransform, Pooling, RawType, Schema, SideRef,
    SideSpec, TimeUnit,
};
use crate::error::SchemaError;
use crate::key::TableId;
use crate::moment::{DateOrder, TimePart, TimeRule, Zone};
use zillion_config::{ConfigError, from_value};

/// The largest number of floats of a vector.
const LARGEST_VECTOR: u32 = 4096;

impl Schema {
    /// Reads and validates the schema of a job.
    ///
    /// # Errors
    /// Returns an error if a section contains an unknown key or a value that is not allowed.
    pub fn from_job(job: &Value) -> Result<Self, SchemaError> {
        let mut schema = Self::default();
        for (name, value) in section_table(job, "side")? {
            let SideConfig { path, key, raw } = from_value(value, &format!("side.{name}"))?;
            schema.sides.push(SideSpec { name: name.clone(), path, key, raw });
        }
        let features = section_table(job, "features")?;
        let names: Vec<&str> = features.iter().map(|(name, _)| name.as_str()).collect();
        for (name, value) in &features {
            let path = format!("features.{name}");
            let config: FeatureConfig = from_value(value, &path)?;
            config.refuse_foreign_keys(value, &path)?;
            let feature = Resolver { schema: &mut schema, names: &names, name, path: &path }
                .feature(config)?;
            schema.features.push(feature);
        }
        if schema.features.is_empty() {
            return Err(ConfigError::at(
                "features",
                "a job needs at least one feature; add a section `[features.NAME]`",
            )
            .into());
        }
        for (name, value) in section_table(job, "labels")? {
            let path = format!("labels.{name}");
            let config: LabelConfig = from_value(value, &path)?;
            schema.labels.push(config.resolve(name, &path)?);
        }
        let columns: ColumnsConfig = zillion_config::section(job, "columns")?;
        schema.weight = columns.weight;
        schema.group = columns.group;
        if columns.event_time_unit.is_some() && columns.event_time.is_none() {
            let message = "the job names no column of event times; set `columns.event_time`, or remove the unit";
            return Err(ConfigError::at("columns.event_time_unit", message).into());
        }
        if columns.event_date_order.is_some() && columns.event_time_unit.is_none() {
            let message = "without a unit, event times are whole numbers and no dates; set `columns.event_time_unit`, or remove the order";
            return Err(ConfigError::at("columns.event_date_order", message).into());
        }
        schema.event_time = columns.event_time;
        schema.event_time_unit = columns.event_time_unit;
        schema.event_date_order = columns.event_date_order;
        schema.refuse_unused_sides()?;
        schema.refuse_equal_labels()?;
        schema.refuse_label_leaks()?;
        schema.refuse_float_names()?;
        Ok(schema)
    }

    fn refuse_unused_sides(&self) -> Result<(), ConfigError> {
        for (index, side) in self.sides.iter().enumerate() {
            let reads = |f: &FeatureSpec| f.side.as_ref().is_some_and(|s| s.side == index);
            if !self.features.iter().any(reads) {
                let message = format!(
                    "no feature reads this side table; give a feature `side = \"{}\"`, or remove the section",
                    side.name
                );
                return Err(ConfigError::at(&format!("side.{}", side.name), message));
            }
        }
        Ok(())
    }
}

fn section_table<'a>(
    job: &'a Value,
    key: &str,
) -> Result<Vec<(&'a String, &'a Value)>, ConfigError> {
    match job.get(key) {
        None => Ok(Vec::new()),
        Some(Value::Table(table)) => Ok(table.iter().collect()),
        Some(other) => Err(ConfigError::at(
            key,
            format!("expected a table, found {}; write it as a section", other.type_str()),
        )),
    }
}

#[derive(Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ColumnsConfig {
    pub(super) weight: Option<String>,
    pub(super) group: Option<String>,
    pub(super) event_time: Option<String>,
    pub(super) event_time_unit: Option<TimeUnit>,
    pub(super) event_date_order: Option<DateOrder>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SideConfig {
    pub(super) path: String,
    pub(super) key: String,
    #[serde(rename = "type", default)]
    pub(super) raw: RawType,
}

/// The settings of all kinds of features. A setting that does not belong to the kind of the feature
/// is refused.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FeatureConfig {
    kind: KindName,
    column: Option<String>,
    #[serde(rename = "type")]
    raw: Option<RawType>,
    table: Option<String>,
    pooling: Option<Pooling>,
    max_len: Option<u32>,
    transform: Option<NumericTransform>,
    missing: Option<f64>,
    size: Option<u32>,
    boundaries: Option<Vec<f32>>,
    buckets: Option<u32>,
    of: Option<Vec<String>>,
    side: Option<String>,
    by: Option<String>,
    derive: Option<TimePart>,
    time_unit: Option<TimeUnit>,
    zone: Option<Zone>,
    date_order: Option<DateOrder>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KindName {
    Id,
    Ids,
    Sequence,
    Numeric,
    Vector,
    Bucketized,
    Cross,
}

impl KindName {
    fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Id => &[
                "kind",
                "column",
                "side",
                "by",
                "type",
                "table",
                "derive",
                "time_unit",
                "zone",
                "date_order",
            ],
            Self::Ids => &["kind", "column", "side", "by", "type", "table", "pooling"],
            Self::Sequence => {
                &["kind", "column", "side", "by", "type", "table", "max_len", "pooling"]
            }
            Self::Numeric => &[
                "kind",
                "column",
                "side",
                "by",
                "transform",
                "missing",
                "derive",
                "time_unit",
                "zone",
                "date_order",
            ],
            Self::Bucketized => &[
                "kind",
                "column",
                "side",
                "by",
                "table",
                "boundaries",
                "buckets",
                "derive",
                "time_unit",
                "zone",
                "date_order",
            ],
            Self::Vector => &["kind", "column", "side", "by", "size", "missing"],
            Self::Cross => &["kind", "of", "table"],
        }
    }
}

impl FeatureConfig {
    fn refuse_foreign_keys(&self, value: &Value, path: &str) -> Result<(), ConfigError> {
        let allowed = self.kind.keys();
        let given = value.as_table().into_iter().flat_map(|table| table.keys());
        match given.filter(|key| !allowed.contains(&key.as_str())).min() {
            Some(key) => Err(ConfigError::unknown_key(path, key, allowed)),
            None => Ok(()),
        }
    }
}

/// The state of the conversion of one feature section: the parts of the job and of the schema that
/// the section refers to.
struct Resolver<'a> {
    /// The schema with the sections that have been read so far.
    schema: &'a mut Schema,
    /// The names of all features, including the features that are read later.
    names: &'a [&'a str],
    name: &'a str,
    path: &'a str,
}

impl Resolver<'_> {
    fn feature(mut self, config: FeatureConfig) -> Result<FeatureSpec, ConfigError> {
        let time = self.time(&config)?;
        let raw = config.raw.unwrap_or_default();
        let side = self.side(config.side, config.by)?;
        let kind = match config.kind {
            KindName::Id => FeatureKind::Id { raw, table: self.table(config.table)? },
            KindName::Ids => FeatureKind::Ids {
                raw,
                table: self.table(config.table)?,
                pooling: config.pooling.unwrap_or_default(),
            },
            KindName::Sequence => FeatureKind::Sequence {
                raw,
                table: self.table(config.table)?,
                max_len: self.max_len(config.max_len)?,
                // With a sum, the length of a history would have more influence than its contents.
                pooling: config.pooling.unwrap_or(Pooling::Mean),
            },
            KindName::Numeric => {
                if config.missing.is_some_and(|m| !m.is_finite()) {
                    return Err(self.refuse("missing", "must be finite"));
                }
                FeatureKind::Numeric {
                    transform: config.transform.unwrap_or_default(),
                    missing: config.missing,
                }
            }
            KindName::Vector => {
                if side.is_some() {
                    return Err(self.refuse(
                        "side",
                        "has no vectors; write the vectors into the data, one in each row",
                    ));
                }
                self.vector(config.size, config.missing)?
            }
            KindName::Bucketized => FeatureKind::Bucketized {
                buckets: self.buckets(config.boundaries, config.buckets)?,
                table: self.table(config.table)?,
            },
            KindName::Cross => FeatureKind::Cross {
                of: self.members(config.of.unwrap_or_default())?,
                table: self.table(config.table)?,
            },
        };
        let column = config.column.unwrap_or_else(|| self.name.to_owned());
        Ok(FeatureSpec { name: self.name.to_owned(), column, kind, side, time })
    }

    /// Returns the rule of a feature that derives a number from a column of times.
    fn time(&self, config: &FeatureConfig) -> Result<Option<TimeRule>, ConfigError> {
        let Some(derive) = config.derive else {
            let keys = [
                ("time_unit", config.time_unit.is_some()),
                ("zone", config.zone.is_some()),
                ("date_order", config.date_order.is_some()),
            ];
            return match keys.iter().find(|(_, is_given)| *is_given) {
                Some((key, _)) => Err(self.refuse(
                    key,
                    "has no effect without `derive`; add `derive = \"hour\"` or another part of \
                     the time, or remove the key",
                )),
                None => Ok(None),
            };
        };
        if config.raw.is_some() {
            return Err(self.refuse(
                "type",
                "is that of ids in the data, but a derived number is \
                                            whole by itself; remove the key",
            ));
        }
        Ok(Some(TimeRule {
            derive,
            unit: config.time_unit,
            zone: config.zone.unwrap_or_default(),
            order: config.date_order,
        }))
    }

    fn refuse(&self, key: &str, message: impl Into<String>) -> ConfigError {
        ConfigError::at(&format!("{}.{key}", self.path), message)
    }

    fn table(&mut self, name: Option<String>) -> Result<TableId, ConfigError> {
        let name = name.as_deref().unwrap_or(self.name);
        let tables = &mut self.schema.tables;
        let position = tables.iter().position(|t| t == name).unwrap_or_else(|| {
            tables.push(name.to_owned());
            tables.len() - 1
        });
        u16::try_from(position).map(TableId).map_err(|_| {
            self.refuse("table", "the job has more than 65,536 tables; let features share a table")
        })
    }

    fn side(
        &self,
        name: Option<String>,
        by: Option<String>,
    ) -> Result<Option<SideRef>, ConfigError> {
        let Some(name) = name else {
            return match by {
                Some(_) => Err(self.refuse(
                    "by",
                    "has no effect without a side table; add `side = \"..\"`, or remove `by`",
                )),
                None => Ok(None),
            };
        };
        let sides = &self.schema.sides;
        let Some(side) = sides.iter().position(|s| s.name == name) else {
            let valid: Vec<&str> = sides.iter().map(|s| s.name.as_str()).collect();
            if valid.is_empty() {
                return Err(self.refuse(
                    "side",
                    format!(
                        "the job has no side tables; add `[side.{name}]` with `path` and `key`"
                    ),
                ));
            }
            return Err(ConfigError::unknown_value(&format!("{}.side", self.path), &name, &valid));
        };
        Ok(Some(SideRef { side, by: by.unwrap_or_else(|| sides[side].key.clone()) }))
    }

    fn vector(&self, size: Option<u32>, missing: Option<f64>) -> Result<FeatureKind, ConfigError> {
        let Some(size) = size else {
            return Err(ConfigError::at(
                self.path,
                "a vector needs `size`; set `size = n` to the number of floats in each row",
            ));
        };
        if !(1..=LARGEST_VECTOR).contains(&size) {
            return Err(self.refuse("size", format!("must be from 1 to {LARGEST_VECTOR}")));
        }
        if missing.is_some_and(|x| !(x as f32).is_finite()) {
            return Err(self.refuse("missing", "must be finite as a 32-bit float"));
        }
        Ok(FeatureKind::Vector { size, missing })
    }

    fn max_len(&self, max_len: Option<u32>) -> Result<u32, ConfigError> {
        match max_len {
            None => Err(ConfigError::at(
                self.path,
                "a sequence needs `max_len`; set `max_len = n` to keep the most recent n values",
            )),
            Some(0) => Err(self.refuse("max_len", "must be at least 1")),
            Some(n) => Ok(n),
        }
    }

    fn buckets(
        &self,
        boundaries: Option<Vec<f32>>,
        quantiles: Option<u32>,
    ) -> Result<Buckets, ConfigError> {
        match (boundaries, quantiles) {
            (Some(_), Some(_)) => Err(ConfigError::at(
                self.path,
                "`boundaries` and `buckets` are both set; remove \
                                                one of them",
            )),
            (None, None) => Err(ConfigError::at(
                self.path,
                "a bucketized feature needs `boundaries` or `buckets`; set `boundaries = [..]`, \
                 or `buckets = n` for buckets of equal counts",
            )),
            (Some(b), None) => {
                let ascending =
                    b.windows(2).all(|w| w[0] < w[1]) && b.iter().all(|x| x.is_finite());
                if b.is_empty() || !ascending {
                    let message = "must be finite, ascending and not empty";
                    return Err(self.refuse("boundaries", message));
                }
                Ok(Buckets::Boundaries(b))
            }
            (None, Some(n)) if n < 2 => Err(self.refuse("buckets", "must be at least 2")),
            (None, Some(n)) => Ok(Buckets::Quantiles(n)),
        }
    }

    /// Returns the positions in the schema of the members of a cross. `of` holds their names.
    fn members(&self, of: Vec<String>) -> Result<Vec<usize>, ConfigError> {
        let mut members = Vec::with_capacity(of.len());
        for name in &of {
            let member = self.member(name)?;
            if members.contains(&member) {
                return Err(self.refuse("of", format!("`{name}` is named twice; name it once")));
            }
            members.push(member);
        }
        if members.len() < 2 {
            let message = "a cross needs at least two features; set `of = [\"..\", \"..\"]`";
            return Err(self.refuse("of", message));
        }
        Ok(members)
    }

    fn member(&self, name: &str) -> Result<usize, ConfigError> {
        if name == self.name {
            return Err(self.refuse("of", "a cross cannot be its own member; name other features"));
        }
        let Some(member) = self.names.iter().position(|n| *n == name) else {
            let path = format!("{}.of", self.path);
            let others: Vec<&str> =
                self.names.iter().copied().filter(|n| *n != self.name).collect();
            return Err(ConfigError::unknown_value(&path, name, &others));
        };
        let Some(feature) = self.schema.features.get(member) else {
            let message =
                format!("`{name}` is declared after the cross; declare it before the cross");
            return Err(self.refuse("of", message));
        };
        let problem = match feature.kind {
            FeatureKind::Vector { .. } => {
                "is a vector, but a cross needs ids; name another feature"
            }
            FeatureKind::Numeric { .. } => {
                "is a number, but a cross needs ids; declare `kind = \"bucketized\"` for it"
            }
            FeatureKind::Ids { .. } | FeatureKind::Sequence { .. } => {
                "may have several values in a row, but a cross needs one; name another feature"
            }
            _ => return Ok(member),
        };
        Err(self.refuse("of", format!("`{name}` {problem}")))
    }
}
