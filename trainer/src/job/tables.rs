//! The `[tables]` section: what each table's rows are, given what the model reads of them.
//!
//! `[tables."*"]` holds settings for every table; a table's own section overrides them key by key. A
//! model that has a wide part reads a second segment of one float, `linear`; it learns by the same
//! rules as the vector unless the job says otherwise in `linear = { .. }`.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::{Table, Value};
use zillion_embedding::{
    Admission, ByteSize, Eviction, InitializerSpec, OptimizerSpec, PinnedId, Scope, SegmentSpec,
    TableSpec, Unknown, UseStatistics,
};
use zillion_feature::Schema;
use zillion_feature::config::{ConfigError, from_value, merge};
use zillion_nn::zoo::Needs;

use super::pinned;
use crate::error::{Error, Result};

const EVERY_TABLE: &str = "*";

/// One table's settings in a job file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TableConfig {
    /// Floats of the vector segment.
    pub dim: usize,
    /// What a new row holds.
    pub initializer: InitializerSpec,
    /// How rows learn.
    pub optimizer: OptimizerSpec,
    /// Strength of the regulariser `(l2 / 2) · |w|²`.
    pub l2: f32,
    /// Which rows the regulariser pulls on; absent: the whole table if it is dense, else those touched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l2_scope: Option<Scope>,
    /// A fixed vocabulary, filled from the training data before the first step.
    pub dense: bool,
    /// Rows that the table may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_rows: Option<u64>,
    /// Memory that a dynamic table may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<ByteSize>,
    /// What evaluation reads for an unknown key.
    pub unknown: Unknown,
    /// When a key gets a row.
    #[serde(skip_serializing_if = "Admission::is_all")]
    pub admission: Admission,
    /// When the row goes.
    #[serde(skip_serializing_if = "Eviction::is_never")]
    pub eviction: Eviction,
    /// Ids whose rows never go.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pinned: Vec<PinnedId>,
    /// A file with more of them, one a line, relative to `data.root`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned_file: Option<PathBuf>,
    /// Shows and clicks of each row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statistics: Option<UseStatistics>,
    /// Settings of the linear segment that differ from the vector's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linear: Option<LinearConfig>,
}

/// Settings of the linear segment that differ from the vector's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinearConfig {
    /// What a new weight is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initializer: Option<InitializerSpec>,
    /// How it learns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<OptimizerSpec>,
    /// Strength of its regulariser.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l2: Option<f32>,
}

impl Default for TableConfig {
    fn default() -> Self {
        Self {
            dim: 16,
            initializer: InitializerSpec::Normal { mean: 0.0, std: 0.01 },
            optimizer: OptimizerSpec::rowwise_adagrad(0.02),
            l2: 0.0,
            l2_scope: None,
            dense: false,
            max_rows: None,
            unknown: Unknown::Seeded,
            admission: Admission::All,
            eviction: Eviction::Never,
            pinned: Vec::new(),
            pinned_file: None,
            statistics: None,
            max_bytes: None,
            linear: None,
        }
    }
}

/// Reads the settings of every table of the schema.
pub(super) fn resolve(
    job: &Value,
    schema: &Schema,
    needs: Needs,
    seed: impl Fn(&str) -> u64,
) -> Result<Vec<TableSpec>> {
    let empty = Table::new();
    let sections = match job.get("tables") {
        None => &empty,
        Some(Value::Table(table)) => table,
        Some(other) => {
            let message = format!("expected a table, found {}", other.type_str());
            return Err(ConfigError::at("tables", message).into());
        }
    };
    if let Some(key) = sections.keys().find(|k| *k != EVERY_TABLE && !schema.tables.contains(k)) {
        let mut valid: Vec<&str> = schema.tables.iter().map(String::as_str).collect();
        valid.push(EVERY_TABLE);
        return Err(ConfigError::unknown_key("tables", key, &valid).into());
    }
    let defaults = section(sections, EVERY_TABLE)?;
    let root = job.get("data").and_then(|data| data.get("root")).and_then(Value::as_str);
    let root = Path::new(root.unwrap_or_default());
    let is_shared = job.get("train").is_some_and(|train| train.get("max_table_bytes").is_some());
    schema
        .tables
        .iter()
        .enumerate()
        .map(|(index, name)| {
            let own = section(sections, name)?;
            refuse_unread(name, &own, needs)?;
            let mut merged = defaults.clone();
            merge(&mut merged, own);
            let mut config: TableConfig =
                from_value(&Value::Table(merged), &format!("tables.{name}"))?;
            if let Some(file) = config.pinned_file.take() {
                config.pinned.extend(pinned::read(schema, index, &root.join(file))?);
            }
            pinned::check(schema, index, &config.pinned)?;
            let spec = config.spec(name, needs, seed(name));
            spec.validate()?;
            if spec.eviction_needs_limit() && spec.most_rows().is_none() && !is_shared {
                let message = "rows would only go to make room, and nothing limits the table; set `max_rows` or \
                               `max_bytes` for it (or `train.max_table_bytes`), or `below` where the kind has it";
                return Err(ConfigError::at(&format!("tables.{name}.eviction"), message).into());
            }
            Ok(spec)
        })
        .collect()
}

/// Refuses settings of a segment that the model does not read: they would do nothing.
fn refuse_unread(name: &str, own: &Table, needs: Needs) -> Result<()> {
    for (key, read, what) in
        [("dim", needs.vector, "vectors"), ("linear", needs.linear, "linear weights")]
    {
        if own.contains_key(key) && !read {
            let message = format!(
                "the model reads no {what}, so this would do nothing; remove it, or set it in [tables.\"*\"]"
            );
            return Err(ConfigError::at(&format!("tables.{name}.{key}"), message).into());
        }
    }
    Ok(())
}

fn section(sections: &Table, name: &str) -> Result<Table> {
    match sections.get(name) {
        None => Ok(Table::new()),
        Some(Value::Table(table)) => Ok(table.clone()),
        Some(other) => {
            let message = format!("expected a table, found {}", other.type_str());
            Err(ConfigError::at(&format!("tables.{name}"), message).into())
        }
    }
}

impl TableConfig {
    fn spec(self, name: &str, needs: Needs, seed: u64) -> TableSpec {
        let segment = |name: &str, dim| SegmentSpec {
            name: name.to_owned(),
            dim,
            initializer: self.initializer,
            optimizer: self.optimizer,
            l2: self.l2,
            l2_scope: self.l2_scope,
        };
        let mut segments = Vec::new();
        if needs.vector {
            segments.push(segment("vector", self.dim));
        }
        if needs.linear {
            let own = self.linear.clone().unwrap_or_default();
            let shared = segment("linear", 1);
            segments.push(SegmentSpec {
                initializer: own.initializer.unwrap_or(shared.initializer),
                optimizer: own.optimizer.unwrap_or(shared.optimizer),
                l2: own.l2.unwrap_or(shared.l2),
                ..shared
            });
        }
        TableSpec {
            name: name.to_owned(),
            segments,
            dense: self.dense,
            max_rows: self.max_rows,
            max_bytes: self.max_bytes,
            unknown: self.unknown,
            admission: self.admission,
            eviction: self.eviction,
            pinned: self.pinned,
            statistics: self.statistics,
            seed,
        }
    }
}

/// The tables as a job would write them, every default included.
pub(super) fn in_force(tables: &[TableSpec]) -> Result<Value> {
    let mut sections = Table::new();
    for table in tables {
        let shared = &table.segments[0];
        let linear = table.segments.iter().find(|s| s.name == "linear" && s.name != shared.name);
        let config = TableConfig {
            dim: shared.dim,
            initializer: shared.initializer,
            optimizer: shared.optimizer,
            l2: shared.l2,
            l2_scope: shared.l2_scope,
            dense: table.dense,
            max_rows: table.max_rows,
            max_bytes: table.max_bytes,
            unknown: table.unknown,
            admission: table.admission,
            eviction: table.eviction,
            pinned: table.pinned.clone(),
            pinned_file: None,
            statistics: table.statistics,
            linear: linear.map(|s| LinearConfig {
                initializer: Some(s.initializer),
                optimizer: Some(s.optimizer),
                l2: Some(s.l2),
            }),
        };
        let mut section = Table::try_from(&config).map_err(Error::Print)?;
        if shared.name != "vector" {
            // A job that sets what its model does not read is refused.
            section.remove("dim");
        }
        sections.insert(table.name.clone(), section.into());
    }
    Ok(Value::Table(sections))
}
