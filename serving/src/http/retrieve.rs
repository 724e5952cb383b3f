//! The requests for the nearest items of a user: their bodies, and the answers.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, MapAccess, Visitor};
use serde::{Serialize, Serializer};
use zillion_feature::{RawColumns, RawValue};
use zillion_scorer::ItemVectors;

use super::table::{Column, Name, RowVisitor, Table, Trouble};
use super::values::{Meter, Nesting, Seed, Values, to_integer};
use crate::config::Limits;
use crate::error::{Result, ServeError};
use crate::retrieve::{DEFAULT_K, Retrieval, RetrieveRequest};
use crate::tensor::MOST_NAME_BYTES;
use crate::text::shorten;

/// The keys of a body.
const KEYS: [&str; 5] = ["context", "k", "only", "exclude", "exact"];

/// Reads the body of a request. The reader counts values and inputs, and stops at the limits.
///
/// # Errors
/// Returns an error with the line, the column and the input of the problem if the request is
/// invalid, and [`ServeError::TooLarge`] if it exceeds a limit.
pub(crate) fn parse<'a>(body: &'a [u8], limits: &Limits) -> Result<RetrieveRequest<'a>> {
    let mut read = Body { parts: Parts::default(), trouble: Trouble::new(Meter::new(limits)) };
    let mut json = serde_json::Deserializer::from_slice(body);
    let outcome = Seed(BodyVisitor(&mut read)).deserialize(&mut json).and_then(|()| json.end());
    if let Err(error) = outcome {
        return Err(read.trouble.describe(&error, "a retrieve request"));
    }
    let Parts { context, k, only, exclude, exact } = read.parts;
    let Some(context) = context else {
        let reason = "a retrieve request has no `context`; send the inputs of the user in it";
        return Err(ServeError::Malformed(reason.to_owned()));
    };
    let mut columns = RawColumns::new();
    let mut bare_texts = Vec::new();
    for column in context.into_columns() {
        let Column { name, bare_text, .. } = &column;
        if bare_text.is_some() {
            bare_texts.push(name.to_string());
        }
        columns.insert(name.clone(), column.finish(false));
    }
    let exclude = exclude.unwrap_or_default();
    let k = k.unwrap_or(DEFAULT_K);
    Ok(RetrieveRequest { columns, bare_texts, k, only, exclude, exact })
}

/// The parts of a body that have been read so far.
#[derive(Debug, Default)]
struct Parts<'a> {
    context: Option<Table<'a>>,
    k: Option<usize>,
    only: Option<Vec<RawValue<'a>>>,
    exclude: Option<Vec<RawValue<'a>>>,
    exact: Option<bool>,
}

struct Body<'a> {
    parts: Parts<'a>,
    trouble: Trouble,
}

/// A reader of the object of a body.
struct BodyVisitor<'s, 'a>(&'s mut Body<'a>);

impl<'de: 'a, 'a> Visitor<'de> for BodyVisitor<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        use serde::de::Error as _;
        let Body { parts, trouble } = self.0;
        let mut seen = BTreeMap::new();
        while let Some(key) = map.next_key_seed(Seed(Name))? {
            let Some(&known) = KEYS.iter().find(|known| **known == key) else {
                return Err(unknown_key(&key));
            };
            if seen.insert(known, ()).is_some() {
                return Err(A::Error::custom(format!(
                    "the key `{known}` appears twice; send it once"
                )));
            }
            match known {
                "context" => {
                    let table = parts.context.insert(Table::default());
                    let part = ("context", None);
                    let row = RowVisitor { table, trouble, part, nameless: false };
                    map.next_value_seed(Seed(row))?;
                }
                "k" => {
                    let number = map.next_value::<Option<serde_json::Number>>()?;
                    parts.k = number.map(|number| read_k(&number)).transpose()?;
                }
                "exact" => parts.exact = map.next_value()?,
                list => {
                    let (mut ids, meter) = (Vec::new(), &mut trouble.meter);
                    let nesting = Nesting { lists: 1, base64: true };
                    let is_list =
                        map.next_value_seed(Seed(Values { into: &mut ids, nesting, meter }))?;
                    let into = if list == "only" { &mut parts.only } else { &mut parts.exclude };
                    *into = match &ids[..] {
                        // A list that is null is absent.
                        [RawValue::Missing] if !is_list => None,
                        _ if is_list => Some(ids),
                        _ => {
                            return Err(A::Error::custom(format!(
                                "`{list}` is no list; send a list of ids of items"
                            )));
                        }
                    };
                }
            }
        }
        Ok(())
    }
}

fn unknown_key<E: serde::de::Error>(key: &str) -> E {
    // A comparison with a long key would take as long as the key is.
    let keys = KEYS.iter().copied().filter(|_| key.len() <= MOST_NAME_BYTES);
    let near = zillion_config::nearest(key, keys);
    let near = near.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
    let (key, known) = (shorten(key), KEYS.join("`, `"));
    E::custom(format!("unknown key `{key}`; use one of `{known}`{near}"))
}

/// Reads the value of `k`.
fn read_k<E: serde::de::Error>(number: &serde_json::Number) -> Result<usize, E> {
    let integer = number.as_f64().and_then(to_integer).and_then(|x| u64::try_from(x).ok());
    let count = number.as_u64().or(integer).filter(|&count| count > 0);
    let count = count.map(|count| usize::try_from(count).unwrap_or(usize::MAX));
    count.ok_or_else(|| E::custom(format!("`k` is {number}; send an integer of at least 1")))
}

/// The answer to a retrieve request: the items with the highest scores, the best first.
#[derive(Debug, Serialize)]
pub(super) struct RetrieveAnswer<'a> {
    model_version: String,
    items: Vec<Item<'a>>,
    /// The number of ids of `only` and `exclude` that the version has no item for.
    unknown_ids: usize,
    /// Whether the search was exact.
    exact: bool,
}

/// An item with its score.
#[derive(Debug, Serialize)]
struct Item<'a> {
    id: Id<'a>,
    score: f32,
}

/// The id of an item, as a number or a text.
#[derive(Debug)]
struct Id<'a>(RawValue<'a>);

impl Serialize for Id<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            RawValue::Int(id) => serializer.serialize_i64(*id),
            RawValue::Uint(id) => serializer.serialize_u64(*id),
            RawValue::Text(text) => serializer.serialize_str(text),
            _ => serializer.serialize_unit(),
        }
    }
}

impl<'a> RetrieveAnswer<'a> {
    pub(super) fn new(items: &'a ItemVectors, retrieval: &Retrieval) -> Self {
        let item = |found: &zillion_scorer::Found| {
            let id = Id(items.ids().get(found.item as usize));
            Item { id, score: found.score }
        };
        Self {
            model_version: retrieval.version.to_string(),
            items: retrieval.found.iter().map(item).collect(),
            unknown_ids: retrieval.unknown_ids,
            exact: retrieval.is_exact,
        }
    }
}

#[cfg(test)]
mod tests {
    use zillion_feature::RawValues;
    use zillion_registry::VersionId;
    use zillion_rows::layer::Unthrottled;
    use zillion_scorer::{Found, ItemIds};

    use super::*;

    fn read(body: &str) -> Result<RetrieveRequest<'_>, String> {
        parse(body.as_bytes(), &Limits::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_body_has_the_inputs_of_a_user_and_lists_of_ids() {
        let body = r#"{"context": {"user": 7, "history": [1, 2]}, "k": 3.0, "only": [5, "6"],
                       "exclude": null, "exact": true}"#;
        let request = read(body).unwrap();
        assert_eq!((request.k, request.exact), (3, Some(true)));
        assert_eq!(request.columns["user"].values, RawValues::Any(vec![RawValue::Int(7)]));
        assert_eq!(request.columns["history"].lengths, Some(vec![2]));
        let only = vec![RawValue::Int(5), RawValue::Text("6".into())];
        assert_eq!((request.only, request.exclude), (Some(only), Vec::new()));
        let request = read(r#"{"context": {"name": "x"}, "exclude": [1]}"#).unwrap();
        assert_eq!((request.k, request.exclude), (10, vec![RawValue::Int(1)]));
        assert_eq!(request.exact, None);
        assert_eq!(read(r#"{"context": {}, "exact": false}"#).unwrap().exact, Some(false));
        assert_eq!((request.only, request.bare_texts), (None, vec!["name".to_owned()]));
    }

    #[test]
    fn wrong_bodies_are_refused_with_the_place() {
        for (body, expected) in [
            ("{}", "has no `context`"),
            (r#"{"context": 3}"#, "the row is not an object"),
            (r#"{"context": {}, "k": 0}"#, "`k` is 0; send an integer of at least 1"),
            (r#"{"context": {}, "k": 1.5}"#, "`k` is 1.5"),
            (r#"{"context": {}, "k": "a"}"#, "invalid type"),
            (r#"{"context": {}, "exact": 1}"#, "expected a boolean"),
            (r#"{"context": {}, "only": 3}"#, "`only` is no list"),
            (r#"{"context": {}, "exclude": {"a": 1}}"#, "line 1"),
            (r#"{"context": {}, "exclud": [1]}"#, "did you mean `exclude`?"),
            (r#"{"context": {}, "k": 1, "k": 2}"#, "appears twice"),
            (r#"{"context": {"a": 1, "a": 2}}"#, "appears twice"),
            (r#"{"context": {}"#, "EOF"),
            (r#"{"context": {}} x"#, "trailing"),
        ] {
            let said = read(body).unwrap_err();
            assert!(said.contains(expected), "{body}: {said}");
        }
        let limits = Limits { values: 2, ..Limits::default() };
        let body = br#"{"context": {"a": 1}, "exclude": [1, 2]}"#;
        assert!(matches!(parse(body, &limits), Err(ServeError::TooLarge { .. })));
    }

    #[test]
    fn an_answer_has_the_ids_of_the_catalogue() {
        let mut texts = ItemIds::new(zillion_feature::RawType::String);
        assert!(texts.push(&RawValue::Text("a\"b".into())));
        for (ids, id) in [(ItemIds::Ints(vec![-4]), "-4"), (texts, r#""a\"b""#)] {
            let items = ItemVectors::new(ids, vec![0.5], 1, 1.0, Vec::new(), &mut Unthrottled);
            let found = vec![Found { item: 0, score: 0.25 }];
            let retrieval =
                Retrieval { version: VersionId(3), found, unknown_ids: 2, is_exact: false };
            let answer =
                serde_json::to_string(&RetrieveAnswer::new(&items.unwrap(), &retrieval)).unwrap();
            let expected = format!(
                r#"{{"model_version":"3","items":[{{"id":{id},"score":0.25}}],"unknown_ids":2,"exact":false}}"#
            );
            assert_eq!(answer, expected);
        }
    }
}
