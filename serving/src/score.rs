//! Answers: the outputs of a version for the rows of a request.

use std::num::NonZeroUsize;

use zillion_feature::LabelKind;
use zillion_registry::VersionId;
use zillion_scorer::{RowScores, Servable};

use crate::error::{Result, ServeError};
use crate::text::shorten;

/// The answer of a version to the rows of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The number of the version that answered, from the first byte to the last.
    pub version: VersionId,
    /// The outputs by name, with `columns` values for each row.
    pub outputs: Vec<(String, Vec<f32>)>,
    /// The number of values of a row in each output: the number of classes of a label of classes,
    /// and 1 for any other label. `None` stands for 1 without a second dimension.
    pub classes: Option<NonZeroUsize>,
}

/// The name of the output of the first label, if the label is 0 or 1, or has classes: it then has
/// the probability of each class.
pub const PROBABILITIES: &str = "probabilities";
/// The name of the output of the first label, if the label is a number or a count.
pub const PREDICTIONS: &str = "predictions";
/// The name of the output with the score of the first label: its log odds, or the predicted number
/// or its logarithm, or the logarithm of the probability of each class. Only requests that name
/// this output get it.
pub const LOGITS: &str = "logits";
/// The name of the output of a model that scores without labels.
pub const SCORES: &str = "scores";

impl Answer {
    /// Creates an answer from its version and outputs.
    pub fn of(version: VersionId, outputs: Vec<(String, Vec<f32>)>) -> Self {
        Self { version, outputs, classes: None }
    }

    /// Returns the number of values of a row in each output.
    pub(crate) fn columns(&self) -> usize {
        self.classes.map_or(1, NonZeroUsize::get)
    }

    /// Returns the shape of an output of this many values: its rows, and its classes if it has
    /// some.
    pub(crate) fn shape(&self, values: usize) -> Vec<usize> {
        let rows = values / self.columns();
        std::iter::once(rows).chain(self.classes.map(NonZeroUsize::get)).collect()
    }

    /// Chooses the outputs that were asked for by name, or all predictions if none was. The
    /// scores move into the answer; only scores that two outputs share are copied.
    ///
    /// # Errors
    /// Returns an error if the model has no output of a requested name, or if a name occurs twice.
    pub fn choose(servable: &Servable, mut scores: RowScores, names: &[String]) -> Result<Self> {
        let all = output_names(servable);
        let classes = all.first().and_then(|output| NonZeroUsize::new(output.classes.len()));
        check_names(&all, names)?;
        let chosen: Vec<&Output> = match names {
            [] => all.iter().filter(|output| output.by_default).collect(),
            names => names.iter().map(|name| find(&all, name)).collect::<Result<_>>()?,
        };
        let mut uses = vec![0usize; scores.logits.len()];
        chosen.iter().for_each(|output| uses[output.task] += 1);
        let mut outputs = Vec::with_capacity(chosen.len());
        for output in chosen {
            if classes.is_some() {
                outputs.push((output.name.clone(), join_classes(output, &scores.logits)));
                continue;
            }
            let logits = &mut scores.logits[output.task];
            uses[output.task] -= 1;
            let logits = match uses[output.task] {
                0 => std::mem::take(logits),
                _ => logits.clone(),
            };
            let values = match output.predicts {
                Some(kind) => logits.into_iter().map(|logit| kind.predict(logit)).collect(),
                None => logits,
            };
            outputs.push((output.name.clone(), values));
        }
        Ok(Self { version: servable.version(), outputs, classes })
    }
}

/// Returns the values of the classes of each row, one row after another.
fn join_classes(output: &Output, logits: &[Vec<f32>]) -> Vec<f32> {
    let rows = logits.get(output.task).map_or(0, Vec::len);
    let classes = &logits[output.task..output.task + output.classes.len()];
    let predict = |logit: f32| output.predicts.map_or(logit, |kind| kind.predict(logit));
    (0..rows).flat_map(|row| classes.iter().map(move |of| predict(of[row]))).collect()
}

/// Checks the names of the outputs that a request asks for, before its rows are scored.
///
/// # Errors
/// Returns an error if the model has no output of a name, or if a name occurs twice: an answer has
/// at most as many values as the model computes.
pub(crate) fn check_outputs(servable: &Servable, names: &[String]) -> Result<()> {
    match names {
        [] => Ok(()),
        names => check_names(&output_names(servable), names),
    }
}

fn check_names(all: &[Output], names: &[String]) -> Result<()> {
    // Of one name more than there are outputs, one is unknown or occurs twice, so that the loop
    // ends there.
    for (at, name) in names.iter().enumerate() {
        find(all, name)?;
        if names[..at].contains(name) {
            return Err(ServeError::Malformed(format!(
                "output `{name}` is named twice; name each output at most once"
            )));
        }
    }
    Ok(())
}

/// Returns the output with a name, or an error that lists the outputs of the model.
fn find<'a>(outputs: &'a [Output], name: &str) -> Result<&'a Output> {
    outputs.iter().find(|output| output.name == name).ok_or_else(|| {
        let known: Vec<&str> = outputs.iter().map(|output| output.name.as_str()).collect();
        let (name, known) = (shorten(name), known.join("`, `"));
        ServeError::Malformed(format!("unknown output `{name}`; use one of `{known}`"))
    })
}

/// An output of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The name of the output in the protocols.
    pub name: String,
    /// The number of the task whose score this output is.
    pub task: usize,
    /// The kind of the label that the output predicts; `None`: the output is the score itself.
    pub predicts: Option<LabelKind>,
    /// Whether the output is in the answer to a request that names none.
    pub by_default: bool,
    /// The names of the tasks of its columns, if the label has classes; else empty, because the
    /// output has one value for each row.
    pub classes: Vec<String>,
}

/// Lists the outputs of a model: the prediction and the score of each task, or the score of a
/// model without labels.
pub fn output_names(servable: &Servable) -> Vec<Output> {
    if !servable.has_predictions() {
        let name = SCORES.to_owned();
        return vec![Output { name, task: 0, predicts: None, by_default: true, classes: vec![] }];
    }
    if servable.kind_of_task(0) == LabelKind::Class {
        return [(PROBABILITIES, Some(LabelKind::Class)), (LOGITS, None)]
            .map(|(name, predicts)| Output {
                name: name.to_owned(),
                task: 0,
                predicts,
                by_default: predicts.is_some(),
                classes: servable.tasks().to_vec(),
            })
            .into();
    }
    let named = |prefix: &str, task: usize, name: &str| match task {
        0 => prefix.to_owned(),
        _ => format!("{prefix}/{name}"),
    };
    let of = |(task, name): (usize, &String)| {
        let kind = servable.kind_of_task(task);
        let prediction = if kind.is_binary() { PROBABILITIES } else { PREDICTIONS };
        [(prediction, Some(kind)), (LOGITS, None)].map(|(prefix, predicts)| Output {
            name: named(prefix, task, name),
            task,
            predicts,
            by_default: predicts.is_some(),
            classes: Vec::new(),
        })
    };
    servable.tasks().iter().enumerate().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_a_row_stand_beside_each_other() {
        let output = |predicts| Output {
            name: PROBABILITIES.to_owned(),
            task: 0,
            predicts,
            by_default: true,
            classes: vec!["y=a".to_owned(), "y=b".to_owned()],
        };
        let logits = [vec![0.25f32.ln(), 0.5f32.ln()], vec![0.75f32.ln(), 0.5f32.ln()]];
        let joined = join_classes(&output(Some(LabelKind::Class)), &logits);
        let close = joined.iter().zip([0.25, 0.75, 0.5, 0.5]).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(close && joined.len() == 4, "{joined:?}");
        let raw = [logits[0][0], logits[1][0], logits[0][1], logits[1][1]];
        assert_eq!(join_classes(&output(None), &logits), raw);
        let mut answer = Answer::of(VersionId(1), Vec::new());
        assert_eq!(answer.shape(4), [4]);
        answer.classes = NonZeroUsize::new(2);
        assert_eq!(answer.shape(4), [2, 2]);
    }

    #[test]
    fn each_output_is_named_at_most_once() {
        let output = |name: &str| Output {
            name: name.to_owned(),
            task: 0,
            predicts: None,
            by_default: true,
            classes: Vec::new(),
        };
        let all = [output("probabilities"), output("logits")];
        let check = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            check_names(&all, &names).map_err(|error| error.to_string())
        };
        assert_eq!(check(&["logits", "probabilities"]), Ok(()));
        let twice = check(&["logits", "logits"]).unwrap_err();
        assert!(twice.contains("output `logits` is named twice"), "{twice}");
        assert!(check(&["logits"; 1 << 20]).unwrap_err().contains("named twice"));
        let long = "x".repeat(3 << 20);
        let unknown = check(&["logits", &long]).unwrap_err();
        assert!(unknown.contains("unknown output") && unknown.len() < 300, "{unknown}");
    }
}
