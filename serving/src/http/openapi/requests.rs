//! The schemas of the request bodies of a model.
//!
//! The schemas are as narrow as the server: the server scores a body that they allow, and refuses a
//! body that they do not allow. Three rules are described in words instead, because a schema cannot
//! express them: see the module above.

use serde::Serialize;
use serde_json::{Map, Value, json};
use zillion_feature::{Encoder, InputKind, InputSpec, RawType};
use zillion_scorer::Servable;

use super::super::parameters::MOST_PARAMETERS;
use super::super::rows::SIGNATURE;
use super::remove_keys;
use crate::describe::{self, unique_inputs};
use crate::score::output_names;
use crate::tensor::{Datatype, LENGTHS};

/// The inputs of a model, with the values that they accept.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Inputs(Vec<Input>);

#[derive(Clone, Debug, PartialEq)]
struct Input {
    name: String,
    datatype: Datatype,
    is_list: bool,
    needs_value: bool,
    /// Whether the values are times, which are sent as texts.
    is_time: bool,
    /// The number of values in each row, if the input is a vector.
    size: Option<usize>,
    /// The numbers that the input accepts, as doubles and as floats of 32 bits.
    doubles: (f64, f64),
    floats: (f64, f64),
}

/// The number of values in each row of an input with lists, for the forms of one, two and three
/// rows.
const ROWS: [&[usize]; 3] = [&[1], &[2, 1], &[0, 1, 3]];

impl Inputs {
    pub(super) fn of(encoder: &Encoder) -> Self {
        let input = |spec: &InputSpec| {
            let takes = |x: f64| encoder.takes_number(&spec.name, x);
            Input {
                name: spec.name.clone(),
                datatype: describe::datatype(spec),
                is_list: spec.is_list,
                needs_value: spec.needs_value,
                is_time: spec.kind == InputKind::Time,
                size: spec.size,
                doubles: range(takes),
                floats: range(|x| takes(f64::from(x as f32))),
            }
        };
        Self(unique_inputs(encoder).map(input).collect())
    }

    /// Returns the schema of a body by the name of the schema.
    pub(super) fn request(&self, body: &str, servable: &Servable) -> Value {
        match body {
            "InferRequest" => self.infer(servable),
            "PredictRequest" => self.predict(),
            "RetrieveRequest" => retrieve(servable),
            "ExamplesRequest" => self.with_context("examples", "signature_name", signature()),
            _ => {
                let top_k =
                    json!({ "type": ["integer", "null"], "minimum": 0, "maximum": u64::MAX });
                self.with_context("candidates", "top_k", top_k)
            }
        }
    }

    fn infer(&self, servable: &Servable) -> Value {
        let inputs: Vec<Value> = ROWS.iter().map(|lengths| self.tensors(lengths)).collect();
        let outputs: Vec<String> = output_names(servable).into_iter().map(|o| o.name).collect();
        let own = json!({ "type": ["string", "number", "boolean"] });
        let parameters = |ours: &str| {
            json!({
                "type": "object",
                "properties": { ours: { "type": "boolean" } },
                "additionalProperties": own,
                "maxProperties": MOST_PARAMETERS,
            })
        };
        let output = |name: Value| {
            object(json!({ "name": name, "parameters": parameters("binary_data") }), &["name"])
        };
        // A schema cannot require that names differ, so that it has one output, or all in order.
        let all: Vec<Value> = outputs.iter().map(|name| output(json!({ "const": name }))).collect();
        let count = all.len();
        object(
            json!({
                "id": { "type": ["string", "null"], "description": "The answer repeats this id." },
                "parameters": parameters("binary_data_output"),
                "inputs": { "description": "The forms for one, two and three rows; more rows are accepted too.", "anyOf": inputs },
                "outputs": {
                    "description": "The outputs to return. Without any, the answer has the probabilities. The forms have one output, or all of them; any others are accepted too, in any order, each at most once.",
                    "anyOf": [
                        { "type": "array", "items": output(json!({ "enum": outputs })), "maxItems": 1 },
                        { "type": "array", "prefixItems": all, "items": false, "minItems": count },
                    ],
                },
            }),
            &["inputs"],
        )
    }

    /// Describes the tensors of this number of rows.
    fn tensors(&self, lengths: &[usize]) -> Value {
        let mut tensors = Vec::new();
        for input in &self.0 {
            if let Some(size) = input.size {
                let shape = [lengths.len(), size];
                tensors.push(tensor(&input.name, input.datatype, &shape, &input.float()));
                continue;
            }
            let values = if input.is_list { lengths.iter().sum() } else { lengths.len() };
            tensors.push(tensor(&input.name, input.datatype, &[values], &input.element()));
            if input.is_list {
                let name = format!("{}{LENGTHS}", input.name);
                let mut described = tensor(&name, Datatype::Int64, &[lengths.len()], &json!({}));
                described["properties"]["data"] = json!({ "const": lengths });
                tensors.push(described);
            }
        }
        let count = tensors.len();
        json!({ "type": "array", "prefixItems": tensors, "items": false, "minItems": count })
    }

    fn predict(&self) -> Value {
        let mut instance = self.row(&self.0);
        if let [only] = &self.0[..] {
            instance = json!({ "anyOf": [instance, only.in_row()] });
        }
        let instances = json!({ "type": "array", "minItems": 1, "items": instance });
        let columns = |lengths: &&[usize]| {
            let column = |input: &Input| {
                let rows = lengths.len();
                let column = json!({ "type": "array", "items": input.in_row(), "minItems": rows, "maxItems": rows });
                (input.name.clone(), column)
            };
            let properties: Map<String, Value> = self.0.iter().map(column).collect();
            match (&self.0[..], properties.values().next()) {
                ([only], Some(column)) => {
                    let named = object(json!({ &only.name: column }), &[&only.name]);
                    json!({ "anyOf": [named, column] })
                }
                _ => all_of(properties),
            }
        };
        let inputs: Vec<Value> = ROWS.iter().map(columns).collect();
        let inputs = json!({ "description": "The forms for one, two and three rows; more rows are accepted too.", "anyOf": inputs });
        json!({ "anyOf": [
            object(json!({ "signature_name": signature(), "instances": instances }), &["instances"]),
            object(json!({ "signature_name": signature(), "inputs": inputs }), &["inputs"]),
        ] })
    }

    /// Describes rows that share a context: either the context has an input, or all rows do.
    fn with_context(&self, list: &str, name: &str, more: Value) -> Value {
        let rows =
            |inputs: &[Input]| json!({ "type": "array", "minItems": 1, "items": self.row(inputs) });
        let nothing = object(json!({}), &[]);
        let alone = object(json!({ name: more, "context": nothing, list: rows(&self.0) }), &[list]);
        let forms = match self.0.split_at_checked(1) {
            Some((first, rest)) if !rest.is_empty() => {
                let shared = object(
                    json!({ name: more, "context": self.row(first), list: rows(rest) }),
                    &["context", list],
                );
                vec![alone, shared]
            }
            _ => vec![alone],
        };
        json!({
            "description": "Each input is either in `context`, for all rows, or in every row. The forms have all of them in the rows, or the first one in `context`; any other division is accepted too.",
            "anyOf": forms,
        })
    }

    fn row(&self, inputs: &[Input]) -> Value {
        let field = |input: &Input| (input.name.clone(), input.in_row());
        all_of(inputs.iter().map(field).collect())
    }
}

/// Describes a request for the nearest items of a user.
fn retrieve(servable: &Servable) -> Value {
    let Some(retrievable) = servable.retrievable() else { return object(json!({}), &[]) };
    let user = Inputs::of(retrievable.encoder());
    // The ids of items that are integers may be written as texts.
    let id = match retrievable.items().ids().raw() {
        RawType::String => json!({ "type": "string" }),
        RawType::I64 => within(&["integer"], i64::MIN, i64::MAX),
        RawType::U64 => within(&["integer"], 0, u64::MAX),
    };
    let ids = |text: &str| json!({ "type": ["array", "null"], "items": id, "description": text });
    object(
        json!({
            "context": user.row(&user.0),
            "k": { "type": ["integer", "null"], "minimum": 1, "description": "The number of items; without it, 10. The server refuses more than its setting `max_retrieved`, which is 1000 unless set." },
            "only": ids("The ids of the only items that may be returned."),
            "exclude": ids("The ids of items that may not be returned."),
            "exact": { "type": ["boolean", "null"], "description": "Whether no better item may be missing; without it, the number of items decides." },
        }),
        &["context"],
    )
}

impl Input {
    /// Describes an element of a tensor.
    fn element(&self) -> Value {
        let mut schema = match self.datatype {
            Datatype::Int64 => within(&["integer"], i64::MIN, i64::MAX),
            Datatype::Uint64 => within(&["integer"], 0, u64::MAX),
            Datatype::Bytes if self.is_time => time(),
            Datatype::Bytes => json!({ "type": ["string"] }),
            _ => within(&["number"], self.floats.0, self.floats.1),
        };
        if !self.needs_value {
            push_type(&mut schema, "null");
        }
        schema
    }

    /// Describes a number of a vector.
    fn float(&self) -> Value {
        within(&["number"], self.floats.0, self.floats.1)
    }

    /// Describes a value of a row.
    fn in_row(&self) -> Value {
        if let Some(size) = self.size {
            let mut schema = json!({
                "type": ["array"], "items": self.float(), "minItems": size, "maxItems": size,
            });
            if !self.needs_value {
                push_type(&mut schema, "null");
            }
            return schema;
        }
        let scalar = self.scalar();
        let mut schema = scalar.clone();
        push_type(&mut schema, "array");
        schema["items"] = scalar;
        if self.is_list {
            schema["description"] = "A list of any length. A value that is no list counts as a list of one, but a text must be in a list.".into();
            if let Some(types) = schema["type"].as_array_mut() {
                types.retain(|name| name != "string" && name != "object");
            }
            remove_keys(
                &mut schema,
                &["pattern", "properties", "required", "additionalProperties"],
            );
        } else {
            schema["minItems"] = 1.into();
            schema["maxItems"] = 1.into();
        }
        schema
    }

    /// Describes one value. Numbers may be written as texts, and truth values as 1 and 0 or as
    /// words.
    fn scalar(&self) -> Value {
        let whole = ["integer", "string", "boolean"];
        let mut schema = match self.datatype {
            Datatype::Int64 => {
                let mut schema = within(&whole, i64::MIN, i64::MAX);
                schema["pattern"] = "^(-?[0-9]{1,18})?$".into();
                schema
            }
            Datatype::Uint64 => {
                let mut schema = within(&whole, 0, u64::MAX);
                schema["pattern"] = "^([0-9]{1,19})?$".into();
                schema
            }
            Datatype::Bytes if self.is_time => time(),
            Datatype::Bytes => json!({
                "type": ["integer", "string", "boolean", "object"],
                "minimum": i64::MIN,
                "maximum": u64::MAX,
                "properties": { "b64": { "type": "string", "pattern": ASCII_BASE64 } },
                "required": ["b64"],
                "additionalProperties": false,
            }),
            _ => {
                let (low, high) = self.doubles;
                let mut schema = within(&["number", "string", "boolean"], low, high);
                let pattern = r"-?[0-9]{1,9}(\.[0-9]{1,9})?";
                schema["pattern"] = match self.needs_value {
                    true => format!("^{pattern}$").into(),
                    false => format!("^({pattern})?$").into(),
                };
                schema
            }
        };
        if !self.needs_value {
            push_type(&mut schema, "null");
        }
        schema
    }
}

/// A pattern of the base64 of any ASCII text. Other UTF-8 is accepted too, but no pattern of a
/// sensible length describes it.
const ASCII_BASE64: &str =
    "^([A-Za-f][A-HQ-Xg-nw-z0-3][ABEFIJMNQRUVYZcdghklopstwx014589][A-Za-z0-9+/])*$";

/// Describes a time. Other forms of dates are accepted too, and numbers if the feature has a unit,
/// but this form always is.
fn time() -> Value {
    json!({
        "type": ["string"],
        "description": "A time of ISO 8601. Dates alone, and other usual forms, are read too.",
        "pattern": "^(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z$",
    })
}

fn signature() -> Value {
    json!({ "enum": [SIGNATURE, null] })
}

fn tensor(name: &str, datatype: Datatype, shape: &[usize], element: &Value) -> Value {
    let values: usize = shape.iter().product();
    object(
        json!({
            "name": { "const": name },
            "datatype": { "const": datatype.name() },
            "shape": { "const": shape },
            "data": { "type": "array", "items": element, "minItems": values, "maxItems": values },
        }),
        &["name", "datatype", "shape", "data"],
    )
}

/// Describes an object that has all of these properties and no others.
fn all_of(properties: Map<String, Value>) -> Value {
    let names: Vec<&String> = properties.keys().collect();
    json!({ "type": "object", "required": names, "properties": properties, "additionalProperties": false })
}

/// Describes an object that has the required properties and no unknown ones.
fn object(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "required": required, "properties": properties, "additionalProperties": false })
}

/// Describes values of these types, with the least and the greatest number.
fn within<T: Serialize>(types: &[&str], low: T, high: T) -> Value {
    json!({ "type": types, "minimum": low, "maximum": high })
}

fn push_type(schema: &mut Value, name: &str) {
    if let Some(types) = schema["type"].as_array_mut() {
        types.push(name.into());
    }
}

/// Returns the least and the greatest accepted number. Zero must be accepted, and the accepted
/// numbers must have no gap.
fn range(takes: impl Fn(f64) -> bool) -> (f64, f64) {
    // The bits of positive numbers have the order of the numbers.
    let greatest = |sign: f64| {
        let (mut low, mut high) = (0u64, f64::MAX.to_bits());
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            match takes(sign * f64::from_bits(middle)) {
                true => low = middle,
                false => high = middle - 1,
            }
        }
        sign * f64::from_bits(low)
    };
    (greatest(-1.0), greatest(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_accepted_values() {
        assert_eq!(range(|x| x.is_finite()), (f64::MIN, f64::MAX));
        assert_eq!(range(|x| (-1.5..=1e30).contains(&x)), (-1.5, 1e30));
        let (low, high) = range(|x| (x as f32).is_finite());
        assert!((high as f32).is_finite() && high > f64::from(f32::MAX) && low == -high);
        assert!(!(f64::from_bits(high.to_bits() + 1) as f32).is_finite());
    }
}
