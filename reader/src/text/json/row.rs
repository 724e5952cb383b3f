//! One line of JSON to the values of its keys.

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::Keys;

/// The value of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    /// Absent, or null.
    Missing,
    Bool(bool),
    Int(i64),
    /// Beyond an `i64`.
    UInt(u64),
    Float(f64),
    /// As it stands in the line.
    Text(&'a str),
    /// Unescaped: a range of [`JsonRow::texts`].
    Unescaped(usize, usize),
    /// A range of [`JsonRow::items`].
    List(usize, usize),
    Object,
}

/// The values of one line, and their memory, which the next line uses again.
#[derive(Debug, Default)]
pub(crate) struct JsonRow<'a> {
    /// One a key.
    values: Vec<Value<'a>>,
    seen: Vec<bool>,
    items: Vec<Value<'a>>,
    texts: String,
}

impl<'a> JsonRow<'a> {
    /// Reads the line as an object.
    ///
    /// # Errors
    /// What is wrong with it and what to do.
    pub(crate) fn read(&mut self, line: &'a [u8], keys: &Keys) -> Result<(), String> {
        self.values.clear();
        self.values.resize(keys.len(), Value::Missing);
        self.seen.clear();
        self.seen.resize(keys.len(), false);
        self.items.clear();
        self.texts.clear();
        parse(line, ObjectSeed { row: self, keys })
    }

    pub(crate) fn value(&self, key: usize) -> Value<'a> {
        self.values[key]
    }

    pub(crate) fn items(&self, start: usize, end: usize) -> &[Value<'a>] {
        &self.items[start..end]
    }

    /// The text of a string.
    #[inline]
    pub(crate) fn text(&self, value: Value<'a>) -> Option<&str> {
        match value {
            Value::Text(text) => Some(text),
            Value::Unescaped(start, end) => Some(&self.texts[start..end]),
            _ => None,
        }
    }
}

fn parse<'de, S: DeserializeSeed<'de, Value = ()>>(line: &'de [u8], seed: S) -> Result<(), String> {
    let mut deserializer = serde_json::Deserializer::from_slice(line);
    let read = seed.deserialize(&mut deserializer).and_then(|()| deserializer.end());
    read.map_err(|error| explain(line, &error))
}

/// The parser's reason, with the byte instead of a line number that is always 1.
#[cold]
fn explain(line: &[u8], error: &serde_json::Error) -> String {
    let reason = error.to_string();
    let reason = reason.split(" at line ").next().unwrap_or_default();
    let remedy = match line.trim_ascii() {
        [b'[', ..] => "; write one object a line instead of an array (`jq -c '.[]'`)",
        b"{" => "; write each object on one line (`jq -c .`)",
        _ if has(line, b"NaN") || has(line, b"Infinity") => {
            "; JSON has no NaN and no Infinity, write null"
        }
        _ if error.is_eof() => {
            "; it is cut off, or its object is written over several lines (`jq -c .`)"
        }
        _ => "",
    };
    format!("{reason} (character {} of the line){remedy}", error.column())
}

fn has(line: &[u8], word: &[u8]) -> bool {
    line.windows(word.len()).any(|w| w == word)
}

/// Reads an object into a row.
struct ObjectSeed<'r, 'a> {
    row: &'r mut JsonRow<'a>,
    keys: &'r Keys,
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
                return Err(A::Error::custom(format!("the key \"{name}\" stands twice")));
            }
            self.row.values[key] = map.next_value_seed(ValueSeed { row: self.row, depth: 0 })?;
            guess = key + 1;
        }
        Ok(())
    }
}

struct KeySeed<'r> {
    keys: &'r Keys,
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
                Err(E::custom(crate::text::beyond_first_rows(name)))
            }
            found => Ok(found),
        }
    }
}

/// Reads one value; `depth` is 1 inside of a list.
struct ValueSeed<'r, 'a> {
    row: &'r mut JsonRow<'a>,
    depth: u8,
}

impl<'a> DeserializeSeed<'a> for ValueSeed<'_, 'a> {
    type Value = Value<'a>;
    #[inline]
    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<Value<'a>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'a> Visitor<'a> for ValueSeed<'_, 'a> {
    type Value = Value<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value<'a>, E> {
        Ok(Value::Missing)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value<'a>, E> {
        Ok(Value::Bool(flag))
    }

    #[inline]
    fn visit_i64<E>(self, x: i64) -> Result<Value<'a>, E> {
        Ok(Value::Int(x))
    }

    #[inline]
    fn visit_u64<E>(self, x: u64) -> Result<Value<'a>, E> {
        Ok(i64::try_from(x).map_or(Value::UInt(x), Value::Int))
    }

    #[inline]
    fn visit_f64<E>(self, x: f64) -> Result<Value<'a>, E> {
        Ok(Value::Float(x))
    }

    #[inline]
    fn visit_borrowed_str<E>(self, text: &'a str) -> Result<Value<'a>, E> {
        Ok(Value::Text(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value<'a>, E> {
        let start = self.row.texts.len();
        self.row.texts.push_str(text);
        Ok(Value::Unescaped(start, self.row.texts.len()))
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut list: A) -> Result<Value<'a>, A::Error> {
        if self.depth > 0 {
            while list.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(Value::List(0, 0));
        }
        let start = self.row.items.len();
        while let Some(item) = list.next_element_seed(ValueSeed { row: self.row, depth: 1 })? {
            self.row.items.push(item);
        }
        Ok(Value::List(start, self.row.items.len()))
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Value<'a>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Value::Object)
    }
}

/// Adds the keys of a line's object.
pub(super) fn keys_of(line: &[u8], keys: &mut Keys) -> Result<(), String> {
    struct NameSeed<'k>(&'k mut Keys);
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
