//! The conversion of JSON values to raw values, for all protocols in JSON.
//!
//! Numbers keep their kind: an integer goes through `i64` or `u64` and never through a float. A
//! number with a fraction of zero, such as `42.0`, is an integer too, because JSON Schema sees no
//! difference and some writers make none. A list is flattened in order, and the protocol decides
//! how deep lists may nest.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_PAD_INDIFFERENT as BASE64;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use zillion_feature::RawValue;

use crate::config::Limits;
use crate::error::ServeError;
use crate::tensor::{too_many_rows, too_many_values};

/// A reader of any JSON value, which passes the value to a visitor with a state.
pub(super) struct Seed<V>(pub(super) V);

impl<'de, V: Visitor<'de>> DeserializeSeed<'de> for Seed<V> {
    type Value = V::Value;

    #[inline]
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        deserializer.deserialize_any(self.0)
    }
}

/// The values and rows that a reader may still read. The parser ends where they end, so that the
/// memory of a request has the limits of the request.
#[derive(Debug)]
pub(super) struct Meter {
    limits: Limits,
    values: usize,
    /// The limit that the request exceeds, if it exceeds one.
    pub(super) exceeded: Option<ServeError>,
}

impl Meter {
    /// Creates the meter of a request.
    pub(super) fn new(limits: &Limits) -> Self {
        Self { limits: *limits, values: limits.values, exceeded: None }
    }

    /// Takes one value of a tensor.
    #[inline]
    fn take_value<E: Error>(&mut self) -> Result<(), E> {
        match self.values.checked_sub(1) {
            Some(left) => {
                self.values = left;
                Ok(())
            }
            None => Err(self.end(too_many_values(&self.limits))),
        }
    }

    /// Takes the row that follows `rows` rows.
    pub(super) fn take_row<E: Error>(&mut self, rows: usize) -> Result<(), E> {
        match rows < self.limits.rows {
            true => Ok(()),
            false => Err(self.end(too_many_rows(&self.limits))),
        }
    }

    /// Keeps the error of a limit, and returns the error that ends the parser.
    #[cold]
    fn end<E: Error>(&mut self, exceeded: ServeError) -> E {
        let error = E::custom(&exceeded);
        self.exceeded = Some(exceeded);
        error
    }
}

/// A reader that appends a value, or the values of a list, to `into`. The result is whether the
/// value was a list.
pub(super) struct Values<'v, 'a> {
    pub(super) into: &'v mut Vec<RawValue<'a>>,
    pub(super) nesting: Nesting,
    pub(super) meter: &'v mut Meter,
}

impl<'a> Values<'_, 'a> {
    #[inline]
    fn push<E: Error>(self, value: RawValue<'a>) -> Result<bool, E> {
        self.meter.take_value()?;
        self.into.push(value);
        Ok(false)
    }
}

/// The structure that a value may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nesting {
    /// The depth to which lists may nest. The parser has a limit of its own, so that no body
    /// exhausts the stack.
    pub(super) lists: usize,
    /// Whether an object `{"b64": …}` is a text.
    pub(super) base64: bool,
}

impl<'de: 'a, 'a> Visitor<'de> for Values<'_, 'a> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or a list of values")
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<bool, E> {
        self.push(RawValue::Bool(flag))
    }

    #[inline]
    fn visit_i64<E: Error>(self, value: i64) -> Result<bool, E> {
        self.push(RawValue::Int(value))
    }

    #[inline]
    fn visit_u64<E: Error>(self, value: u64) -> Result<bool, E> {
        self.push(i64::try_from(value).map_or(RawValue::Uint(value), RawValue::Int))
    }

    #[inline]
    fn visit_f64<E: Error>(self, value: f64) -> Result<bool, E> {
        self.push(to_integer(value).map_or(RawValue::Float(value), RawValue::Int))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<bool, E> {
        // The copy has no spare bytes, so that texts take no more memory than the body.
        self.push(RawValue::Text(Cow::Owned(value.to_owned())))
    }

    #[inline]
    fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<bool, E> {
        self.push(RawValue::Text(Cow::Borrowed(value)))
    }

    fn visit_unit<E: Error>(self) -> Result<bool, E> {
        self.push(RawValue::Missing)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<bool, A::Error> {
        let Some(lists) = self.nesting.lists.checked_sub(1) else {
            return Err(A::Error::custom(
                "a list inside a list is not supported; send a flat list",
            ));
        };
        let nesting = Nesting { lists, ..self.nesting };
        let Self { into, meter, .. } = self;
        while list.next_element_seed(Seed(Values { into, nesting, meter }))?.is_some() {}
        Ok(true)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let takes = if self.nesting.base64 { ", {\"b64\": text}" } else { "" };
        let refusal = || {
            A::Error::custom(format!(
                "the value is an object; send a number, a text, true, false, null{takes} or a \
                 list of these"
            ))
        };
        if !self.nesting.base64 {
            return Err(refusal());
        }
        if map.next_key::<Cow<'de, str>>()?.as_deref() != Some("b64") {
            return Err(refusal());
        }
        let encoded = map.next_value::<Cow<'de, str>>()?;
        if map.next_key::<Cow<'de, str>>()?.is_some() {
            return Err(refusal());
        }
        let bytes = BASE64.decode(encoded.as_bytes()).map_err(|_| {
            A::Error::custom(
                "the text of `b64` is not base64; encode the UTF-8 bytes of the text in base64",
            )
        })?;
        let text = String::from_utf8(bytes).map_err(|_| {
            A::Error::custom(
                "the bytes of `b64` are not UTF-8 text; encode the UTF-8 bytes of the text in \
                 base64",
            )
        })?;
        self.push(RawValue::Text(Cow::Owned(text)))
    }
}

/// Returns the integer that a float represents, if the float differs from those of the neighbouring
/// integers. Negative zero stays a float.
pub(super) fn to_integer(x: f64) -> Option<i64> {
    const EXACT: f64 = (1u64 << f64::MANTISSA_DIGITS) as f64;
    let is_whole = x.fract() == 0.0 && x.abs() <= EXACT && !(x == 0.0 && x.is_sign_negative());
    is_whole.then_some(x as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str, nesting: Nesting) -> Result<(Vec<RawValue<'_>>, bool), String> {
        let mut into = Vec::new();
        let mut meter = Meter::new(&Limits::default());
        let mut json = serde_json::Deserializer::from_str(json);
        let seed = Seed(Values { into: &mut into, nesting, meter: &mut meter });
        let is_list = seed.deserialize(&mut json);
        is_list.map(|is_list| (into, is_list)).map_err(|e| e.to_string())
    }

    const ANY: Nesting = Nesting { lists: usize::MAX, base64: false };
    const ROW: Nesting = Nesting { lists: 1, base64: true };

    #[test]
    fn numbers_keep_their_kind() {
        let json = r#"[[1, -9223372036854775808], [18446744073709551615, 1.5], ["a\n", "b"], true, null, []]"#;
        let text = |t: &str| RawValue::Text(t.to_owned().into());
        let values = [
            RawValue::Int(1),
            RawValue::Int(i64::MIN),
            RawValue::Uint(u64::MAX),
            RawValue::Float(1.5),
            text("a\n"),
            text("b"),
            RawValue::Bool(true),
            RawValue::Missing,
        ];
        assert_eq!(read(json, ANY), Ok((values.to_vec(), true)));
        assert_eq!(read("7", ROW), Ok((vec![RawValue::Int(7)], false)));
        for (json, value) in [
            ("42.0", RawValue::Int(42)),
            ("-9007199254740992.0", RawValue::Int(-(1 << 53))),
            ("9007199254740994.0", RawValue::Float(9_007_199_254_740_994.0)),
            ("-0.0", RawValue::Float(-0.0)),
            ("1e300", RawValue::Float(1e300)),
        ] {
            assert_eq!(read(json, ROW), Ok((vec![value], false)), "{json}");
        }
        assert!(read(r#"[{"a": 1}]"#, ANY).unwrap_err().contains("the value is an object"));
    }

    #[test]
    fn values_count_while_they_are_read() {
        let limits = Limits { values: 100, ..Limits::default() };
        for value in ["1", "-1", "1.5", "true", "null", r#""a""#, r#""\n""#, r#"{"b64": ""}"#] {
            let read = |count: usize| {
                let json = format!("[[{}]]", vec![value; count].join(","));
                let (mut into, mut meter) = (Vec::new(), Meter::new(&limits));
                let nesting = Nesting { lists: 2, base64: true };
                let seed = Seed(Values { into: &mut into, nesting, meter: &mut meter });
                let read = seed.deserialize(&mut serde_json::Deserializer::from_str(&json));
                (read.is_ok(), into.len(), meter.exceeded.map(|error| error.to_string()))
            };
            assert_eq!(read(100), (true, 100, None), "{value}");
            let (is_read, values, exceeded) = read(100_000);
            assert!(
                !is_read && exceeded.is_some_and(|e| e.contains("serve.max_values")),
                "{value}"
            );
            assert_eq!(values, 100, "{value}");
        }
    }

    #[test]
    fn a_text_takes_no_more_memory_than_the_body() {
        assert!(size_of::<RawValue<'_>>() <= 24);
        let escaped =
            format!(r#"["{}", {{"b64": "{}"}}]"#, r"\n".repeat(1000), "YWJj".repeat(1000));
        let (values, _) = read(&escaped, Nesting { lists: 1, base64: true }).unwrap();
        for (value, bytes) in values.iter().zip([1000, 3000]) {
            let RawValue::Text(Cow::Owned(text)) = value else { panic!("{value:?}") };
            assert!(text.len() == bytes && text.capacity() <= bytes + 4, "{}", text.capacity());
        }
        let (values, _) = read(r#"["abc"]"#, ANY).unwrap();
        assert!(matches!(values[..], [RawValue::Text(Cow::Borrowed("abc"))]));
    }

    #[test]
    fn nesting_is_limited() {
        assert!(read("[[1]]", ROW).unwrap_err().contains("inside a list"));
        assert!(read(&"[".repeat(100_000), ANY).unwrap_err().contains("recursion"));
    }

    #[test]
    fn base64_is_text() {
        let text = |t: &str| RawValue::Text(t.to_owned().into());
        for (json, value) in [
            ("aMOpIQ==", "h\u{e9}!"),
            ("aMOpIQ", "h\u{e9}!"),
            ("YWJj", "abc"),
            ("", ""),
            ("YWI=", "ab"),
        ] {
            let json = format!(r#"{{"b64": "{json}"}}"#);
            assert_eq!(read(&json, ROW), Ok((vec![text(value)], false)), "{json}");
        }
        for bad in ["A", "A===", "YW==J", "YWJj=", "YR==", "Y W=", "\u{e9}\u{e9}"] {
            let json = format!(r#"{{"b64": "{bad}"}}"#);
            assert!(read(&json, ROW).unwrap_err().contains("not base64"), "{json}");
        }
        assert!(read(r#"{"b64": "/w=="}"#, ROW).unwrap_err().contains("not UTF-8"));
        for bad in [r#"{"b64": "YWJj", "x": 1}"#, r#"{"x": "YWJj"}"#, "{}"] {
            assert!(read(bad, ROW).unwrap_err().contains("the value is an object"), "{bad}");
        }
    }
}
