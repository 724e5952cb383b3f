//! The parser of a line of JSON, which stores the values of the wanted keys.

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::JsonKeys;

/// The value of one key of an object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum JsonValue<'a> {
    /// The key is absent, or its value is null.
    Missing,
    /// A boolean, true or false.
    Bool(bool),
    /// A whole number that fits an `i64`.
    Int(i64),
    /// A whole number that fits a `u64` but not an `i64`.
    UInt(u64),
    /// A number with a fraction or an exponent, or a whole number that does not fit 64 bits.
    Float(f64),
    /// A string without escapes, borrowed from the line.
    Text(&'a str),
    /// A string with escapes. The two numbers are the byte offsets of its start and its end in the
    /// unescaped texts of the row.
    Unescaped(usize, usize),
    /// A list. The two numbers are the indices of its start and its end in [`JsonRow::items`].
    List(usize, usize),
    /// An object. Its contents are not stored.
    Object,
}

/// The values of one line. Its memory is reused for the next line.
#[derive(Debug, Default)]
pub struct JsonRow<'a> {
    /// The values, one for each key.
    values: Vec<JsonValue<'a>>,
    seen: Vec<bool>,
    items: Vec<JsonValue<'a>>,
    texts: String,
}

impl<'a> JsonRow<'a> {
    /// Reads a line, which must hold one object.
    ///
    /// # Errors
    /// Returns a message with the problem and the remedy if the line does not hold exactly one
    /// object.
    pub fn read(&mut self, line: &'a [u8], keys: &JsonKeys) -> Result<(), String> {
        self.values.clear();
        self.values.resize(keys.len(), JsonValue::Missing);
        self.seen.clear();
        self.seen.resize(keys.len(), false);
        self.items.clear();
        self.texts.clear();
        parse(line, ObjectSeed { row: self, keys })
    }

    /// Returns the value of the key with this number.
    pub fn value(&self, key: usize) -> JsonValue<'a> {
        self.values[key]
    }

    /// Returns the values of the list whose start and end [`JsonValue::List`] gives.
    pub fn items(&self, start: usize, end: usize) -> &[JsonValue<'a>] {
        &self.items[start..end]
    }

    /// Returns the text of a string, or `None` if the value is not a string.
    #[inline]
    pub fn text(&self, value: JsonValue<'a>) -> Option<&str> {
        match value {
            JsonValue::Text(text) => Some(text),
            JsonValue::Unescaped(start, end) => Some(&self.texts[start..end]),
            _ => None,
        }
    }
}

fn parse<'de, S: DeserializeSeed<'de, Value = ()>>(line: &'de [u8], seed: S) -> Result<(), String> {
    let mut deserializer = serde_json::Deserializer::from_slice(line);
    let read = seed.deserialize(&mut deserializer).and_then(|()| deserializer.end());
    read.map_err(|error| explain(line, &error))
}

/// Returns the problem that the parser reports, with a remedy. The message names the position in
/// the line. If the text has line breaks, it is a message of a stream and not a line, and the
/// message also names the number of the line.
#[cold]
fn explain(text: &[u8], error: &serde_json::Error) -> String {
    let reason = error.to_string();
    let reason = reason.split(" at line ").next().unwrap_or_default();
    let is_line = memchr::memchr(b'\n', text).is_none();
    let remedy = match text.trim_ascii() {
        [b'[', ..] => "; write one object a line instead of an array (`jq -c '.[]'`)",
        b"{" if is_line => "; write each object on one line (`jq -c .`)",
        _ if has(text, b"NaN") || has(text, b"Infinity") => {
            "; JSON has no NaN and no Infinity, write null"
        }
        _ if error.is_eof() && is_line => {
            "; it is cut off, or its object is written over several lines (`jq -c .`)"
        }
        _ if error.is_eof() => "; it is cut off",
        [b'{', ..] => "",
        _ => "; it is no JSON object, write `{\"column\": value}`",
    };
    let (line, column) = (error.line(), error.column());
    match is_line {
        true => format!("{reason} (character {column} of the line){remedy}"),
        false => format!("{reason} (line {line}, character {column} of the message){remedy}"),
    }
}

fn has(line: &[u8], word: &[u8]) -> bool {
    line.windows(word.len()).any(|w| w == word)
}

/// A seed for serde that reads an object into a row.
struct ObjectSeed<'r, 'a> {
    row: &'r mut JsonRow<'a>,
    keys: &'r JsonKeys,
}

impl<'a> DeserializeSeed<'a> for ObjectSeed<'_, 'a> {
    type Value = ();
    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'a> Visitor<'a> for ObjectSeed<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        let mut guess = 0;
        while let Some(key) = map.next_key_seed(KeySeed { keys: self.keys, guess })? {
            let Some(key) = key else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if std::mem::replace(&mut self.row.seen[key], true) {
                let name = self.keys.name(key);
                return Err(A::Error::custom(format!(
                    "the key \"{name}\" appears twice; write it once"
                )));
            }
            self.row.values[key] = map.next_value_seed(ValueSeed { row: self.row, depth: 0 })?;
            guess = key + 1;
        }
        Ok(())
    }
}

struct KeySeed<'r> {
    keys: &'r JsonKeys,
    guess: usize,
}

impl<'de> DeserializeSeed<'de> for KeySeed<'_> {
    type Value = Option<usize>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KeySeed<'_> {
    type Value = Option<usize>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }
    #[inline]
    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Self::Value, E> {
        let found = self.keys.find(name, self.guess);
        match found {
            None if self.keys.refuses_others => {
                Err(E::custom(crate::text::chunks::beyond_first_rows(name)))
            }
            found => Ok(found),
        }
    }
}

/// A seed for serde that reads one value. `depth` is 1 for the elements of a list.
struct ValueSeed<'r, 'a> {
    row: &'r mut JsonRow<'a>,
    depth: u8,
}

impl<'a> DeserializeSeed<'a> for ValueSeed<'_, 'a> {
    type Value = JsonValue<'a>;
    #[inline]
    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<JsonValue<'a>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'a> Visitor<'a> for ValueSeed<'_, 'a> {
    type Value = JsonValue<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<JsonValue<'a>, E> {
        Ok(JsonValue::Missing)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<JsonValue<'a>, E> {
        Ok(JsonValue::Bool(flag))
    }

    #[inline]
    fn visit_i64<E>(self, x: i64) -> Result<JsonValue<'a>, E> {
        Ok(JsonValue::Int(x))
    }

    #[inline]
    fn visit_u64<E>(self, x: u64) -> Result<JsonValue<'a>, E> {
        Ok(i64::try_from(x).map_or(JsonValue::UInt(x), JsonValue::Int))
    }

    #[inline]
    fn visit_f64<E>(self, x: f64) -> Result<JsonValue<'a>, E> {
        Ok(JsonValue::Float(x))
    }

    #[inline]
    fn visit_borrowed_str<E>(self, text: &'a str) -> Result<JsonValue<'a>, E> {
        Ok(JsonValue::Text(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<JsonValue<'a>, E> {
        let start = self.row.texts.len();
        self.row.texts.push_str(text);
        Ok(JsonValue::Unescaped(start, self.row.texts.len()))
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut list: A) -> Result<JsonValue<'a>, A::Error> {
        if self.depth > 0 {
            while list.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(JsonValue::List(0, 0));
        }
        let start = self.row.items.len();
        while let Some(item) = list.next_element_seed(ValueSeed { row: self.row, depth: 1 })? {
            self.row.items.push(item);
        }
        Ok(JsonValue::List(start, self.row.items.len()))
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<JsonValue<'a>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(JsonValue::Object)
    }
}

/// Adds the keys of the object in a line to `keys`.
pub(super) fn keys_of(line: &[u8], keys: &mut JsonKeys) -> Result<(), String> {
    struct NameSeed<'k>(&'k mut JsonKeys);
    impl<'de> DeserializeSeed<'de> for NameSeed<'_> {
        type Value = ();
        fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
            deserializer.deserialize_map(self)
        }
    }
    impl<'de> Visitor<'de> for NameSeed<'_> {
        type Value = ();
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while let Some(name) = map.next_key::<std::borrow::Cow<'de, str>>()? {
                self.0.add(&name);
                map.next_value::<IgnoredAny>()?;
            }
            Ok(())
        }
    }
    parse(line, NameSeed(keys))
}
