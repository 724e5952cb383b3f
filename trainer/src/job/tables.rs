//! The `[tables]` section: the settings of each table.
//!
//! The section `[tables."*"]` holds settings for every table. A setting in a table's own section
//! replaces the setting with the same key. A model with a wide part reads a second segment,
//! `linear`, of one float. This segment has the settings of the vector unless the job sets others
//! in `linear = { .. }`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};
use zillion_config::{ConfigError, from_value, merge};
use zillion_feature::Schema;
use zillion_nn::zoo::Needs;
use zillion_reader::DataConfig;
use zillion_rows::{
    Admission, Bounds, ByteSize, ClipSpec, Dtype, EventSpan, Eviction, Growth, InitializerSpec,
    OptimizerSpec, PinnedId, Scope, SegmentSpec, TableSpec, Unknown, UseStatistics,
};

use super::pinned;
use crate::error::{Error, Result};
use crate::graph_inputs::linear_weights;

const EVERY_TABLE: &str = "*";

/// The settings of one table in a job file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TableConfig {
    /// The number of floats in the vector segment.
    pub dim: usize,
    /// The type of the weights in memory and in checkpoints.
    #[serde(skip_serializing_if = "Dtype::is_f32")]
    pub dtype: Dtype,
    /// The initial values of a new row.
    pub initializer: InitializerSpec,
    /// The optimizer of the rows.
    pub optimizer: OptimizerSpec,
    /// The strength of the regulariser `(l2 / 2) · |w|²`.
    pub l2: f32,
    /// The rows that the regulariser applies to; absent: the whole table if it is dense, else the
    /// rows of the batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l2_scope: Option<Scope>,
    /// The clip of a row's gradient; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<ClipSpec>,
    /// The bounds of the weights; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Bounds>,
    /// Whether the table has a fixed vocabulary, filled from the training data before the first
    /// step.
    pub dense: bool,
    /// The largest number of rows of the table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_rows: Option<u64>,
    /// The largest memory of a dynamic table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<ByteSize>,
    /// The values that evaluation reads for an unknown key.
    pub unknown: Unknown,
    /// The rule by which a key gets a row.
    #[serde(skip_serializing_if = "Admission::is_all")]
    pub admission: Admission,
    /// The span of event time by which the counts of waiting keys age; absent: they do not age.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission_window: Option<EventSpan>,
    /// The rule by which a row is evicted.
    #[serde(skip_serializing_if = "Eviction::is_never")]
    pub eviction: Eviction,
    /// The ids whose rows are never evicted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pinned: Vec<PinnedId>,
    /// The path of a file with more pinned ids, one on each line, relative to `data.root`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned_file: Option<PathBuf>,
    /// The settings of the statistics of shows and clicks, which each row then keeps; absent: rows
    /// keep none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statistics: Option<UseStatistics>,
    /// The rule by which narrow rows become full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grow: Option<Growth>,
    /// The settings of the linear segment that differ from the vector's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linear: Option<LinearConfig>,
}

/// The settings of the linear segment that differ from the vector's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinearConfig {
    /// The initial value of a new weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initializer: Option<InitializerSpec>,
    /// The optimizer of the linear weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<OptimizerSpec>,
    /// The strength of the linear weights' regulariser.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l2: Option<f32>,
    /// The clip of the linear weight's gradient.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<ClipSpec>,
    /// The bounds of the linear weights.
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
            admission_window: None,
            eviction: Eviction::Never,
            pinned: Vec::new(),
            pinned_file: None,
            statistics: None,
            grow: None,
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
    let sections = table_at(job.get("tables"), "tables")?;
    if let Some(key) = sections.keys().find(|k| *k != EVERY_TABLE && !schema.tables.contains(k)) {
        let mut valid: Vec<&str> = schema.tables.iter().map(String::as_str).collect();
        valid.push(EVERY_TABLE);
        return Err(ConfigError::unknown_key("tables", key, &valid).into());
    }
    let section = |name: &str| table_at(sections.get(name), &format!("tables.{name}"));
    let defaults = section(EVERY_TABLE)?;
    let root = job.get("data").and_then(|data| data.get("root")).and_then(Value::as_str);
    let data = DataConfig { root: root.unwrap_or_default().into(), ..DataConfig::default() };
    let is_shared = job.get("train").is_some_and(|train| train.get("max_table_bytes").is_some());
    schema
        .tables
        .iter()
        .enumerate()
        .map(|(index, name)| {
            let own = section(name)?;
            refuse_unread(name, &own, needs)?;
            let mut merged = defaults.clone();
            merge(&mut merged, own);
            let mut config: TableConfig =
                from_value(&Value::Table(merged), &format!("tables.{name}"))?;
            if let Some(file) = config.pinned_file.take() {
                config.pinned.extend(pinned::read(schema, index, &data, &file)?);
            }
            pinned::check(schema, index, &config.pinned)?;
            let spec = config.spec(name, needs, linear_weights(schema), seed(name));
            spec.validate()?;
            if spec.eviction_needs_limit() && spec.most_rows().is_none() && !is_shared {
                let message = "evicts rows only at a limit, and the table has no limit; set `max_rows` or \
                               `max_bytes` for the table (or `train.max_table_bytes`), or set `below` if the kind has it";
                return Err(ConfigError::at(&format!("tables.{name}.eviction"), message).into());
            }
            Ok(spec)
        })
        .collect()
}

/// Refuses settings of a segment that the model does not read, because they would have no effect.
fn refuse_unread(name: &str, own: &Table, needs: Needs) -> Result<()> {
    for (key, read, what) in
        [("dim", needs.vector, "vectors"), ("linear", needs.linear, "linear weights")]
    {
        if own.contains_key(key) && !read {
            let message = format!(
                "has no effect, because the model reads no {what}; remove it, or set it in [tables.\"*\"]"
            );
            return Err(ConfigError::at(&format!("tables.{name}.{key}"), message).into());
        }
    }
    Ok(())
}

/// Returns a copy of the table at a path of the job. An absent table is empty.
fn table_at(value: Option<&Value>, path: &str) -> Result<Table> {
    match value {
        None => Ok(Table::new()),
        Some(Value::Table(table)) => Ok(table.clone()),
        Some(other) => {
            let message =
                format!("expected a table, found {}; write it as a section", other.type_str());
            Err(ConfigError::at(path, message).into())
        }
    }
}

impl TableConfig {
    fn spec(self, name: &str, needs: Needs, linear_weights: usize, seed: u64) -> TableSpec {
        let segment = |name: &str, dim| SegmentSpec {
            l2: self.l2,
            l2_scope: self.l2_scope,
            clip: self.clip,
            bounds: self.bounds,
            ..SegmentSpec::new(name, dim, self.initializer, self.optimizer)
        };
        let mut segments = Vec::new();
        if needs.vector {
            segments.push(segment("vector", self.dim));
        }
        if needs.linear {
            let own = self.linear.clone().unwrap_or_default();
            let shared = segment("linear", linear_weights);
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
            dense: self.dense,
            max_rows: self.max_rows,
            max_bytes: self.max_bytes,
            unknown: self.unknown,
            admission: self.admission,
            admission_window: self.admission_window,
            eviction: self.eviction,
            dtype: self.dtype,
            pinned: self.pinned,
            statistics: self.statistics,
            grow: self.grow.filter(|grow| !grow.is_off()),
            seed,
            ..TableSpec::new(name, segments)
        }
    }
}

/// Returns the `[tables]` section of these tables, with every default.
pub(super) fn to_section(tables: &[TableSpec]) -> Result<Value> {
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
            max_bytes: table.max_bytes,
            unknown: table.unknown,
            admission: table.admission,
            admission_window: table.admission_window,
            eviction: table.eviction,
            pinned: table.pinned.clone(),
            pinned_file: None,
            statistics: table.statistics,
            grow: table.grow,
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
            // A job with a setting that its model does not read would be refused.
            section.remove("dim");
        }
        sections.insert(table.name.clone(), section.into());
    }
    Ok(Value::Table(sections))
}

#[cfg(test)]
mod tests {
    use zillion_feature::FeatureKey;

    use super::*;
    use crate::job::Job;

    const NEEDS: Needs = Needs { vector: true, linear: true };

    fn read(text: &str) -> std::result::Result<TableSpec, String> {
        let section = toml::from_str::<Table>(text).unwrap();
        let config: TableConfig =
            from_value(&Value::Table(section), "tables.user").map_err(|e| e.to_string())?;
        let spec = config.spec("user", NEEDS, 1, 1);
        spec.validate().map_err(|e| e.to_string())?;
        Ok(spec)
    }

    #[test]
    fn table_settings_hold_for_both_segments_unless_overridden() {
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

        // The printed settings are read as the same tables.
        let printed = to_section(std::slice::from_ref(&spec)).unwrap();
        let again = printed.get("user").unwrap().to_string();
        let Value::Table(section) = printed.get("user").unwrap().clone() else { panic!("{again}") };
        let config: TableConfig = from_value(&Value::Table(section), "tables.user").unwrap();
        assert_eq!(config.spec("user", NEEDS, 1, 1), spec);
    }

    #[test]
    fn tables_that_say_nothing_of_it_are_printed_as_before() {
        let printed = to_section(&[read("").unwrap()]).unwrap().to_string();
        for key in ["dtype", "clip", "bounds", "l21", "nesterov"] {
            assert!(!printed.contains(key), "{key} in {printed}");
        }
    }

    #[test]
    fn bad_settings_name_their_key() {
        for (text, words) in [
            ("dtype = 'fp8'", "tables.user.dtype"),
            ("clip = {}", "`tables.user.vector.clip`: needs `norm`"),
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

    fn job(more: &str) -> Result<Job> {
        let text = format!(
            "[data]\ntrain = ['x.csv']\n[features.user]\nkind = 'id'\ntype = 'string'\n[features.item]\nkind = 'id'\n\
             [labels.click]\n[model]\nkind = 'fm'\n{more}"
        );
        Job::from_value(toml::from_str::<Table>(&text).expect("TOML").into())
    }

    #[test]
    fn settings_of_a_keys_life_are_printed_as_they_were_read() {
        let job = job("[tables.user]\n\
             admission = { kind = 'bloom', at_least = 5, keys = 50_000_000, error = 0.01 }\n\
             eviction = { kind = 'score', show_weight = 1, click_weight = 2.5, below = 0.25, every = 100 }\n\
             statistics = { decay = 0.98, every_steps = 1000 }\n\
             max_bytes = '2 GiB'\npinned = ['anna', 'otto']\n\
             [tables.item]\nadmission = { kind = 'probability', p = 0.01 }\n\
             eviction = { kind = 'lfu', half_life = 100 }\nmax_rows = 1000\npinned = [1, -2]\n\
             [train]\nmax_table_bytes = 8_000_000_000")
        .unwrap();
        assert_eq!(job.tables[0].max_bytes, Some(ByteSize(2 << 30)));
        assert_eq!(job.tables[0].pinned[0].key(), FeatureKey::from_text("anna"));
        assert_eq!(job.tables[1].pinned[1].key(), FeatureKey::from_i64(-2));
        let printed = job.in_force().unwrap();
        let again = Job::from_value(toml::from_str::<Table>(&printed).unwrap().into()).unwrap();
        assert_eq!(again.tables, job.tables);
        assert_eq!(again.train, job.train);
        assert_eq!(again.in_force().unwrap(), printed);
    }

    #[test]
    fn spans_of_event_time_are_printed_as_they_were_read() {
        let text = "[columns]\nevent_time = 't'\nevent_time_unit = 'ms'\n[tables.user]\n\
             admission = { kind = 'count', at_least = 5 }\nadmission_window = '36 hours'\n\
             eviction = { kind = 'unseen_for', span = '7 days' }\n\
             statistics = { decay = 0.98, every = '1 day' }\n\
             [tables.item]\neviction = { kind = 'lfu', half_life = '2 weeks', below = 0.5 }";
        let job = job(text).unwrap();
        let printed = job.in_force().unwrap();
        for words in ["\"36 hours\"", "\"1 week\"", "\"1 day\"", "\"2 weeks\""] {
            assert!(printed.contains(words), "{words}: {printed}");
        }
        let again = Job::from_value(toml::from_str::<Table>(&printed).unwrap().into()).unwrap();
        assert_eq!(again.tables, job.tables);
    }

    #[test]
    fn spans_of_event_time_need_event_times_in_the_trainer() {
        let timed = "[columns]\nevent_time = 't'\nevent_time_unit = 'ms'\n";
        let unseen = "[tables.user]\neviction = { kind = 'unseen_for', span = '7 days' }";
        job(&format!("{timed}{unseen}")).unwrap();
        let servers = "[ps]\nservers = ['127.0.0.1:1']\nstore = 'store'";
        for (text, words) in [
            (unseen.to_owned(), "tables.user.eviction.span"),
            (unseen.to_owned(), "set `columns.event_time` and `columns.event_time_unit`"),
            (format!("[columns]\nevent_time = 't'\n{unseen}"), "columns.event_time_unit"),
            (format!("{timed}{unseen}\n{servers}"), "remove `[ps]`"),
            (
                "[tables.user]\nstatistics = { decay = 0.5, every = '1 day' }".to_owned(),
                "tables.user.statistics.every",
            ),
            (
                format!("{timed}[tables.user]\neviction = {{ kind = 'unseen_for', span = 7 }}"),
                "write for example \"7 days\"",
            ),
            ("[tables.user]\nstatistics = { decay = 0.5 }".to_owned(), "set `every_steps = 10000`"),
            (
                "[tables.user]\nstatistics = { decay = 0.5, every_steps = 1, every = '1 day' }"
                    .to_owned(),
                "remove `every_steps` or `every`",
            ),
        ] {
            let error = job(&text).expect_err(&text).to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn settings_that_would_do_nothing_are_refused_with_a_remedy() {
        for (settings, expected) in [
            ("[tables.item]\neviction = { kind = 'lru' }", "set `max_rows` or `max_bytes`"),
            ("[tables.item]\neviction = { kind = 'l2', every = 5 }", "`below`"),
            ("[tables.item]\npinned = [1]", "set an `eviction`"),
            (
                "[tables.item]\neviction = { kind = 'unseen', steps = 5 }\npinned = ['x']",
                "no feature of this table has ids that are texts",
            ),
            (
                "[tables.user]\neviction = { kind = 'unseen', steps = 5 }\npinned = [7]",
                "has the number 7",
            ),
            ("[tables.item]\nmax_bytes = '4 GB and more'", "tables.item.max_bytes"),
            ("[tables.item]\nstatistics = { decay = 2, every_steps = 1 }", "statistics.decay"),
            ("[train]\nmax_table_bytes = '1 KiB'", "train.max_table_bytes"),
        ] {
            let error = job(settings).expect_err(settings).to_string();
            assert!(error.contains(expected), "{settings}: {error}");
        }
        // The limit of all tables together is enough for an eviction that only frees memory.
        job("[tables.item]\neviction = { kind = 'lru' }\n[train]\nmax_table_bytes = '1 GiB'")
            .unwrap();
    }

    #[test]
    fn pinned_ids_of_a_file_become_part_of_the_job() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ids"), "12\n\n 18446744073709551615 \n").unwrap();
        std::fs::write(folder.path().join("names"), "anna\n12\n").unwrap();
        let root = folder.path().display();
        let unseen = "eviction = { kind = 'unseen', steps = 5 }";
        let with = |table: &str, file: &str| {
            let mut value: Table = toml::from_str(&format!(
                "[data]\ntrain = ['x.csv']\nroot = '{root}'\n[features.user]\nkind = 'id'\ntype = 'string'\n\
                 [features.item]\nkind = 'id'\ntype = 'u64'\n[labels.click]\n[model]\nkind = 'fm'\n\
                 [tables.{table}]\n{unseen}\npinned_file = '{file}'"
            ))
            .unwrap();
            value.insert("name".to_owned(), "t".into());
            Job::from_value(value.into())
        };
        let keys = |job: Job, table: usize| -> Vec<FeatureKey> {
            job.tables[table].pinned.iter().map(PinnedId::key).collect()
        };
        let items = [FeatureKey::from_u64(12), FeatureKey::from_u64(u64::MAX)];
        assert_eq!(keys(with("item", "ids").unwrap(), 1), items);
        let users = [FeatureKey::from_text("anna"), FeatureKey::from_text("12")];
        assert_eq!(keys(with("user", "names").unwrap(), 0), users);
        assert!(!with("user", "names").unwrap().in_force().unwrap().contains("pinned_file"));
        let error = with("item", "names").unwrap_err().to_string();
        assert!(error.contains("line 1 of `") && error.contains("is not a number"), "{error}");
        let error = with("item", "none").unwrap_err().to_string();
        assert!(error.contains("tables.item.pinned_file"), "{error}");
    }
}
