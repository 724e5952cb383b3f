//! JSON values to raw columns: what the JSON protocols share.
//!
//! Numbers keep what they were written as: a whole number goes through `i64` or `u64` and never through a
//! float. Arrays are flattened in order; how deep they may nest is the parser's limit.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use zillion_feature::RawValue;

/// A value, or a list of values however nested: the values in order, and whether it was a list.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Flat<'a> {
    pub(crate) values: Vec<RawValue<'a>>,
    pub(crate) is_list: bool,
}

impl<'de: 'a, 'a> Deserialize<'de> for Flat<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut values = Vec::new();
        let is_list = deserializer.deserialize_any(Flatten { values: &mut values })?;
        Ok(Self { values, is_list })
    }
}

struct Flatten<'v, 'a> {
    values: &'v mut Vec<RawValue<'a>>,
}

/// Deserialises what is nested into the same values.
impl<'de: 'a, 'a> serde::de::DeserializeSeed<'de> for Flatten<'_, 'a> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de: 'a, 'a> Visitor<'de> for Flatten<'_, 'a> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or a list of values")
    }

    fn visit_bool<E>(self, value: bool) -> Result<bool, E> {
        self.values.push(RawValue::Int(i64::from(value)));
        Ok(false)
    }

    fn visit_i64<E>(self, value: i64) -> Result<bool, E> {
        self.values.push(RawValue::Int(value));
        Ok(false)
    }

    fn visit_u64<E>(self, value: u64) -> Result<bool, E> {
        self.values.push(i64::try_from(value).map_or(RawValue::Uint(value), RawValue::Int));
        Ok(false)
    }

    fn visit_f64<E>(self, value: f64) -> Result<bool, E> {
        self.values.push(RawValue::Float(value));
        Ok(false)
    }

    fn visit_str<E>(self, value: &str) -> Result<bool, E> {
        self.values.push(RawValue::Text(Cow::Owned(value.to_owned())));
        Ok(false)
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<bool, E> {
        self.values.push(RawValue::Text(Cow::Borrowed(value)));
        Ok(false)
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        self.values.push(RawValue::Missing);
        Ok(false)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<bool, A::Error> {
        while seq.next_element_seed(Flatten { values: self.values })?.is_some() {}
        Ok(true)
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<bool, A::Error> {
        Err(A::Error::custom("a value is a number, a text, true, false, null or a list of those"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_what_they_are_written_as() {
        let flat: Flat<'_> = serde_json::from_str(
            r#"[[1, -9223372036854775808], [18446744073709551615, 1.5], ["a\n", "b"], true, null, []]"#,
        )
        .unwrap();
        let text = |t: &str| RawValue::Text(t.to_owned().into());
        let values = [
            RawValue::Int(1),
            RawValue::Int(i64::MIN),
            RawValue::Uint(u64::MAX),
            RawValue::Float(1.5),
            text("a\n"),
            text("b"),
            RawValue::Int(1),
            RawValue::Missing,
        ];
        assert_eq!(flat, Flat { values: values.to_vec(), is_list: true });
        let single: Flat<'_> = serde_json::from_str("7").unwrap();
        assert_eq!(single, Flat { values: vec![RawValue::Int(7)], is_list: false });
        assert!(serde_json::from_str::<Flat<'_>>(r#"[{"a": 1}]"#).is_err());
    }

    #[test]
    fn nesting_has_an_end() {
        let deep = "[".repeat(100_000);
        assert!(serde_json::from_str::<Flat<'_>>(&deep).is_err());
    }
}
