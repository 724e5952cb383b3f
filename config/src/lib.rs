//! The reading of the sections of a job file into typed settings. Errors name the key that is
//! wrong.
//!
//! A misspelt hyper-parameter is an accuracy bug, so every section refuses unknown keys and
//! suggests the most similar valid key. Overrides from `--set` and the environment are merged in a
//! [`toml::Value`], and Serde's errors for such a value do not name the path of the key. So this
//! crate has a small deserializer whose error type keeps the path and the list of valid keys. The
//! crate `serde_path_to_error` keeps the path too, but the valid keys appear only inside the text
//! of its error, so it cannot suggest one.

use std::fmt;

use serde::de::{self, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, Visitor};
use toml::Value;

/// An error about one key of a job file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The names on the path from the root to the key, for example `["tables", "ids", "dim"]`.
    path: Vec<String>,
    problem: Problem,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Problem {
    UnknownKey { key: String, valid: Vec<String> },
    UnknownValue { value: String, valid: Vec<String> },
    MissingKey { key: String },
    Other(String),
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    /// Returns an error with the text `message` about the key at the dotted path `path`, such as
    /// `tables.ids.dim`.
    pub fn at(path: &str, message: impl Into<String>) -> Self {
        let path = path.split('.').filter(|p| !p.is_empty()).map(str::to_owned).collect();
        Self { path, problem: Problem::Other(message.into()) }
    }

    /// Returns the error for the unknown key `key` in the section at `path`. `valid` lists the
    /// allowed keys.
    pub fn unknown_key(path: &str, key: &str, valid: &[&str]) -> Self {
        let mut error = Self::at(path, "");
        error.problem = Problem::UnknownKey { key: key.to_owned(), valid: owned(valid) };
        error
    }

    /// Returns the error for an unknown value of the key at `path`. `valid` lists the allowed
    /// values.
    pub fn unknown_value(path: &str, value: &str, valid: &[&str]) -> Self {
        let mut error = Self::at(path, "");
        error.problem = Problem::UnknownValue { value: value.to_owned(), valid: owned(valid) };
        error
    }

    /// Returns the error for the missing key `key` in the section at `path`.
    pub fn missing_key(path: &str, key: &str) -> Self {
        let mut error = Self::at(path, "");
        error.problem = Problem::MissingKey { key: key.to_owned() };
        error
    }

    /// Returns the same error with `key` in front of its path.
    #[must_use]
    pub fn under(mut self, key: &str) -> Self {
        for part in key.split('.').filter(|p| !p.is_empty()).rev() {
            self.path.insert(0, part.to_owned());
        }
        self
    }

    /// Returns the dotted path of the key.
    pub fn path(&self) -> String {
        let mut path = self.path.clone();
        if let Problem::UnknownKey { key, .. } | Problem::MissingKey { key } = &self.problem {
            path.push(key.clone());
        }
        path.join(".")
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path();
        match &self.problem {
            Problem::UnknownKey { key, valid } => {
                write!(f, "unknown key `{path}`; {}", suggestion(key, valid))
            }
            Problem::UnknownValue { value, valid } => {
                write!(f, "unknown value \"{value}\" for `{path}`; {}", suggestion(value, valid))
            }
            Problem::MissingKey { .. } => write!(f, "missing key `{path}`; set it"),
            Problem::Other(message) if path.is_empty() => f.write_str(message),
            Problem::Other(message) => write!(f, "`{path}`: {message}"),
        }
    }
}

impl de::Error for ConfigError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { path: Vec::new(), problem: Problem::Other(message.to_string()) }
    }
    fn invalid_type(found: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::custom(refuse_value(found, expected))
    }
    fn invalid_value(found: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::custom(refuse_value(found, expected))
    }
    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Self::unknown_key("", field, expected)
    }
    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        let problem = Problem::UnknownValue { value: variant.to_owned(), valid: owned(expected) };
        Self { path: Vec::new(), problem }
    }
    fn missing_field(field: &'static str) -> Self {
        Self { path: Vec::new(), problem: Problem::MissingKey { key: field.to_owned() } }
    }
}

/// Returns the message about a value of the wrong type, with the names of types in plain words.
fn refuse_value(found: de::Unexpected<'_>, expected: &dyn de::Expected) -> String {
    let expected = expected.to_string();
    let plain = match expected.as_str() {
        "f32" | "f64" => "a number without a unit, as in 1.5",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number of at least 0",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        nonzero if nonzero.starts_with("a nonzero ") => "a whole number of at least 1",
        "a sequence" => "a list",
        "a boolean" => "`true` or `false`",
        other => other,
    };
    format!("must be {plain}, found {found}; correct the value")
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|&n| n.to_owned()).collect()
}

/// Returns the text "did you mean `x`?" if the valid name `x` is similar to `given`. Otherwise,
/// returns a text that lists the valid names.
pub fn suggestion(given: &str, valid: &[String]) -> String {
    let near = nearest(given, valid.iter().map(String::as_str));
    match near {
        Some(name) => format!("did you mean `{name}`?"),
        None if valid.is_empty() => "remove it, because no key is allowed here".to_owned(),
        None => {
            let mut names: Vec<String> = valid.iter().map(|v| format!("`{v}`")).collect();
            names.sort_unstable();
            format!("expected one of {}", names.join(", "))
        }
    }
}

/// Returns the valid name that is most similar to a misspelt name, or `None` if no name is similar
/// enough.
pub fn nearest<'a>(given: &str, valid: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let lowered = given.to_lowercase();
    let score = |name: &str| {
        let name = name.to_lowercase();
        let score = strsim::jaro_winkler(&lowered, &name);
        // Without this condition, two swapped letters would make short names too similar.
        let swapped = name.len() > 2 && strsim::osa_distance(&lowered, &name) == 1;
        if swapped { score.max(0.8) } else { score }
    };
    valid
        .map(|name| (score(name), name))
        .filter(|&(score, _)| score >= 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0).then_with(|| b.1.cmp(a.1)))
        .map(|(_, name)| name)
}

/// Reads a section from `value`. `path` is the dotted path of the section in the job, and is empty
/// for the root. An error names the whole path of its key.
pub fn from_value<T: DeserializeOwned>(value: &Value, path: &str) -> Result<T, ConfigError> {
    T::deserialize(Node(value)).map_err(|e| e.under(path))
}

/// Reads the section `key` of a job. A section that the job does not have reads as an empty
/// section.
pub fn section<T: DeserializeOwned>(job: &Value, key: &str) -> Result<T, ConfigError> {
    let empty = Value::Table(toml::Table::new());
    from_value(job.get(key).unwrap_or(&empty), key)
}

/// Merges `patch` into `into`. Tables are merged key by key, and any other value replaces the old
/// value. A table replaces an old table with a different `kind`, because the two kinds share no
/// settings.
pub fn merge(into: &mut toml::Table, patch: toml::Table) {
    for (key, value) in patch {
        match (into.get_mut(&key), value) {
            (Some(Value::Table(old)), Value::Table(new)) if same_kind(old, &new) => merge(old, new),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

fn same_kind(old: &toml::Table, new: &toml::Table) -> bool {
    match (old.get("kind"), new.get("kind")) {
        (Some(old), Some(new)) => old == new,
        _ => true,
    }
}

struct Node<'a>(&'a Value);

impl<'de> Deserializer<'de> for Node<'_> {
    type Error = ConfigError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        match self.0 {
            Value::String(s) => visitor.visit_str(s),
            Value::Integer(i) => visitor.visit_i64(*i),
            Value::Float(x) => visitor.visit_f64(*x),
            Value::Boolean(b) => visitor.visit_bool(*b),
            Value::Datetime(d) => visitor.visit_string(d.to_string()),
            Value::Array(items) => visitor.visit_seq(Items { items: items.iter(), index: 0 }),
            Value::Table(table) => {
                visitor.visit_map(Entries { entries: table.iter(), value: None })
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ConfigError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ConfigError> {
        match self.0 {
            Value::String(s) => visitor.visit_enum(s.as_str().into_deserializer()),
            other => Err(de::Error::custom(format!(
                "expected one of {}, found {}",
                variants.iter().map(|v| format!("\"{v}\"")).collect::<Vec<_>>().join(", "),
                other.type_str()
            ))),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

struct Items<'a> {
    items: std::slice::Iter<'a, Value>,
    index: usize,
}

impl<'de> de::SeqAccess<'de> for Items<'_> {
    type Error = ConfigError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ConfigError> {
        let Some(value) = self.items.next() else { return Ok(None) };
        let index = self.index;
        self.index += 1;
        seed.deserialize(Node(value)).map(Some).map_err(|e| e.under(&index.to_string()))
    }
}

struct Entries<'a> {
    entries: toml::map::Iter<'a, String, Value>,
    value: Option<(&'a str, &'a Value)>,
}

impl<'de> de::MapAccess<'de> for Entries<'_> {
    type Error = ConfigError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, ConfigError> {
        let Some((key, value)) = self.entries.next() else { return Ok(None) };
        self.value = Some((key, value));
        seed.deserialize(key.as_str().into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, ConfigError> {
        let (key, value) = self
            .value
            .take()
            .ok_or_else(|| de::Error::custom("a value was read before its key"))?;
        seed.deserialize(Node(value)).map_err(|mut e| {
            e.path.insert(0, key.to_owned());
            e
        })
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Settings {
        learning_rate: f32,
        #[serde(default)]
        hidden: Vec<u32>,
        #[serde(default)]
        kind: Option<Kind>,
        #[serde(default)]
        optimizer: Option<Optimizer>,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "snake_case")]
    enum Kind {
        WideDeep,
        DeepFm,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
    enum Optimizer {
        Sgd { lr: f32 },
        Adam { lr: f32, beta1: f32 },
    }

    fn read(text: &str) -> Result<Settings, String> {
        let value: Value = toml::from_str::<toml::Table>(text).unwrap().into();
        section(&value, "train").map_err(|e| e.to_string())
    }

    #[test]
    fn errors_name_the_key_and_the_nearest_valid_one() {
        for (text, message) in [
            (
                "[train]\nlerning_rate = 1",
                "unknown key `train.lerning_rate`; did you mean `learning_rate`?",
            ),
            (
                "[train]\nlearning_rate = 1\nzzz = 1",
                "unknown key `train.zzz`; expected one of `hidden`, `kind`, `learning_rate`, `optimizer`",
            ),
            ("", "missing key `train.learning_rate`; set it"),
            (
                "[train]\nlearning_rate = 'x'",
                "`train.learning_rate`: must be a number without a unit, as in 1.5, found string \"x\"; \
                 correct the value",
            ),
            (
                "[train]\nlearning_rate = 1\nhidden = [1, -2]",
                "`train.hidden.1`: must be a whole number of at least 0, found integer `-2`; correct the \
                 value",
            ),
            (
                "[train]\nlearning_rate = 1\nkind = 'deepfm'",
                "unknown value \"deepfm\" for `train.kind`; did you mean `deep_fm`?",
            ),
            (
                "[train]\nlearning_rate = 1\noptimizer = { kind = 'adam', lr = 1, beta_1 = 0.5 }",
                "unknown key `train.optimizer.beta_1`; did you mean `beta1`?",
            ),
            (
                "[train]\nlearning_rate = 1\noptimizer = { kind = 'adm' }",
                "unknown value \"adm\" for `train.optimizer.kind`; did you mean `adam`?",
            ),
        ] {
            assert_eq!(read(text).unwrap_err(), message, "{text}");
        }
    }

    #[test]
    fn integers_are_accepted_where_floats_are_meant() {
        let settings =
            read("[train]\nlearning_rate = 1\nhidden = [4]\nkind = 'wide_deep'\noptimizer = { kind = 'sgd', lr = 2 }")
                .unwrap();
        assert_eq!(settings.learning_rate, 1.0);
        assert_eq!(settings.kind, Some(Kind::WideDeep));
        assert_eq!(settings.optimizer, Some(Optimizer::Sgd { lr: 2.0 }));
    }
}
