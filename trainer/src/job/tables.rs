//! The `[tables]` section: what each table's rows are, given what the model reads of them.
//!
//! `[tables."*"]` holds settings for every table; a table's own section overrides them key by key. A
//! model that has a wide part reads a second segment of one float, `linear`; it learns by the same
//! rules as the vector unless the job says otherwise in `linear = { .. }`.

use serde::{Deserialize, Serialize};
use toml::{Table, Value};
use zillion_embedding::{
    Admission, Bounds, ClipSpec, Dtype, Eviction, InitializerSpec, OptimizerSpec, Scope,
    SegmentSpec, TableSpec, Unknown,
};
use zillion_feature::Schema;
use zillion_feature::config::{ConfigError, from_value, merge};
use zillion_nn::zoo::Needs;

use crate::error::{Error, Result};

const EVERY_TABLE: &str = "*";

/// One table's settings in a job file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TableConfig {
    /// Floats of the vector segment.
    pub dim: usize,
    /// The type of the weights in memory and in checkpoints.
    #[serde(skip_serializing_if = "Dtype::is_f32")]
    pub dtype: Dtype,
    /// What a new row holds.
    pub initializer: InitializerSpec,
    /// How rows learn.
    pub optimizer: OptimizerSpec,
    /// Strength of the regulariser `(l2 / 2) · |w|²`.
    pub l2: f32,
    /// Which rows the regulariser pulls on; absent: the whole table if it is dense, else those touched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l2_scope: Option<Scope>,
    /// How far a row's gradient may reach; absent: as far as it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<ClipSpec>,
    /// What weights may be; absent: anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Bounds>,
    /// A fixed vocabulary, filled from the training data before the first step.
    pub dense: bool,
    /// Rows that a dense table may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_rows: Option<u64>,
    /// What evaluation reads for an unknown key.
    pub unknown: Unknown,
    /// When a key gets a row.
    #[serde(skip_serializing_if = "Admission::is_all")]
    pub admission: Admission,
    /// When the row goes.
    #[serde(skip_serializing_if = "Eviction::is_never")]
    pub eviction: Eviction,
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
    /// The clip of its gradient.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<ClipSpec>,
    /// What it may be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Bounds>,
}

impl Default for TableConfig {
    fn default() -> Self {
        Self {
            dim: 16,
            dtype: Dtype::F32,
            initializer: InitializerSpec::Normal { mean: 0.0, std: 0.01 },
            optimizer: OptimizerSpec::rowwise_adagrad(0.02),
            l2: 0.0,
            l2_scope: None,
            clip: None,
            bounds: None,
            dense: false,
            max_rows: None,
            unknown: Unknown::Seeded,
            admission: Admission::All,
            eviction: Eviction::Never,
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
    schema
        .tables
        .iter()
        .map(|name| {
            let own = section(sections, name)?;
            refuse_unread(name, &own, needs)?;
            let mut merged = defaults.clone();
            merge(&mut merged, own);
            let config: TableConfig = from_value(&Value::Table(merged), &format!("tables.{name}"))?;
            let spec = config.spec(name, needs, seed(name));
            spec.validate()?;
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
            clip: self.clip,
            bounds: self.bounds,
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
                clip: own.clip.or(shared.clip),
                bounds: own.bounds.or(shared.bounds),
                ..shared
            });
        }
        TableSpec {
            name: name.to_owned(),
            segments,
            dense: self.dense,
            max_rows: self.max_rows,
            unknown: self.unknown,
            admission: self.admission,
            eviction: self.eviction,
            dtype: self.dtype,
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
            dtype: table.dtype,
            initializer: shared.initializer,
            optimizer: shared.optimizer,
            l2: shared.l2,
            l2_scope: shared.l2_scope,
            clip: shared.clip,
            bounds: shared.bounds,
            dense: table.dense,
            max_rows: table.max_rows,
            unknown: table.unknown,
            admission: table.admission,
            eviction: table.eviction,
            linear: linear.map(|s| LinearConfig {
                initializer: Some(s.initializer),
                optimizer: Some(s.optimizer),
                l2: Some(s.l2),
                clip: s.clip,
                bounds: s.bounds,
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

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDS: Needs = Needs { vector: true, linear: true };

    fn read(text: &str) -> std::result::Result<TableSpec, String> {
        let section = toml::from_str::<Table>(text).unwrap();
        let config: TableConfig =
            from_value(&Value::Table(section), "tables.user").map_err(|e| e.to_string())?;
        let spec = config.spec("user", NEEDS, 1);
        spec.validate().map_err(|e| e.to_string())?;
        Ok(spec)
    }

    #[test]
    fn what_is_said_of_the_table_holds_for_both_segments_unless_the_linear_one_has_its_own() {
        let spec = read(
            "dtype = 'bf16'
             optimizer = { kind = 'ftrl', lr = 0.1, l21 = 0.5 }
             clip = { norm = 1.0 }
             bounds = [-2.0, 2.0]
             linear = { optimizer = { kind = 'momentum', lr = 0.2 }, bounds = [0.0, 1.0] }",
        )
        .unwrap();
        let [vector, linear] = &spec.segments[..] else { panic!("{spec:?}") };
        assert_eq!(spec.dtype, Dtype::Bf16);
        assert_eq!(vector.bounds, Some(Bounds { low: -2.0, high: 2.0 }));
        assert_eq!(linear.bounds, Some(Bounds { low: 0.0, high: 1.0 }));
        assert_eq!((vector.clip, linear.clip.unwrap().norm), (linear.clip, Some(1.0)));
        assert!(matches!(vector.optimizer, OptimizerSpec::Ftrl { l21: 0.5, .. }));
        assert_eq!(linear.optimizer.lr(), 0.2, "segments have learning rates of their own");

        // What a job in force says is read as the same tables.
        let printed = in_force(std::slice::from_ref(&spec)).unwrap();
        let again = printed.get("user").unwrap().to_string();
        let Value::Table(section) = printed.get("user").unwrap().clone() else { panic!("{again}") };
        let config: TableConfig = from_value(&Value::Table(section), "tables.user").unwrap();
        assert_eq!(config.spec("user", NEEDS, 1), spec);
    }

    #[test]
    fn tables_that_say_nothing_of_it_are_printed_as_before() {
        let printed = in_force(&[read("").unwrap()]).unwrap().to_string();
        for key in ["dtype", "clip", "bounds", "l21", "nesterov"] {
            assert!(!printed.contains(key), "{key} in {printed}");
        }
    }

    #[test]
    fn bad_settings_name_their_key() {
        for (text, words) in [
            ("dtype = 'fp8'", "tables.user.dtype"),
            ("clip = {}", "clip nothing: `tables.user.vector.clip`"),
            ("clip = { norm = -1.0 }", "tables.user.vector.clip.norm"),
            ("bounds = [1.0, 0.0]", "tables.user.vector.bounds"),
            ("linear = { bounds = [1.0, 0.0] }", "tables.user.linear.bounds"),
            ("dtype = 'f16'\nbounds = [1e5, 2e5]", "no number of f16"),
            ("optimizer = { kind = 'momentum', lr = 0.1, beta = 1 }", "tables.user.optimizer.beta"),
        ] {
            let message = read(text).unwrap_err();
            assert!(message.contains(words), "{message}");
        }
    }
}
