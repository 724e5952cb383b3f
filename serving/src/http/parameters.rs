//! The parameters of the Open Inference Protocol and of Triton: names with texts, numbers or truth
//! values.
//!
//! A parameter that would change the answer is either honoured or refused by name. Any other
//! parameter is ignored: the protocol passes such parameters to the model, and the models of this
//! server read none.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use crate::error::{Result, ServeError};
use crate::tensor::MOST_NAME_BYTES;
use crate::text::shorten;

/// The largest number of parameters of a request, an input or an output.
pub(super) const MOST_PARAMETERS: usize = 64;

/// The parameters of a request, an input or an output.
#[derive(Debug, Default)]
pub(super) struct Parameters(BTreeMap<String, Parameter>);

/// The value of one parameter.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Parameter {
    Bool(bool),
    Whole(u64),
    Number(f64),
    Text(String),
}

/// The parameters of shared memory, which this server does not support.
const SHARED_MEMORY: [&str; 3] =
    ["shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"];
/// The parameters of sequences of requests, which this server does not support.
const SEQUENCE: [&str; 3] = ["sequence_id", "sequence_start", "sequence_end"];

impl Parameters {
    /// Returns the value of a parameter that is true or false.
    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>> {
        match self.0.get(name) {
            None => Ok(None),
            Some(Parameter::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(refuse(name, "the value is neither true nor false; send one of them")),
        }
    }

    /// Returns the value of a parameter that is an integer of at least 0.
    pub(super) fn integer(&self, name: &str) -> Result<Option<u64>> {
        match self.0.get(name) {
            None => Ok(None),
            Some(Parameter::Whole(number)) => Ok(Some(*number)),
            Some(_) => Err(refuse(
                name,
                "the value is not an integer of at least 0; send such an \
                                         integer",
            )),
        }
    }

    /// Refuses the parameters of a request that cannot be honoured.
    pub(super) fn check_request(&self) -> Result<()> {
        self.refuse_all(
            &SEQUENCE,
            "sequences of requests are not supported; remove the parameter",
        )?;
        if self.integer("priority")?.is_some_and(|priority| priority != 0) {
            return Err(refuse(
                "priority",
                "priorities are not supported, because requests are answered in the order of \
                 their arrival; remove the parameter",
            ));
        }
        self.check_spelling(&["binary_data_output", "timeout", "priority"])
    }

    /// Refuses the parameters of an input that cannot be honoured.
    pub(super) fn check_input(&self) -> Result<()> {
        self.refuse_all(
            &SHARED_MEMORY,
            "shared memory is not supported; send the data in the body",
        )?;
        self.check_spelling(&["binary_data_size", "shared"])
    }

    /// Refuses the parameters of an output that cannot be honoured.
    pub(super) fn check_output(&self) -> Result<()> {
        self.refuse_all(
            &SHARED_MEMORY,
            "shared memory is not supported; send the data in the body",
        )?;
        if self.integer("classification")?.is_some_and(|classes| classes != 0) {
            let reason = "an output has one number for each row and no classes; remove the \
                          parameter, or send the rows to `/v1/models/<model>:classify`";
            return Err(refuse("classification", reason));
        }
        self.check_spelling(&["binary_data", "classification"])
    }

    /// Refuses the parameters of a load request that would change the model, which is always what
    /// was published.
    pub(super) fn check_load(&self) -> Result<()> {
        let is_file = |name: &&String| name.as_str() == "config" || name.starts_with("file:");
        match self.0.keys().find(is_file) {
            Some(name) => Err(refuse(
                name,
                "the parameter is not supported, because a model is loaded as it \
                                  was published; remove it",
            )),
            None => Ok(()),
        }
    }

    fn refuse_all(&self, names: &[&str], reason: &str) -> Result<()> {
        match names.iter().find(|name| self.0.contains_key(**name)) {
            Some(name) => Err(refuse(name, reason)),
            None => Ok(()),
        }
    }

    /// Refuses a parameter whose name is nearly that of a known one, because it is a misspelling.
    fn check_spelling(&self, ours: &[&str]) -> Result<()> {
        let foreign = |name: &&String| !ours.contains(&name.as_str());
        for name in self.0.keys().filter(foreign) {
            let near = zillion_config::nearest(name, comparable(name, ours));
            if let Some(near) = near {
                return Err(refuse(name, &format!("unknown parameter; did you mean `{near}`?")));
            }
        }
        Ok(())
    }
}

/// Returns the known names of which `name` may be a misspelling by its length. Comparing long names
/// letter by letter takes long.
fn comparable<'a>(name: &str, ours: &[&'a str]) -> impl Iterator<Item = &'a str> {
    let length = name.len();
    ours.iter().copied().filter(move |ours| length.abs_diff(ours.len()) <= 2)
}

fn refuse(name: &str, reason: &str) -> ServeError {
    ServeError::Malformed(format!("parameter `{}`: {reason}", shorten(name)))
}

/// A derived reader of several kinds keeps a copy of any value, a list of millions too, until it
/// has tried them all. This one refuses a list at its first byte.
impl<'de> Deserialize<'de> for Parameter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Single;
        impl Visitor<'_> for Single {
            type Value = Parameter;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a number, true or false as a parameter")
            }

            fn visit_bool<E>(self, flag: bool) -> Result<Parameter, E> {
                Ok(Parameter::Bool(flag))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Parameter, E> {
                Ok(Parameter::Whole(number))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Parameter, E> {
                let whole = u64::try_from(number).map(Parameter::Whole);
                Ok(whole.unwrap_or(Parameter::Number(number as f64)))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Parameter, E> {
                Ok(Parameter::Number(number))
            }

            fn visit_str<E>(self, text: &str) -> Result<Parameter, E> {
                Ok(Parameter::Text(text.to_owned()))
            }
        }
        deserializer.deserialize_any(Single)
    }
}

impl<'de> Deserialize<'de> for Parameters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Parameters;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of parameters")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parameters, A::Error> {
                let mut parameters = BTreeMap::new();
                while let Some((name, parameter)) = map.next_entry::<String, Parameter>()? {
                    if name.len() > MOST_NAME_BYTES || parameters.len() == MOST_PARAMETERS {
                        return Err(A::Error::custom(format!(
                            "the request has more than {MOST_PARAMETERS} parameters, or a \
                             parameter whose name has more than {MOST_NAME_BYTES} bytes; send only \
                             the parameters of the protocol"
                        )));
                    }
                    if parameters.contains_key(&name) {
                        let name = shorten(&name);
                        return Err(A::Error::custom(format!(
                            "parameter `{name}` appears twice; send it once"
                        )));
                    }
                    parameters.insert(name, parameter);
                }
                Ok(Parameters(parameters))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Parameters {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn unsupported_parameters_are_refused_by_name() {
        for (json, message) in [
            (
                r#"{"sequence_id": 7}"#,
                "parameter `sequence_id`: sequences of requests are not supported",
            ),
            (r#"{"priority": 1}"#, "parameter `priority`: priorities are not supported"),
            (r#"{"binary_output_data": true}"#, "did you mean `binary_data_output`?"),
        ] {
            let refused = read(json).check_request().unwrap_err().to_string();
            assert!(refused.contains(message), "{json}: {refused}");
        }
        read(r#"{"priority": 0, "trace": "abc", "weight": 0.5, "x": -1, "timeout": 5}"#)
            .check_request()
            .unwrap();
        let refused = read(r#"{"classification": 3}"#).check_output().unwrap_err().to_string();
        assert!(
            refused.contains("parameter `classification`") && refused.contains(":classify`"),
            "{refused}"
        );
        let shared = read(r#"{"shared_memory_region": "x"}"#);
        assert!(shared.check_input().is_err() && shared.check_output().is_err());
        assert!(read(r#"{"timeout": -1}"#).integer("timeout").is_err());
        assert!(read(r#"{"binary_data": 1}"#).flag("binary_data").is_err());
    }

    #[test]
    fn long_names_are_not_compared() {
        let ours = ["binary_data", "classification"];
        let of = |name: &str| comparable(name, &ours).collect::<Vec<_>>();
        assert_eq!(of("binary_date"), ["binary_data"]);
        assert_eq!(of("classifications"), ["classification"]);
        assert!(of(&"binary_data".repeat(90)).is_empty() && of("").is_empty());
        let near = read(r#"{"binary_date": true}"#).check_output().unwrap_err().to_string();
        assert!(near.contains("did you mean `binary_data`?"), "{near}");
    }

    #[test]
    fn a_parameter_is_one_value_and_stands_once() {
        let refused = |json| serde_json::from_str::<Parameters>(json).unwrap_err().to_string();
        assert!(refused(r#"{"a": 1, "a": 2}"#).contains("`a` appears twice"));
        assert!(refused(r#"{"a": [1]}"#).contains("a text, a number, true or false"));
        assert!(refused("[1]").contains("an object of parameters"));
        assert!(refused(r#"{"a": {"b": 1}}"#).contains("a text, a number, true or false"));
        assert!(refused(r#"{"a": null}"#).contains("a text, a number, true or false"));
        assert_eq!(read(r#"{"a": -1}"#).0["a"], Parameter::Number(-1.0));
    }

    #[test]
    fn parameters_are_few_and_have_short_names() {
        let object = |count: usize| {
            let fields: Vec<String> = (0..count).map(|i| format!("\"{i}\": 1")).collect();
            format!("{{{}}}", fields.join(","))
        };
        assert_eq!(read(&object(64)).0.len(), 64);
        let many = serde_json::from_str::<Parameters>(&object(65)).unwrap_err().to_string();
        assert!(many.contains("more than 64 parameters"), "{many}");
        let long = format!(r#"{{"{}": 1}}"#, "x".repeat(1025));
        assert!(serde_json::from_str::<Parameters>(&long).is_err());
    }
}
