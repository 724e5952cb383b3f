//! The schemas of Avro that refer to types of other schemas, as a registry allows it.
//!
//! The decoder takes one text. So the first use of each such type is replaced by its definition.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::schemas::{check, full_name};
use crate::messages::writer_schema::{SchemaLanguage, WriterSchema};

/// The largest depth of a type in a schema with the schemas to which it refers.
const DEEPEST: usize = 200;

/// Returns the text of a schema with the types of all schemas to which it refers.
///
/// # Errors
/// Returns the problem and the remedy if the schema is not supported.
pub(super) fn resolve(schema: &WriterSchema) -> Result<String, String> {
    schema.check(&SchemaLanguage::Avro)?;
    let parse = |text: &str| {
        serde_json::from_str::<Value>(text).map_err(|e| format!("it is no JSON ({e})"))
    };
    let text = if schema.references.is_empty() {
        schema.text.clone()
    } else {
        let mut types = BTreeMap::new();
        for reference in &schema.references {
            types.insert(reference.name.clone(), parse(&reference.text)?);
        }
        let mut types = Types { types, defined: BTreeSet::new() };
        types.insert_definitions(parse(&schema.text)?, "", 0)?.to_string()
    };
    check(&text)?;
    Ok(text)
}

/// The types of other schemas, and the types that the text has defined so far.
struct Types {
    types: BTreeMap<String, Value>,
    defined: BTreeSet<String>,
}

impl Types {
    /// Returns a type in which the first use of each type of another schema is its definition.
    fn insert_definitions(
        &mut self,
        schema: Value,
        namespace: &str,
        depth: usize,
    ) -> Result<Value, String> {
        if depth > DEEPEST {
            return Err("its types are nested too deeply; use fewer levels".to_owned());
        }
        Ok(match schema {
            Value::String(name) => {
                let name = match self.types.contains_key(&full_name(&name, namespace)) {
                    true => full_name(&name, namespace),
                    false => name,
                };
                if self.defined.contains(&name) {
                    return Ok(Value::String(name));
                }
                match self.types.get(&name).cloned() {
                    // Its own name is known before its fields, which may refer to it.
                    Some(definition) => {
                        self.defined.insert(name);
                        self.insert_definitions(definition, "", depth + 1)?
                    }
                    None => Value::String(name),
                }
            }
            Value::Array(variants) => {
                let each = |v| self.insert_definitions(v, namespace, depth + 1);
                Value::Array(variants.into_iter().map(each).collect::<Result<_, _>>()?)
            }
            Value::Object(mut object) => {
                let name = object.get("name").and_then(Value::as_str).unwrap_or_default();
                let own = object.get("namespace").and_then(Value::as_str);
                let from_name = name.rsplit_once('.').map(|(space, _)| space);
                let inner = own.or(from_name).unwrap_or(namespace).to_owned();
                if !name.is_empty() {
                    self.defined.insert(full_name(name, &inner));
                }
                for key in ["type", "items", "values"] {
                    // A name in `type` may be that of a complex type, which is no reference.
                    let is_kind = object.get(key).and_then(Value::as_str).is_some_and(is_kind);
                    if !is_kind && let Some(part) = object.remove(key) {
                        let part = self.insert_definitions(part, &inner, depth + 1)?;
                        object.insert(key.to_owned(), part);
                    }
                }
                if let Some(Value::Array(fields)) = object.remove("fields") {
                    let mut kept = Vec::with_capacity(fields.len());
                    for field in fields {
                        let Value::Object(mut field) = field else {
                            return Err("a field of a record is no object".to_owned());
                        };
                        if let Some(part) = field.remove("type") {
                            let part = self.insert_definitions(part, &inner, depth + 1)?;
                            field.insert("type".to_owned(), part);
                        }
                        kept.push(Value::Object(field));
                    }
                    object.insert("fields".to_owned(), Value::Array(kept));
                }
                Value::Object(object)
            }
            other => other,
        })
    }
}

fn is_kind(name: &str) -> bool {
    let kinds = ["record", "error", "enum", "array", "map", "fixed"];
    kinds.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::writer_schema::ReferencedSchema;

    fn with(text: &str, references: &[(&str, &str)]) -> WriterSchema {
        let reference = |(name, text): &(&str, &str)| ReferencedSchema {
            name: (*name).to_owned(),
            text: (*text).to_owned(),
        };
        let references = references.iter().map(reference).collect();
        WriterSchema { language: SchemaLanguage::Avro, text: text.to_owned(), references }
    }

    #[test]
    fn the_first_use_of_a_type_is_its_definition() {
        let city = r#"{"type": "enum", "name": "City", "namespace": "geo", "symbols": ["a"]}"#;
        let place = r#"{"type": "record", "name": "geo.Place", "fields": [
            {"name": "city", "type": "City"}]}"#;
        let text = r#"{"type": "record", "name": "Row", "namespace": "n", "fields": [
            {"name": "place", "type": ["null", "geo.Place"]},
            {"name": "city", "type": "geo.City"},
            {"name": "self", "type": ["null", "n.Row"]},
            {"name": "id", "type": "long"}]}"#;
        let text = resolve(&with(text, &[("geo.City", city), ("geo.Place", place)])).unwrap();
        let resolved: Value = serde_json::from_str(&text).unwrap();
        let fields = &resolved["fields"];
        let inner = &fields[0]["type"][1]["fields"][0]["type"];
        assert_eq!(inner["symbols"][0], "a", "{text}");
        assert_eq!(fields[1]["type"], "geo.City");
        assert_eq!((&fields[2]["type"][1], &fields[3]["type"]), (&"n.Row".into(), &"long".into()));
    }

    #[test]
    fn wrong_schemas_have_a_reason() {
        let refused = |schema: &WriterSchema| resolve(schema).unwrap_err();
        let row = r#"{"type": "record", "name": "R", "fields": [{"name": "x", "type": "X"}]}"#;
        assert!(refused(&with("{", &[])).contains("it is no JSON"));
        assert!(refused(&with(row, &[("X", "[")])).contains("it is no JSON"));
        let empty = r#"{"type": "array", "items": "null"}"#;
        assert!(refused(&with(row, &[("X", empty)])).contains("whose items take no bytes"));
        let other = WriterSchema::plain(SchemaLanguage::Other("JSON".to_owned()), "{}");
        assert!(refused(&other).contains("it is one of JSON"));
        // Types that contain each other are named where they were defined.
        let chain: Vec<(String, String)> = (0..DEEPEST)
            .map(|i| {
                (
                    format!("T{i}"),
                    row.replace('R', &format!("T{i}")).replace('X', &format!("T{}", i + 1)),
                )
            })
            .collect();
        let chain: Vec<(&str, &str)> =
            chain.iter().map(|(n, t)| (n.as_str(), t.as_str())).collect();
        let reason = refused(&with(&row.replace('X', "T0"), &chain));
        assert!(reason.contains("nested too deeply"), "{reason}");
    }
}
