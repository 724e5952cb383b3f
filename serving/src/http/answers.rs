//! The JSON of answers to TF-Serving's requests and to rank requests.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::score::Answer;

/// The answer to a predict request, in rows or in columns.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum PredictAnswer<'a> {
    /// One number for each row, from a model with one label.
    Single { predictions: &'a [f32] },
    /// One object for each row, from a model with several labels.
    Several { predictions: Vec<BTreeMap<&'a str, f32>> },
    /// The probabilities of the classes of each row, from a model with a label of classes.
    Classes { predictions: Vec<&'a [f32]> },
    /// The same in columns.
    ColumnOfClasses { outputs: Vec<&'a [f32]> },
    /// One column, from a model with one label.
    Column { outputs: &'a [f32] },
    /// One column for each output, from a model with several labels.
    Columns { outputs: BTreeMap<&'a str, &'a [f32]> },
}

impl<'a> PredictAnswer<'a> {
    pub(super) fn new(answer: &'a Answer, is_columnar: bool) -> Self {
        let outputs = &answer.outputs;
        if let (Some(classes), [(_, only)]) = (answer.classes, &outputs[..]) {
            let rows = only.chunks_exact(classes.get()).collect();
            return match is_columnar {
                true => Self::ColumnOfClasses { outputs: rows },
                false => Self::Classes { predictions: rows },
            };
        }
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

/// The answer to a regress or classify request.
#[derive(Debug, Serialize)]
pub(super) struct Results<T> {
    results: T,
}

/// Returns the answer to a regress request: one number for each example, from the first label.
pub(super) fn regress(answer: &Answer) -> Results<&[f32]> {
    Results { results: first(answer) }
}

/// Returns the answer to a classify request: the classes of the first label with their
/// probabilities, for each example. `names` are the names of the classes; a label of 0 and 1 has
/// none.
pub(super) fn classify<'a>(
    answer: &Answer,
    names: Option<&'a [String]>,
) -> Results<Vec<Vec<(&'a str, f32)>>> {
    let Some(names) = names else {
        let classes = |&one: &f32| vec![("0", 1.0 - one), ("1", one)];
        return Results { results: first(answer).iter().map(classes).collect() };
    };
    let named = |row: &[f32]| names.iter().map(String::as_str).zip(row.iter().copied()).collect();
    Results { results: first(answer).chunks_exact(answer.columns()).map(named).collect() }
}

/// The answer to a rank request: the scores of the first label, in the order of the candidates.
#[derive(Debug, Serialize)]
pub(super) struct RankAnswer<'a> {
    model_version: String,
    scores: &'a [f32],
    #[serde(skip_serializing_if = "Option::is_none")]
    top: Option<Vec<Ranked>>,
}

/// A candidate with its score.
#[derive(Debug, Serialize)]
struct Ranked {
    index: usize,
    score: f32,
}

impl<'a> RankAnswer<'a> {
    pub(super) fn new(answer: &'a Answer, top_k: Option<usize>) -> Self {
        let scores = first(answer);
        let top = top_k.map(|k| {
            let mut order: Vec<usize> = (0..scores.len()).collect();
            // Of two equal scores the earlier candidate comes first, so that the order is always
            // the same.
            order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
            order.truncate(k);
            order.into_iter().map(|index| Ranked { index, score: scores[index] }).collect()
        });
        Self { model_version: answer.version.to_string(), scores, top }
    }
}

/// Returns the output of the first label.
fn first(answer: &Answer) -> &[f32] {
    answer.outputs.first().map_or(&[][..], |(_, scores)| scores)
}

#[cfg(test)]
mod tests {
    use zillion_registry::VersionId;

    use super::*;

    fn json(answer: &impl Serialize) -> String {
        serde_json::to_string(answer).unwrap()
    }

    #[test]
    fn answers_have_the_form_of_their_protocol() {
        let one = Answer::of(VersionId(3), vec![("probabilities".into(), vec![0.25, 0.5, 0.5])]);
        assert_eq!(json(&PredictAnswer::new(&one, false)), r#"{"predictions":[0.25,0.5,0.5]}"#);
        assert_eq!(json(&PredictAnswer::new(&one, true)), r#"{"outputs":[0.25,0.5,0.5]}"#);
        assert_eq!(json(&regress(&one)), r#"{"results":[0.25,0.5,0.5]}"#);
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
        assert_eq!(json(&classify(&two, None)), r#"{"results":[[["0",0.75],["1",0.25]]]}"#);
        let outputs = vec![("probabilities".into(), vec![0.25, 0.75, 0.5, 0.5])];
        let classes = std::num::NonZeroUsize::new(2);
        let classes = Answer { classes, ..Answer::of(VersionId(3), outputs) };
        let rows = "[[0.25,0.75],[0.5,0.5]]";
        assert_eq!(
            json(&PredictAnswer::new(&classes, false)),
            format!("{{\"predictions\":{rows}}}")
        );
        assert_eq!(json(&PredictAnswer::new(&classes, true)), format!("{{\"outputs\":{rows}}}"));
        let names = ["a".to_owned(), "b".to_owned()];
        assert_eq!(
            json(&classify(&classes, Some(&names))),
            r#"{"results":[[["a",0.25],["b",0.75]],[["a",0.5],["b",0.5]]]}"#
        );
    }
}
