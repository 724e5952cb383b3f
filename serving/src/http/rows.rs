//! TF-Serving's predict and our rank: rows as objects, or features as columns.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use zillion_feature::{RawColumn, RawColumns, RawValues};

use super::values::Flat;
use crate::error::{Result, ServeError};
use crate::score::Answer;

/// The one signature that a model has.
const SIGNATURE: &str = "serving_default";

/// One row: values, or lists of values, by input.
type Instance<'a> = BTreeMap<Cow<'a, str>, Flat<'a>>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PredictRequest<'a> {
    #[serde(borrow, default)]
    signature_name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    instances: Option<Vec<Instance<'a>>>,
    #[serde(borrow, default)]
    inputs: Option<BTreeMap<Cow<'a, str>, Vec<Flat<'a>>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RankRequest<'a> {
    #[serde(borrow, default)]
    context: Instance<'a>,
    #[serde(borrow)]
    candidates: Vec<Instance<'a>>,
    #[serde(default)]
    top_k: Option<usize>,
}

/// A request, ready to be scored.
#[derive(Debug)]
pub(crate) struct Rows<'a> {
    pub(crate) rows: usize,
    pub(crate) columns: RawColumns<'a>,
    /// The answer is to be in columns too.
    pub(crate) is_columnar: bool,
    /// How many of the best are wanted in order.
    pub(crate) top_k: Option<usize>,
}

/// Reads a predict request.
pub(crate) fn parse_predict(body: &[u8]) -> Result<Rows<'_>> {
    let request: PredictRequest<'_> = serde_json::from_slice(body)
        .map_err(|e| ServeError::Malformed(format!("the body is not a predict request: {e}")))?;
    if let Some(name) = request.signature_name.filter(|name| name != SIGNATURE) {
        let reason = format!("the model has one signature, `{SIGNATURE}`, and not `{name}`");
        return Err(ServeError::Malformed(reason));
    }
    match (request.instances, request.inputs) {
        (Some(instances), None) => {
            let rows = instances.len();
            let columns = from_instances(instances, "instances")?;
            Ok(Rows { rows, columns, is_columnar: false, top_k: None })
        }
        (None, Some(inputs)) => {
            let (rows, columns) = from_columns(inputs)?;
            Ok(Rows { rows, columns, is_columnar: true, top_k: None })
        }
        _ => Err(ServeError::Malformed(
            "a predict request has either `instances` or `inputs`".to_owned(),
        )),
    }
}

/// Reads a rank request.
pub(crate) fn parse_rank(body: &[u8]) -> Result<Rows<'_>> {
    let request: RankRequest<'_> = serde_json::from_slice(body)
        .map_err(|e| ServeError::Malformed(format!("the body is not a rank request: {e}")))?;
    let rows = request.candidates.len();
    let mut columns = from_instances(request.candidates, "candidates")?;
    for (name, flat) in request.context {
        let lengths = flat.is_list.then(|| vec![flat.values.len()]);
        let column = RawColumn { values: RawValues::Any(flat.values), lengths, is_shared: true };
        if columns.contains_key(&name) {
            let reason = format!("it is in `context` and in the candidates: input `{name}`");
            return Err(ServeError::Malformed(reason));
        }
        columns.insert(name, column);
    }
    Ok(Rows { rows, columns, is_columnar: false, top_k: request.top_k })
}

/// Rows to columns: every row must have the inputs of the first.
fn from_instances<'a>(instances: Vec<Instance<'a>>, what: &str) -> Result<RawColumns<'a>> {
    let rows = instances.len();
    let mut columns: BTreeMap<Cow<'a, str>, Vec<Flat<'a>>> = BTreeMap::new();
    for (row, instance) in instances.into_iter().enumerate() {
        if row > 0 && instance.len() != columns.len() {
            let missing = columns.keys().find(|name| !instance.contains_key(name.as_ref()));
            if let Some(name) = missing {
                return Err(uneven(what, row, name));
            }
        }
        for (name, flat) in instance {
            match columns.get_mut(&name) {
                Some(column) if column.len() == row => column.push(flat),
                Some(_) => return Err(uneven(what, row, &name)),
                None if row == 0 => {
                    let mut column = Vec::with_capacity(rows);
                    column.push(flat);
                    columns.insert(name, column);
                }
                None => return Err(uneven(what, row, &name)),
            }
        }
        if let Some((name, _)) = columns.iter().find(|(_, column)| column.len() != row + 1) {
            return Err(uneven(what, row, name));
        }
    }
    Ok(columns.into_iter().map(|(name, flats)| (name, column_of(flats))).collect())
}

fn uneven(what: &str, row: usize, name: &str) -> ServeError {
    let reason = format!(
        "every row has the same inputs (give `null` for a missing value), and they differ in `{name}`: `{what}`, row {row}"
    );
    ServeError::Malformed(reason)
}

fn from_columns<'a>(
    inputs: BTreeMap<Cow<'a, str>, Vec<Flat<'a>>>,
) -> Result<(usize, RawColumns<'a>)> {
    let Some((first, rows)) = inputs.iter().next().map(|(n, c)| (n.to_string(), c.len())) else {
        return Err(ServeError::Malformed("the request has no inputs".to_owned()));
    };
    if let Some((name, column)) = inputs.iter().find(|(_, column)| column.len() != rows) {
        let reason =
            format!("it has {} rows and input `{first}` has {rows}: input `{name}`", column.len());
        return Err(ServeError::Malformed(reason));
    }
    Ok((rows, inputs.into_iter().map(|(name, flats)| (name, column_of(flats))).collect()))
}

/// One value a row, or lists where any row has a list.
fn column_of(flats: Vec<Flat<'_>>) -> RawColumn<'_> {
    let has_lists = flats.iter().any(|flat| flat.is_list);
    let lengths = has_lists.then(|| flats.iter().map(|flat| flat.values.len()).collect());
    let values = flats.into_iter().flat_map(|flat| flat.values).collect();
    RawColumn { values: RawValues::Any(values), lengths, is_shared: false }
}

/// The answer to a predict request.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum PredictAnswer<'a> {
    /// One number a row, of a model with one label.
    Single { predictions: &'a [f32] },
    /// One object a row, of a model with several.
    Several { predictions: Vec<BTreeMap<&'a str, f32>> },
    /// One column, of a model with one label.
    Column { outputs: &'a [f32] },
    /// Columns by output.
    Columns { outputs: BTreeMap<&'a str, &'a [f32]> },
}

impl<'a> PredictAnswer<'a> {
    pub(crate) fn new(answer: &'a Answer, is_columnar: bool) -> Self {
        let outputs = &answer.outputs;
        match (&outputs[..], is_columnar) {
            ([(_, only)], false) => Self::Single { predictions: only },
            ([(_, only)], true) => Self::Column { outputs: only },
            (several, true) => Self::Columns {
                outputs: several.iter().map(|(n, v)| (n.as_str(), &v[..])).collect(),
            },
            (several, false) => {
                let rows = several.first().map_or(0, |(_, values)| values.len());
                let row = |row: usize| several.iter().map(|(n, v)| (n.as_str(), v[row])).collect();
                Self::Several { predictions: (0..rows).map(row).collect() }
            }
        }
    }
}

/// The answer to a rank request: scores in the order of the candidates, of the first label.
#[derive(Debug, Serialize)]
pub(crate) struct RankAnswer<'a> {
    model_version: String,
    scores: &'a [f32],
    #[serde(skip_serializing_if = "Option::is_none")]
    top: Option<Vec<Ranked>>,
}

/// A candidate and its place.
#[derive(Debug, Serialize)]
pub(crate) struct Ranked {
    index: usize,
    score: f32,
}

impl<'a> RankAnswer<'a> {
    pub(crate) fn new(answer: &'a Answer, top_k: Option<usize>) -> Self {
        let scores = answer.outputs.first().map_or(&[][..], |(_, scores)| scores);
        let top = top_k.map(|k| {
            let mut order: Vec<usize> = (0..scores.len()).collect();
            // Of equal scores the earlier candidate is the better: the order is the same every time.
            order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
            order.truncate(k);
            order.into_iter().map(|index| Ranked { index, score: scores[index] }).collect()
        });
        Self { model_version: answer.version.to_string(), scores, top }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zillion_feature::RawValue;
    use zillion_registry::VersionId;

    use super::*;

    #[test]
    fn instances_become_columns() {
        let body = br#"{"signature_name": "serving_default",
            "instances": [{"user": 7, "tags": ["a", "b"], "n": null}, {"user": 8, "tags": [], "n": 1.5}]}"#;
        let rows = parse_predict(body).unwrap();
        assert_eq!((rows.rows, rows.is_columnar), (2, false));
        assert_eq!(rows.columns["tags"].lengths, Some(vec![2, 0]));
        let any = |values: Vec<RawValue<'static>>| RawValues::Any(values);
        assert_eq!(rows.columns["user"].values, any(vec![RawValue::Int(7), RawValue::Int(8)]));
        assert_eq!(rows.columns["n"].values, any(vec![RawValue::Missing, RawValue::Float(1.5)]));

        let columnar = parse_predict(br#"{"inputs": {"user": [7, 8], "tags": [["a", "b"], []]}}"#);
        let columnar = columnar.unwrap();
        assert_eq!((columnar.rows, columnar.is_columnar), (2, true));
        assert_eq!(columnar.columns["tags"], rows.columns["tags"]);
    }

    #[test]
    fn a_context_is_shared_by_all_candidates() {
        let body = br#"{"context": {"user": 7, "seen": [1, 2]}, "candidates": [{"item": 1}, {"item": 2}], "top_k": 1}"#;
        let rows = parse_rank(body).unwrap();
        assert_eq!((rows.rows, rows.top_k), (2, Some(1)));
        assert!(rows.columns["user"].is_shared && !rows.columns["item"].is_shared);
        assert_eq!(rows.columns["seen"].lengths, Some(vec![2]));
    }

    #[test]
    fn what_is_uneven_is_refused_by_name_and_row() {
        let predict = |body: &str| parse_predict(body.as_bytes()).unwrap_err().to_string();
        let uneven = predict(r#"{"instances": [{"a": 1}, {"a": 1, "b": 2}]}"#);
        assert!(uneven.contains("differ in `b`: `instances`, row 1"), "{uneven}");
        let uneven = predict(r#"{"instances": [{"a": 1, "b": 2}, {"a": 1}]}"#);
        assert!(uneven.contains("differ in `b`: `instances`, row 1"), "{uneven}");
        assert!(predict(r#"{"instances": [], "inputs": {}}"#).contains("either"));
        assert!(predict("{}").contains("either"));
        assert!(predict(r#"{"instances": [1]}"#).contains("not a predict request"));
        assert!(predict(r#"{"signature_name": "x", "instances": []}"#).contains("one signature"));
        assert!(
            predict(r#"{"inputs": {"a": [1], "b": [1, 2]}}"#)
                .contains("2 rows and input `a` has 1")
        );
        let rank = |body: &str| parse_rank(body.as_bytes()).unwrap_err().to_string();
        assert!(rank(r#"{"context": {"a": 1}, "candidates": [{"a": 2}]}"#).contains("input `a`"));
        assert!(rank(r#"{"context": {}}"#).contains("candidates"));
    }

    #[test]
    fn answers_are_as_the_protocols_say() {
        let one = Answer::of(VersionId(3), vec![("probabilities".into(), vec![0.25, 0.5, 0.5])]);
        let json = |value: &dyn erased::Json| value.json();
        assert_eq!(json(&PredictAnswer::new(&one, false)), r#"{"predictions":[0.25,0.5,0.5]}"#);
        assert_eq!(json(&PredictAnswer::new(&one, true)), r#"{"outputs":[0.25,0.5,0.5]}"#);
        assert_eq!(
            json(&RankAnswer::new(&one, Some(2))),
            r#"{"model_version":"3","scores":[0.25,0.5,0.5],"top":[{"index":1,"score":0.5},{"index":2,"score":0.5}]}"#
        );
        let two = Answer::of(VersionId(3), vec![("a".into(), vec![0.25]), ("b".into(), vec![1.0])]);
        assert_eq!(
            json(&PredictAnswer::new(&two, false)),
            r#"{"predictions":[{"a":0.25,"b":1.0}]}"#
        );
        assert_eq!(json(&PredictAnswer::new(&two, true)), r#"{"outputs":{"a":[0.25],"b":[1.0]}}"#);
    }

    /// Serialising without naming the type.
    mod erased {
        pub(super) trait Json {
            fn json(&self) -> String;
        }

        impl<T: serde::Serialize> Json for T {
            fn json(&self) -> String {
                serde_json::to_string(self).unwrap()
            }
        }
    }

    proptest! {
        #[test]
        fn no_body_is_a_panic(
            body in prop::collection::vec(any::<u8>(), 0..200),
            inner in r#"[\[\]0-9,."a-c{}: -]{0,60}"#,
        ) {
            let _ = (parse_predict(&body), parse_rank(&body));
            for shell in [r#"{"instances":[X]}"#, r#"{"inputs":{X}}"#, r#"{"context":{X},"candidates":[X]}"#] {
                let body = shell.replace('X', &inner);
                let _ = (parse_predict(body.as_bytes()), parse_rank(body.as_bytes()));
            }
        }
    }
}
